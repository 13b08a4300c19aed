"""Drafts with a head that proposes a block of tokens in one pass (speclab/drafts/heads/block.py).

Between rounds the head's keys and values hold the states that the target computed for the tokens that were committed
before the head's last draft. Newer states wait, and are read before the next one; those of rejected tokens are never
read. A block's own keys and values stand behind them during its pass alone.
"""

import torch
from torch import Tensor

from draft_models import as_draft, as_drawn
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Drawn, Sampling, draw_draft, to_device
from speclab.drafts.heads.block import BlockHead
from speclab.drafts.heads.drafter import HeadDrafter


class BlockDrafter(HeadDrafter):
    """Proposes at most as many tokens as the head's block has.

    The slots of a block read each other, so all are computed, even where fewer tokens are asked for: what is proposed
    does not depend on the draft length. A causal head's last slots are read by no other and left out.
    """

    head: BlockHead
    _anchor: Tensor | None  # (1,) the last committed token

    def __init__(self, head: BlockHead, ids: Tensor | None = None):
        super().__init__(head, ids)
        self.longest_draft = head.config.longest

    @property
    def room(self) -> int:
        """Return the largest number of tokens of a draft."""
        return self.longest_draft

    def length_notes(self, name: str, asked: list[int]) -> list[str]:
        """Return the lengths that are longer than a block."""
        longer = ",".join(str(k) for k in asked if k > self.longest_draft)
        return [f"{name} proposes at most {self.longest_draft} tokens; -k {longer} drafts no more"] if longer else []

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids; they are read in the first round."""
        super().prefill(target, prompt, sampling)
        self._anchor = None

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens, and not more than a block has. uniforms (1, k), in [0, 1).

        At a temperature above 0 each token's distribution is the whole row that it was drawn from, the Markov head's
        bias by the token before it included.
        """
        k = min(k, self.longest_draft)
        if k == 0:
            return as_draft([], self.device)
        assert self._anchor is not None
        drawn: list[Drawn] = []
        token = self._anchor
        with torch.inference_mode():
            self._read()
            logits = self.head.logits(self._block(k))  # (1, k, draft vocabulary)
            for i in range(k):
                row = self.as_target_logits(self.head.biased(logits[:, i], token), self._vocab_size)
                drawn.append(draw_draft(row, self._sampling, uniforms[:, i]))
                token = drawn[-1].token
        return as_drawn(drawn)

    @property
    def n_rows(self) -> int:
        """Return how many rows the input of most of its products has, in a draft."""
        return self.head.config.slots

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the states of the tokens that are final, and the last token."""
        if self._anchor is not None:  # not right after the prompt, whose states are here already
            hidden = self._target.hidden(self._layers)[:, : n_accepted + 1]
            self._hidden = torch.cat([self._hidden, hidden], dim=1)
        self._anchor = to_device(committed[-1:], self.device)

    def _read(self) -> None:
        """Make keys and values of the states that are not read yet."""
        length, n = self._length, self._hidden.shape[1]
        pairs = self.head.context(self.head.fuse(self._hidden), self._rotation(length, n))
        for i, (keys, values) in enumerate(pairs):
            self._keys[i, :, length : length + n] = keys[0]
            self._values[i, :, length : length + n] = values[0]
        self._length, self._hidden = length + n, self._hidden[:, :0]

    def _block(self, k: int) -> Tensor:
        """Return the states of the k tokens after the anchor, (1, k, hidden)."""
        config, length = self.head.config, self._length
        first = config.slots - config.longest  # the slot of the first of them
        n = first + k if config.causal else config.slots
        end = length + n
        rotation, mask = self._rotation(length, n), None
        if config.causal and n > 1:  # slot i reads column j while j <= length + i
            mask = torch.ones(n, end, dtype=torch.bool, device=self.device).tril_(length)

        def seen(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self._keys[layer, :, length:end], self._values[layer, :, length:end] = keys[0], values[0]
            return self._keys[layer : layer + 1, :, :end], self._values[layer : layer + 1, :, :end]

        assert self._anchor is not None
        states = self.head(self._anchor[:, None], rotation, mask, seen)  # (1, 1, n, hidden)
        return states[:, 0, first : first + k]
