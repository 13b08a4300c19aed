"""Drafts with a head that proposes a block of tokens in one pass (speclab/extensions/blocks/head.py).

Between rounds the head's keys and values hold the states that the target computed for the tokens that were committed
before the head's last draft. Newer states wait, and are read before the next one; those of rejected tokens are never
read. A block's own keys and values stand behind them during its pass alone.
"""

import torch
from torch import Tensor

from draft_models import as_draft, as_drawn
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Drawn, Sampling, draw_draft, to_device
from speclab.drafts.feature import HeadDrafter
from speclab.drafts.heads.parts import appended
from speclab.extensions.blocks.head import BlockHead


class BlockDrafter(HeadDrafter):
    """Proposes at most as many tokens as the head's block has.

    The slots of a block read each other, so all are computed, even where fewer tokens are asked for: what is proposed
    does not depend on the draft length.
    """

    head: BlockHead

    def __init__(self, head: BlockHead, ids: Tensor | None = None):
        super().__init__(head, ids)
        self.longest_draft = head.config.longest

    @property
    def room(self) -> int:
        return self.longest_draft

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._anchor = prompt[0, :0]  # (1,), the last committed token; it comes with `observe`

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens, and not more than a block has, each from its whole row, with the Markov head's
        bias by the token before it. uniforms (1, k), in [0, 1)."""
        k = min(k, self.longest_draft)
        if k == 0:
            return as_draft([], self.device)
        drawn: list[Drawn] = []
        token = self._anchor
        with torch.inference_mode():
            logits = self._logits()
            for i in range(k):
                row = self.as_target_logits(self.head.biased(logits[:, i], token), self._vocab_size)
                drawn.append(draw_draft(row, self._sampling, uniforms[:, i]))
                token = drawn[-1].token.clamp(min=0)
        return as_drawn(drawn)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        if len(self._anchor):  # not right after the prompt, whose states are here already
            self._take_states(n_accepted + 1)
        self._anchor = to_device(committed[-1:], self.device)

    def _logits(self) -> Tensor:
        """Read the states that are not read yet, and run a block from the anchor on -> the logits of the tokens after
        it, (1, n, draft vocabulary), without the Markov bias."""
        head, start, n = self.head, self._length, self._hidden.shape[1]
        (cos, block_cos), (sin, block_sin) = (
            part.split([n, head.config.slots], dim=1) for part in self._rotation(start, n + head.config.slots)
        )
        buffers = list(zip(self._keys, self._values, strict=True))  # of each layer
        for of_layer, pair in zip(buffers, head.context(self._hidden, (cos, sin)), strict=True):
            appended(of_layer, pair, start)
        self._length, self._hidden = start + n, self._hidden[:, :0]

        def seen(layer: int, *own: Tensor) -> list[Tensor]:
            return appended(buffers[layer], own, self._length)

        return head.logits(head(self._anchor[:, None], (block_cos, block_sin), None, seen)[:, 0])

    # --- trees: slot d says what comes after any token of depth d (speclab/extensions/trees/growing.py) ---------------

    @property
    def drafter(self) -> Drafter:
        return self

    def start_tree(self) -> Tensor:
        self._slots = self._logits()  # (1, longest, draft vocabulary)
        return self.grow(self._anchor, None, None, 0)

    def grow(self, tokens: Tensor, parents: Tensor | None, reads: Tensor | None, depth: int) -> Tensor:
        """Return the logits after each of these (m,), (m, the target's vocabulary): no pass, one slot serves all."""
        logits = self._slots[:, depth].expand(len(tokens), -1)
        return self.as_target_logits(self.head.biased(logits, tokens), self._vocab_size)

    def end_tree(self) -> None:
        """Do nothing: a block leaves nothing behind."""
