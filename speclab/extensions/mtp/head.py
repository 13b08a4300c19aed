"""An MTP head: one decoder layer of the target's own kind, which reads the target's last state and the next token.

At position t it gets what the target has computed there (its last state, after its last norm) and the embedding of
token t + 1, and predicts token t + 2:

    x = projection(norm of the embedding, norm of the state);  state = norm(layer(x));  logits = output layer(state)

Deeper positions, for which the target has computed nothing yet, get the head's own state at the position before: the
one layer is applied again, to its state after the last norm. Embedding and output layer are the target's. DeepSeek-V3
(arXiv 2412.19437), FastMTP (2509.18362); the layer and its weights are the library's (`MtpModel`).

What is read when is as with a feature head (speclab/drafts/feature.py): between rounds the head's cache holds the
target's states of what is final, each with the token after it, and nothing of a rejected token or of its own chain.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from speclab.core.rounds import Target
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter


class MtpConfig(NamedTuple):
    """The settings of a head. block: the library's config of its layer, with the target's vocabulary.
    layers: the target's layer, from 0, whose output it reads: the last one.
    """

    block: Any
    layers: tuple[int]


class MtpHead(nn.Module):
    """The library's layer, and the steps of a pass. norm: the target's last norm."""

    def __init__(self, model: Any, norm: nn.Module, n_layers: int):
        """model: an MtpModel. n_layers: of the target."""
        super().__init__()
        self.config = MtpConfig(model.config, (n_layers - 1,))
        self.model, self.norm = model, norm

    def fuse(self, hidden: Tensor) -> Tensor:
        """Turn the outputs of the target's last layer (batch, n, hidden) into the states that the head reads."""
        return self.norm(hidden)

    def run(self, states: Tensor, tokens: Tensor, positions: Tensor, cache: DynamicCache, seen: Tensor) -> Tensor:
        """Run the layer: states (batch, n, hidden) and the token after each, (batch, n).  -> states of the next
        positions, the same shape

        positions: (batch, n), of the tokens. cache: takes the keys and values. seen: (batch, n, rows of the cache with
        these) bool, which of them each state reads.
        """
        model = self.model
        embedded = model.embed_tokens(tokens)
        kinds = {"layer_type": model.config.layer_types[0]} if model.has_per_layer_rope else {}
        rotation = model.rotary_emb and model.rotary_emb(embedded, position_ids=positions, **kinds)
        mask = torch.zeros(seen.shape, dtype=states.dtype, device=states.device).masked_fill(~seen, float("-inf"))
        return model.layers[0](
            embedded,
            states,
            position_embeddings=rotation,
            attention_mask=mask[:, None],
            position_ids=positions,
            past_key_values=cache,
        )

    def logits(self, states: Tensor) -> Tensor:
        return self.model.shared_head(states)

    def chains(self, hidden: Tensor, tokens: Tensor, depth: int) -> Iterator[Tensor]:
        """Return the logits by depth j, as a feature head's `chains` does: row t predicts token t + 2 + j in a round
        whose last committed token is t + 1."""
        batch, n = tokens.shape[0], tokens.shape[1] - 1 - depth
        text, cache = torch.arange(n, device=tokens.device), DynamicCache()
        seen = (text <= text[:, None]).expand(batch, -1, -1)  # a chain reads the text up to its place, and itself
        own = torch.eye(n, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
        states = self.fuse(hidden[:, :n])
        for j in range(depth):
            seen = torch.cat([seen, own], dim=2) if j else seen
            states = self.run(states, tokens[:, 1 + j : 1 + j + n], (text + 1 + j).expand(batch, -1), cache, seen)
            yield self.logits(states)


class MtpDrafter(FeatureDrafter):
    """Proposes tokens one by one, with the target's own head."""

    head: Any  # an MtpHead

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._cache = DynamicCache()

    def _reserve(self, rows: int, length: int) -> None:
        """Keep no buffers of its own: the layer's keys and values may have any shape, so they are in a cache of the
        library."""

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Run a pass: states (1, m, hidden) from position `length` on and the token after each -> the last output,
        (1, 1, hidden), and its logits, (1, vocabulary).

        What is in the cache from `length` on is dropped.
        """
        if n_more := self._cache.get_seq_length() - length:
            self._cache.crop(-n_more)
        places = torch.arange(length + tokens.shape[1], device=tokens.device)
        now = places[length:]
        tokens, seen = tokens.clamp(0, self._n_ids - 1), (places <= now[:, None])[None]
        output = self.head.run(states, tokens, now[None] + 1, self._cache, seen)
        return output[:, -1:], self.head.logits(output[:, -1])

    def describe(self, name: str, engine: str) -> str:
        millions = sum(weight.numel() for weight in self.head.model.layers.parameters()) / 1e6
        return f"{name}: the target's own head, one layer over its last state, {millions:.1f} M parameters"
