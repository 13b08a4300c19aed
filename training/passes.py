"""The target's states, and what is likely after each position, for the rows that a draft learns from.

A pass of the target costs several times what a step of a draft costs, and each row is learned from more than once. So
what the target computed of a row stays in the memory of its device, as long as there is room.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.rollout import target_pass
from training.recipes import Likely, likely
from training.room import Room

KEPT_AS = (torch.bfloat16, torch.float16, torch.int32)  # states, probabilities, ids
FEW_ROWS_AT_ONCE = 8  # of a pass
TOKENS_AT_ONCE = 16384  # of a pass on a GPU: 64 of the shortest rows
BYTES_OF_LOGIT = 16  # of float32: the logit, its exponential, and what sorting takes
OF_LOGITS = 1 / 6  # share of a GPU's memory for the logits of a pass


def rows_at_once(room: Room, length: int, vocab: int) -> int:
    """Return the number of rows of this length that a pass of the target reads, at least one. vocab: the target's."""
    if not room.is_wide:
        return FEW_ROWS_AT_ONCE
    return room.fitting(TOKENS_AT_ONCE // length, BYTES_OF_LOGIT * vocab * length, OF_LOGITS)


@contextlib.contextmanager
def in_float32(device: torch.device) -> Iterator[None]:
    """While this is open, a GPU makes passes in float32, with products in TF32: states are rounded further than that,
    and logits of bfloat16 would be too coarse to learn from. On a CPU the precision stays that of the training."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def draft_ids(ids: Tensor, vocab: int) -> Tensor:
    """Return the draft's id of each of the target's, -1 where it has none: (vocab,). ids: (draft vocabulary,)"""
    table = torch.full((vocab,), -1, device=ids.device)
    table[ids] = torch.arange(len(ids), device=ids.device)
    return table


class Passes:
    """A `Reading` that makes a pass once for each row, as long as there is room.

    States are rounded to bfloat16, whether a row is new or kept, and probabilities to float16.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        layers: tuple[int, ...],
        room: Room,
        ids: Tensor | None = None,
        scale: Tensor | None = None,
    ):
        """room: on the target's device; a third of it is for what is kept. ids: the target's ids of the draft's, None
        where they are the same. scale: (layers * hidden,) a factor of each dimension of the states."""
        self.target, self.layers, self.room, self.scale = target, layers, room, scale
        self.vocab = target.config.get_text_config().vocab_size
        self.table = None if ids is None else draft_ids(ids, self.vocab)
        self.left, self.rows = room.share, dict[bytes, list[Tensor]]()  # bytes; what was computed, by the row's ids

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> tuple[Tensor, Likely]:
        """Return what was computed: (batch, n) ids -> states (batch, n, layers * hidden), what is likely"""
        names = [row.numpy().tobytes() for row in tokens.cpu()]
        found = {name: self.rows[name] for name in set(names) & self.rows.keys()}
        new = {name: i for i, name in enumerate(names) if name not in found}
        places = torch.tensor(list(new.values()), dtype=torch.long)
        for some in places.split(rows_at_once(self.room, tokens.shape[1], self.vocab)) if new else ():
            for i, *row in zip(some.tolist(), *self._computed(tokens[some.to(tokens.device)]), strict=True):
                found[names[i]] = row
                size = sum(part.nbytes for part in row)
                if size <= self.left:  # rows of a pass share their memory
                    self.rows[names[i]], self.left = row, self.left - size
        with torch.autocast(self.target.device.type, enabled=False):  # else it would choose the numbers of a stack
            states, probs, ids = (torch.stack(part) for part in zip(*(found[name] for name in names), strict=True))
        states, ids = states.to(self.target.dtype), ids.long()
        states = states if self.scale is None else states * self.scale
        return states, Likely(probs.float(), ids if self.table is None else self.table[ids])

    def _computed(self, tokens: Tensor) -> list[Tensor]:
        with in_float32(self.target.device):
            hidden, logits = target_pass(self.target, tokens, self.layers)
            found = likely(logits.float())
        return [part.to(dtype) for part, dtype in zip((hidden, *found), KEPT_AS, strict=True)]
