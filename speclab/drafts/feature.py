"""Drafts with a head that reads the target's hidden states (speclab/drafts/heads/feature.py), one token a pass.

Between rounds the head's keys and values hold every committed token but those of the last round. The states that the
target computed for these (of its last committed token then, and of the accepted drafts; never of a rejected one) go in
together with the first pass of the next round, each with the token after it. Within a round the head's own output takes
the place of the states that the target has not computed yet; those keys and values are overwritten in the next round.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draft_models import as_draft
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import GREEDY, Sampling, draw_draft, probability, to_device
from speclab.drafts.heads.feature import FeatureHead, rotations

SPARE = 512  # rows of new buffers beyond what is needed


class FeatureDrafter:
    """Proposes tokens one by one. The target's passes have to keep the outputs of the head's layers
    (CachedModel.hidden_layers).

    ids: (draft vocabulary,) the target's id of each of the head's; None where they are the same.
    """

    def __init__(self, head: FeatureHead, ids: Tensor | None = None):
        self.head, self.ids = head.freeze(), ids
        self.keep_drafting: Callable[[float], bool] | None = None  # asked after each token: another one? (-k auto)
        self._layers = head.config.layers
        self._sampling, self._vocab_size = GREEDY, 0  # the target's
        self._keys = self._values = self._cos = self._sin = torch.empty(0)
        self._reserve(SPARE, 0)

    def __deepcopy__(self, memo: dict) -> "FeatureDrafter":
        """The weights are shared; keys, values and text are the copy's own."""
        return type(self)(self.head, self.ids)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.fc.weight.device

    def describe(self) -> str:
        """What it is, in a few words."""
        millions = sum(weight.numel() for weight in self.head.parameters()) / 1e6
        layers = ", ".join(map(str, self._layers))
        return f"one layer over the target's states after layers {layers} (from 0), {millions:.1f} M parameters"

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids; they are read in the first round."""
        self._target, self._sampling, self._vocab_size = target, sampling, target.vocab_size
        self._length = 0  # rows of keys and values that stay
        self._hidden = target.hidden(self._layers)  # (1, rows, layers * width), not read yet
        self._tokens = prompt[:, 1:]  # (1, rows), the token after each; the last one's comes with `observe`

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens. uniforms (1, k), in [0, 1)."""
        if k == 0:
            return as_draft([], self.device)
        drawn: list[tuple[Tensor, Tensor | None]] = []
        with torch.inference_mode():
            output = self._forward(self.head.fuse(self._hidden), self._tokens, self._length)
            self._length += self._tokens.shape[1]
            self._hidden, self._tokens = self._hidden[:, :0], self._tokens[:, :0]
            for i in range(k):
                if i:
                    output = self._forward(output, drawn[-1][0][:, None], self._length + i - 1)
                logits = self.of_target(
                    self.head.logits(output)[:, -1], self._vocab_size
                )  # (1, the target's vocabulary)
                drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
                if self.keep_drafting and not self.keep_drafting(probability(logits, *drawn[-1])):
                    break
        tokens, probs = zip(*drawn, strict=True)
        size = torch.full((1,), len(drawn), device=self.device)
        return Draft(torch.stack(tokens, dim=1), size, None if self._sampling.greedy else torch.stack(probs, dim=1))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the states of the tokens that are final, and the token after each."""
        if self._tokens.shape[1] == self._hidden.shape[1]:  # not right after the prompt, whose states are here already
            hidden = self._target.hidden(self._layers)[:, : n_accepted + 1]
            self._hidden = torch.cat([self._hidden, hidden], dim=1)
        self._tokens = torch.cat([self._tokens, to_device(committed, self.device)[None]], dim=1)

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> Tensor:
        """States (1, m, hidden) of positions from `length` on and the token after each -> the last one's output, (1, 1,
        hidden)"""
        n = tokens.shape[1]
        tokens = tokens.clamp(max=self.head.config.block.vocab_size - 1)  # a target may know more ids
        if length + n > self._keys.shape[2]:
            self._reserve(2 * (length + n), length)
        rotation = self._cos[:, length : length + n], self._sin[:, length : length + n]
        residual, queries, keys, values = self.head.project(states, tokens, rotation)
        self._keys[:, :, length : length + n] = keys
        self._values[:, :, length : length + n] = values
        mask = None
        if n > 1:  # row i reads column j while j <= length + i
            mask = torch.ones(n, length + n, dtype=torch.bool, device=self.device).tril_(length)
        attended = scaled_dot_product_attention(
            queries,
            self._keys[:, :, : length + n],
            self._values[:, :, : length + n],
            mask,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return self.head.finish(residual[:, -1:], attended[:, :, -1:])

    def of_target(self, logits: Tensor, vocab_size: int) -> Tensor:
        """The head's logits (n, draft vocabulary) -> (n, vocab_size); ids that the head lacks have no probability"""
        n_ids = max(vocab_size, self.head.config.block.vocab_size)
        if self.ids is not None or logits.shape[1] < n_ids:
            ids = torch.arange(logits.shape[1], device=logits.device) if self.ids is None else self.ids
            logits = logits.new_full((len(logits), n_ids), float("-inf")).index_copy_(1, ids, logits)
        return logits[:, :vocab_size]

    def _reserve(self, rows: int, length: int) -> None:
        """New buffers of so many rows with the first `length` of the old ones, and the rotations of their positions."""
        block, weight = self.head.config.block, self.head.fc.weight
        shape = (1, block.num_key_value_heads, rows, block.head_dim)
        buffers = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2)]
        if length:
            for new, old in zip(buffers, (self._keys, self._values), strict=True):
                new[:, :, :length] = old[:, :, :length]
        self._keys, self._values = buffers
        cos, sin = rotations(block, torch.arange(rows, device=weight.device))
        self._cos, self._sin = cos.to(weight.dtype), sin.to(weight.dtype)
