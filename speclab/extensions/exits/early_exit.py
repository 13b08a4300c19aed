"""Drafts with the target's own first layers (early exit: LayerSkip, arXiv 2404.16710; Kangaroo, 2404.18911).

A draft of n tokens runs the first N layers over the last committed token and the drafted ones but the last, one token a
pass. A model was not trained to speak from its early states, so an adapter stands in between: one decoder layer of its
own, which reads the states of the text so far, a norm, and the target's own output layer.
These passes write the target's own cache, in those layers. Verification takes the states up and runs the other layers
over all n + 1 positions: no layer runs twice over a token. The draft's cache is the first layers' part of the target's.
With k = 4 drafted tokens of which 2 are accepted, in tokens:

                  committed   first layers   other layers   fed in this step
    before            L           L - 1          L - 1
    1. draft          L           L + 3          L - 1      first layers: the last committed token, drafts 1 to 3
    2. verify         L           L + 4          L + 4      first layers: draft 4; then the others: all five
    4. roll back    L + 3         L + 2          L + 2      nothing; both parts by the same length

The adapter has keys and values of its own. Between rounds they hold committed tokens, all but the last; those that it
has not read yet (the prompt's, the last drafted one's, and that of a round without a draft) go in together with the
first pass of the next round. Nothing that it reads is a guess: its states are the target's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from draft_models import as_draft, as_drawn
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Drawn, Sampling, draw_draft, to_device
from speclab.drafts.feature import HeadDrafter
from speclab.drafts.heads.parts import DecoderLayer, Norm, Rotation, appended, rotations
from speclab.extensions.exits.first_layers import FirstLayers


class ExitConfig(NamedTuple):
    """The settings of an adapter. exit_layer: N, how many of the target's first layers a draft runs. target_layers:
    the number of its decoder layers. block: the sizes of the adapter's own one, with the target's width and vocabulary.
    """

    exit_layer: int
    target_layers: int
    block: Any  # LlamaConfig

    @property
    def draft_vocab(self) -> int:
        return self.block.vocab_size

    @property
    def layers(self) -> tuple[int, ...]:
        return (self.exit_layer - 1,)


class ExitAdapter(nn.Module):
    """The weights. output: the target's output layer, (vocab, hidden), which is neither trained nor stored."""

    output: Tensor

    def __init__(self, config: ExitConfig, output: Tensor):
        super().__init__()
        block = config.block
        self.config = config
        self.layers = nn.ModuleList([DecoderLayer(block, block.hidden_size)])
        self.norm = Norm(block.hidden_size, block.rms_norm_eps)
        self.register_buffer("output", output, persistent=False)

    def forward(self, states: Tensor, rotation: Rotation, seen: Callable[[Tensor, Tensor], Any], n_last: int) -> Tensor:
        """Read the target's states (batch, n, hidden) -> logits of the tokens after the last ones, (batch, n_last,
        vocab). n_last: 1 or n.

        rotation: of the states' positions. seen: keys and values of these states, (batch, key heads, n, head size)
        each -> those that are read.
        """
        layer: Any = self.layers[0]
        queries, *own = layer.self_attn.heads(layer.input_layernorm(states), rotation)
        keys, values = seen(*own)
        shared = queries.shape[1] != keys.shape[1]
        attended = scaled_dot_product_attention(
            queries[:, :, -n_last:], keys, values, is_causal=n_last > 1, enable_gqa=shared
        )
        return linear(self.norm(layer.finish(states[:, -n_last:], attended)), self.output)

    def text_logits(self, states: Tensor) -> Tensor:
        """Return the logits along a known text, in one pass: states (batch, n, hidden) -> logits (batch, n, vocab)."""
        n = states.shape[1]
        rotation = rotations(self.config.block, torch.arange(n, device=states.device))
        return self(states, rotation, lambda *own: own, n)

    def chains(self, hidden: Tensor, tokens: Tensor, depth: int) -> Iterator[Tensor]:
        """Return the logits by depth, as a head's `chains`; those of a place do not depend on where the round began."""
        logits, n = self.text_logits(hidden), tokens.shape[1] - 1 - depth
        yield from (logits[:, 1 + j : 1 + j + n] for j in range(depth))


@dataclass(frozen=True)
class ExitDraft(Draft):
    """Tokens for which the target's first layers have run already."""

    states: Tensor = field(kw_only=True)  # (1, n, hidden) of the last committed token and the drafted ones but the last
    first: FirstLayers = field(kw_only=True)

    def verified_by(self, target: Target, last_tokens: Tensor) -> Tensor:
        """Run the other layers over the last committed token, (1,), and the n drafted ones.

        -> (1, n + 1, vocab) logits
        """
        return self.first.finish(torch.cat([last_tokens[:, None], self.tokens], dim=1), self.states)


class ExitDrafter(HeadDrafter):
    """Proposes tokens one by one, and gives the target's states with them."""

    head: ExitAdapter
    runs_target = True

    def prefill(self, target: Any, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._first = FirstLayers(target, self.head.config.exit_layer)
        self._last = prompt[:, :0]  # (1, 1), the last committed token; it comes with `observe`
        self._n_read = 0  # rows of this round's pass that are read while drafting

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        if k == 0:
            return as_draft([], self.device)
        drawn: list[Drawn] = []
        states: list[Tensor] = []
        token = self._last
        with torch.inference_mode():
            for i in range(k):
                states.append(self._first.forward(token))  # (1, 1, hidden)
                logits = self.as_target_logits(self._read(states[-1]), self._vocab_size)
                drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
                token = drawn[-1].token.clamp(min=0)[:, None]
        self._n_read = len(drawn)
        made = as_drawn(drawn)
        given = torch.cat(states, dim=1)
        return ExitDraft(made.tokens, made.size, made.probs, faults=made.faults, states=given, first=self._first)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Forget what was read of rejected tokens, and take the final states that are not read yet."""
        n_final = n_accepted + 1  # rows of the pass: the token that was the last one, and the accepted ones
        if self._last.shape[1]:  # not right after the prompt, whose states are here already
            self._length -= max(0, self._n_read - n_final)
            new = self._target.hidden(self._layers)[:, self._n_read : n_final]
            self._hidden = torch.cat([self._hidden, new], dim=1)
        self._last, self._n_read = to_device(committed[-1:], self.device)[None], 0

    def _read(self, state: Tensor) -> Tensor:
        """Read a state (1, 1, hidden) behind those that are not read yet -> logits of the token after it, (1,
        vocab)."""
        states = torch.cat([self._hidden, state], dim=1)
        start, rotation = self._length, self._rotation(self._length, states.shape[1])
        self._length, self._hidden = start + states.shape[1], self._hidden[:, :0]
        buffers = self._keys[0], self._values[0]
        return self.head(states, rotation, lambda *own: appended(buffers, own, start), 1)[:, -1]

    def describe(self, name: str, engine: str) -> str:
        config, millions = self.head.config, sum(weight.numel() for weight in self.head.parameters()) / 1e6
        layers = f"the target's first {config.exit_layer} of {config.target_layers} layers"
        return f"{name}: {layers}, and an adapter of {millions:.1f} M parameters"
