"""Drafts with a head that reads the target's hidden states (speclab/drafts/heads/feature.py), one token a pass.

Between rounds the head's keys and values hold every committed token but those of the last round. The states that the
target computed for these (of its last committed token then, and of the accepted drafts; never of a rejected one) go in
together with the first pass of the next round, each with the token after it. Within a round the head's own output takes
the place of the states that the target has not computed yet; those keys and values are overwritten in the next round.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draft_models import as_draft
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling, draw_draft, to_device
from speclab.drafts.heads.feature import FeatureHead

SPARE = 512  # rows of new buffers beyond what is needed


class FeatureDrafter:
    """Proposes tokens one by one. The target's passes have to keep the outputs of `layers` (CachedModel.hidden_layers).

    ids: (draft vocabulary,) the target's id of each of the head's; None where they are the same.
    """

    def __init__(self, head: FeatureHead, ids: Tensor | None = None):
        self.head, self.ids, self.layers = head, ids, head.shape.layers
        self._keys, self._values = (self._buffer(0) for _ in range(2))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.fc.weight.device

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Read the target's states of the prompt, (1, prompt length) ids."""
        self._target, self._sampling, self._vocab_size = target, sampling, target.vocab_size
        self._hidden = target.hidden(self.layers)  # (1, rows, layers * width): not read yet
        self._tokens = prompt[:, 1:]  # (1, rows): the token after each; the last one's is not known yet
        self._length = 0  # rows of keys and values that stay

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens. uniforms (1, k), in [0, 1)."""
        if k == 0:
            return as_draft([], self.device)
        with torch.inference_mode():
            states = self.head.fuse(self._hidden)
            output = self._forward(states, self._tokens, self._length)
            self._length += self._tokens.shape[1]
            self._hidden, self._tokens = self._hidden[:, :0], self._tokens[:, :0]
            drawn = []
            for i in range(k):
                drawn.append(draw_draft(self._logits(output), self._sampling, uniforms[:, i]))
                if i + 1 < k:
                    output = self._forward(output, drawn[-1][0][:, None], self._length + i)
        tokens, probs = zip(*drawn, strict=True)
        ids = torch.stack(tokens, dim=1)
        return Draft(
            ids,
            torch.full((1,), k, device=self.device),
            None if self._sampling.greedy else torch.stack(probs, dim=1),
        )

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take over the states of the tokens that are final, and the token after each."""
        if self._tokens.shape[1] == self._hidden.shape[1]:  # not right after the prompt, whose states are here already
            self._hidden = torch.cat([self._hidden, self._target.hidden(self.layers)[:, : n_accepted + 1]], dim=1)
        self._tokens = torch.cat([self._tokens, to_device(committed, self.device)[None]], dim=1)

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> Tensor:
        """States (1, m, hidden) of positions from `length` on and the token after each -> the last one's output"""
        n = tokens.shape[1]
        self._reserve(length + n)
        positions = torch.arange(length, length + n, device=self.device)
        residual, queries, keys, values = self.head.project(states, tokens, positions)
        self._keys[:, :, length : length + n] = keys
        self._values[:, :, length : length + n] = values
        mask = None
        if n > 1:
            mask = torch.arange(length + n, device=self.device) <= positions[:, None]  # (m, length + m)
        attended = scaled_dot_product_attention(
            queries,
            self._keys[:, :, : length + n],
            self._values[:, :, : length + n],
            attn_mask=mask,
            enable_gqa=self.head.shape.heads != self.head.shape.key_heads,
        )
        return self.head.finish(residual[:, -1:], attended[:, :, -1:])

    def _logits(self, output: Tensor) -> Tensor:
        """(1, 1, hidden) -> (1, the target's vocabulary)"""
        logits = self.head.logits(output)[:, -1]
        if self.ids is None:
            return logits[:, : self._vocab_size]
        everything = logits.new_full((1, self._vocab_size), float("-inf"))
        return everything.index_copy_(1, self.ids, logits)

    def _reserve(self, rows: int) -> None:
        """Make room for so many rows; keep what is there."""
        old = self._keys.shape[2]
        if rows > old:
            keys, values = self._keys, self._values
            self._keys, self._values = (self._buffer(max(rows + SPARE, 2 * old)) for _ in range(2))
            self._keys[:, :, :old], self._values[:, :, :old] = keys, values

    def _buffer(self, rows: int) -> Tensor:
        """Keys or values: (1, key heads, rows, head size)"""
        shape = self.head.shape
        weight = self.head.fc.weight
        return torch.zeros(1, shape.key_heads, rows, shape.head_size, dtype=weight.dtype, device=weight.device)
