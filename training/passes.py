"""The target's states, and what is likely after each position, for the rows that a draft learns from.

A pass of the target costs several times what a step of a draft costs, and each row is learned from more than once. So
what the target computed of a row stays in the memory of its device, as long as there is room.
"""

import contextlib

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.feature import target_pass
from speclab.models.memory import free_memory
from training.recipes import Likely, likely
from training.steps import at_once

KEPT_AS = (torch.bfloat16, torch.float16, torch.int32)  # states, probabilities, ids
KEPT = 1 / 3  # share of the free memory for what is kept
FEW_ROWS, TOKENS_AT_ONCE = 8, 16384  # of a pass: rows on a CPU, tokens on a GPU
BYTES_OF_LOGIT = 16  # of float32: the logit, its exponential, and what sorting takes


class Passes:
    """A `Reading` that makes a pass once for each row, as long as there is room.

    States are rounded to bfloat16, whether a row is new or kept, and probabilities to float16. ids: the target's ids of
    the draft's, None where they are the same. scale: (layers * hidden,) a factor of each dimension of the states.
    """

    def __init__(
        self, target: PreTrainedModel, layers: tuple[int, ...], ids: Tensor | None = None, scale: Tensor | None = None
    ):
        self.target, self.layers, self.scale = target, layers, scale
        self.vocab, self.table = target.config.get_text_config().vocab_size, None
        if ids is not None:  # the draft's id of each of the target's, -1 where it has none
            self.table = torch.full((self.vocab,), -1, device=ids.device)
            self.table[ids] = torch.arange(len(ids), device=ids.device)
        self.left = int(KEPT * (free_memory(target.device) or 0))  # bytes
        self.rows = dict[bytes, list[Tensor]]()  # what was computed, by the row's ids

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> tuple[Tensor, Likely]:
        """Return what was computed: (batch, n) ids -> states (batch, n, layers * hidden), what is likely"""
        names = [row.numpy().tobytes() for row in tokens.cpu()]
        found = {name: self.rows[name] for name in set(names) & self.rows.keys()}
        new = {name: i for i, name in enumerate(names) if name not in found}
        places, length = torch.tensor(list(new.values()), dtype=torch.long), tokens.shape[1]
        size = BYTES_OF_LOGIT * self.vocab * length
        n_rows = at_once(self.target.device, FEW_ROWS, TOKENS_AT_ONCE // length, size)
        for some in places.split(n_rows) if new else ():
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
        # A GPU makes passes in float32: logits of bfloat16 would be too coarse to learn from.
        on_gpu = self.target.device.type == "cuda"
        with torch.autocast("cuda", enabled=False) if on_gpu else contextlib.nullcontext():
            hidden, logits = target_pass(self.target, tokens, self.layers)
            found = likely(logits.float())
        return [part.to(dtype) for part, dtype in zip((hidden, *found), KEPT_AS, strict=True)]
