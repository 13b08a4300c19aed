"""Drafts with an MTP head (head.py), one token a pass.

What is read when is as with a feature head (speclab/drafts/feature.py): between rounds the head's cache holds the
target's states of what is final, each with the token after it, and nothing of a rejected token or of its own chain.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from speclab.core.rounds import Target
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter


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
        output = self.head.run(states, self._known(tokens), now[None] + 1, self._cache, (places <= now[:, None])[None])
        return output[:, -1:], self.head.logits(output[:, -1])

    def in_words(self) -> str:
        millions = sum(weight.numel() for weight in self.head.model.layers.parameters()) / 1e6
        return f"the target's own head for further tokens, one layer over its last state, {millions:.1f} M parameters"
