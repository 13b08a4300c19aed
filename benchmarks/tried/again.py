"""Draft again while the draft is sure (DLoop, arXiv 2610.07659): a second block behind the first, before verification.

The head has learned blocks of its own length, begun where the target has computed all states before. Behind a whole
block there are none yet. Three ways to draft there:

- longer: one pass with more mask slots than the head was trained with
- gap: a second pass from the last drafted token on; the first block's places stay empty
- own: the same, and the second pass also reads the first one's own keys and values

A gate decides: the second block is drafted where the first one's summed log-probability is above it. Every drafted
token is submitted, and the gate sees only tokens that were drafted before, so the text stays the target's.
"""

import math

import torch
from torch import Tensor

from draft_models import as_draft, as_drawn
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft
from speclab.core.sampling import Drawn, draw_draft, probability
from speclab.drafts.block import BlockDrafter
from speclab.models.setup import Setup

WAYS = ("longer", "gap", "own")
GATES = (0.0, 0.3, 0.6)  # probabilities of a whole block; 0 drafts the second one always


class AgainDrafter(BlockDrafter):
    """Proposes up to two blocks. n_passes: of the head, in all rounds."""

    def __init__(self, head, ids=None, way: str = "gap", gate: float = 0.0):
        """gate: the probability of a whole block above which a second one is drafted; 0: always, 1: never."""
        super().__init__(head, ids)
        self.way, self.gate, self.n_passes = way, gate, 0
        self.longest_draft = 2 * head.config.longest

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens. uniforms (1, k), in [0, 1)."""
        k = min(k, self.longest_draft)
        if k == 0:
            return as_draft([], self.device)
        drawn: list[Drawn] = []
        length, first = self.head.config.longest, self._anchor
        assert first is not None
        with torch.inference_mode():
            new, self._hidden = self._hidden, self._hidden[:, :0]
            self._read(new)
            slots = 2 * length if self.way == "longer" and k > length else length
            logits = self._block(first, self._length, self._length, slots)
            chance = self._draw(logits[:, :length], first, drawn, k, uniforms)
            if k > length and chance > math.log(self.gate or 1e-30) and self.gate < 1:
                last = drawn[-1].token
                if self.way == "longer":
                    self._draw(logits[:, length:], last, drawn, k, uniforms)
                else:
                    reads = self._length + (length if self.way == "own" else 0)
                    more = self._block(last, self._length + length, reads, length)
                    self._draw(more, last, drawn, k, uniforms)
        return as_drawn(drawn)

    def _draw(self, logits: Tensor, before: Tensor, drawn: list[Drawn], k: int, uniforms: Tensor) -> float:
        """Draw the tokens of a block.  -> the logarithm of the probability that the head gives them all"""
        chance = 0.0
        for i in range(min(logits.shape[1], k - len(drawn))):
            row = self.as_target_logits(self.head.biased(logits[:, i], before), self._vocab_size)
            drawn.append(draw_draft(row, self._sampling, uniforms[:, len(drawn)]))
            before = drawn[-1].token
            chance += math.log(max(1e-30, probability(row, drawn[-1])))
        return chance

    def _read(self, hidden: Tensor) -> None:
        """Read what the target gave for tokens that are final, (1, m, layers * width)."""
        rotation = self._rotation(self._length, hidden.shape[1])
        pairs = self.head.context(self.head.fuse(hidden), rotation)
        self._write(self._length, pairs)
        self._length += hidden.shape[1]

    def _write(self, begin: int, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for layer, pair in enumerate(pairs):
            for rows, part in zip((self._keys[layer], self._values[layer]), pair, strict=True):
                rows[begin : begin + part.shape[2]] = part[0].transpose(0, 1)

    def _block(self, anchor: Tensor, position: int, reads: int, slots: int) -> Tensor:
        """Run a block of so many slots from an anchor, (1,), at this position on.  -> logits, without the Markov bias

        reads: rows of keys and values that it reads beside its own.
        """
        self.n_passes += 1
        rotation = self._rotation(position, slots)

        def seen(layer: int, *own: Tensor) -> tuple[Tensor, Tensor]:
            for rows, part in zip((self._keys[layer], self._values[layer]), own, strict=True):
                rows[position : position + slots] = part[0].transpose(0, 1)
            keys, values = (rows[:reads].transpose(0, 1)[None] for rows in (self._keys[layer], self._values[layer]))
            return torch.cat([keys, own[0]], dim=2), torch.cat([values, own[1]], dim=2)

        return self.head.logits(self.head(anchor[:, None], rotation, None, seen)[:, 0])


def arms(setup: Setup, block: BlockDrafter) -> dict[str, tuple[Drafter, int]]:
    """Return the drafters of this method by name, each with its draft length."""
    n = block.head.config.longest
    found: dict[str, tuple[Drafter, int]] = {"block": (AgainDrafter(block.head, block.ids), n)}
    for way in WAYS:
        for gate in GATES:
            name = f"{way}, gate {gate:g}"
            found[name] = (AgainDrafter(block.head, block.ids, way, gate), 2 * n)
    return found
