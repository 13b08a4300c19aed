"""The target's states, and what is likely after each position, for the rows that a draft learns from.

A pass of the target costs several times what a step of a draft costs, and each row is learned from more than once. So
what the target computed of a row stays in the work folder.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.rollout import target_pass
from speclab.lab.training.recipes import Likely, Reading, likely
from training.work import readable, save_tensors

KEPT_AS = torch.bfloat16
USUAL_GIB = {"cpu": 8}  # by the target's device; elsewhere its pass is fast
ROWS_AT_ONCE = 8


def reading(
    target: PreTrainedModel,
    layers: tuple[int, ...],
    ids: Tensor | None,
    folder: Path,
    gib: float | None,
    scale: Tensor | None = None,
) -> Reading:
    """Return a function that gives the states of these layers, and what is likely after each position, of rows of ids.

    ids: the target's ids of the draft's, None where they are the same. folder: where it is kept. gib: the disk space
    for that, 0 for none; None: USUAL_GIB, or half of what is free if that is less. scale: (layers * hidden,) a factor
    of each dimension of the states.
    """
    if gib is None:
        folder.mkdir(parents=True, exist_ok=True)
        gib = min(USUAL_GIB.get(target.device.type, 0), shutil.disk_usage(folder).free / 2**31)
    kept = Kept(target, layers, folder, int(gib * 2**30))
    table = None if ids is None else draft_ids(ids, target.config.get_text_config().vocab_size)

    def read(tokens: Tensor) -> tuple[Tensor, Likely]:
        states, found = kept(tokens)
        states = states if scale is None else states * scale
        return states, found if table is None else found._replace(ids=table[found.ids])

    return read


def draft_ids(ids: Tensor, vocab: int) -> Tensor:
    """Return the draft's id of each of the target's, -1 where it has none: (vocab,). ids: (draft vocabulary,)"""
    table = torch.full((vocab,), -1, device=ids.device)
    table[ids] = torch.arange(len(ids), device=ids.device)
    return table


class Kept:
    """A reading in the target's ids that makes a pass once for each row, as long as there is room.

    States are rounded to bfloat16, whether a row is new or kept, and probabilities to float16.
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], folder: Path, room: int):
        """room: bytes that the folder may take."""
        self.target, self.layers, self.folder = target, layers, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.room = room - sum(file.stat().st_size for file in folder.iterdir())

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> tuple[Tensor, Likely]:
        """Return what was computed: (batch, n) ids -> states (batch, n, layers * hidden), what is likely"""
        files = [self.folder / f"{self._name(row)}.pt" for row in tokens.cpu()]
        rows = {file: self._loaded(file, tokens.shape[1]) for file in set(files) if file.exists()}
        new = [i for i, file in enumerate(files) if file not in rows]
        for some in torch.tensor(new).split(ROWS_AT_ONCE) if new else ():
            computed = self._computed(tokens[some.to(tokens.device)])
            for i, *row in zip(some.tolist(), *computed, strict=True):
                rows[files[i]] = row
                self._keep(files[i], row)
        as_used = (self.target.dtype, torch.float32, torch.int64)
        parts = zip(zip(*[rows[file] for file in files], strict=True), as_used, strict=True)
        states, probs, ids = (torch.stack([x.to(dtype) for x in part]).to(self.target.device) for part, dtype in parts)
        return states, Likely(probs, ids)

    def _computed(self, tokens: Tensor) -> list[Tensor]:
        hidden, logits = target_pass(self.target, tokens, self.layers)
        found = likely(logits.float())
        return [hidden.to("cpu", KEPT_AS), found.probs.to("cpu", torch.float16), found.ids.to("cpu", torch.int32)]

    def _keep(self, file: Path, row: list[Tensor]) -> None:
        size = sum(part.nbytes for part in row)
        if size <= self.room:
            save_tensors(file, [part.clone() for part in row])
            self.room -= size

    def _name(self, row: Tensor) -> str:
        """Return a name that other ids, layers and numbers of likely tokens do not have."""
        content = f"{self.layers} {row.tolist()}".encode()
        return hashlib.sha256(content).hexdigest()[:32]

    def _loaded(self, file: Path, n: int) -> list[Tensor]:
        """Read a row. Raises EnvironmentProblem where the file does not hold one of n tokens of this target."""
        config = self.target.config.get_text_config()
        with readable(file):
            row: Any = torch.load(file, weights_only=True)
            states, probs, ids = row
            kinds = [KEPT_AS, torch.float16, torch.int32]
            if [part.dtype for part in row] != kinds or states.shape != (n, len(self.layers) * config.hidden_size):
                raise ValueError("it does not hold the states of a row")
            if (
                probs.shape != ids.shape
                or probs.shape[:1] != (n,)
                or not 0 <= ids.min() <= ids.max() < config.vocab_size
            ):
                raise ValueError("it does not hold what is likely in a row")
        return row
