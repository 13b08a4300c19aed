"""The target's states, and what is likely after each position, for the rows that a draft learns from.

A pass of the target costs several times what a step of a draft costs, and each row is learned from more than once. So
what the target computed of a row stays: in files of the work folder, or in the memory of a GPU.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.rollout import target_pass
from training.recipes import Likely, Reading, likely
from training.room import Room
from training.work import readable, save_tensors

KEPT_AS = torch.bfloat16
USUAL_GIB = {"cpu": 8}  # of disk space, by the target's device
FEW_ROWS_AT_ONCE = 8  # of a pass
TOKENS_AT_ONCE = 16384  # of a pass on a GPU: 64 of the shortest rows
BYTES_OF_LOGIT = 16  # of float32: the logit, its exponential, and what sorting takes
OF_LOGITS = 1 / 6  # share of a GPU's memory for the logits of a pass


def reading(
    target: PreTrainedModel,
    layers: tuple[int, ...],
    ids: Tensor | None,
    folder: Path,
    gib: float | None,
    scale: Tensor | None = None,
    room: Room = Room(),
) -> Reading:
    """Return a function that gives the states of these layers, and what is likely after each position, of rows of ids.

    ids: the target's ids of the draft's, None where they are the same. folder: where it is kept. gib: the disk space
    for that, 0 for none; None: USUAL_GIB, or half of what is free if that is less, and on a GPU a third of its memory
    in the place of the disk. scale: (layers * hidden,) a factor of each dimension of the states. room: on the target's
    device.
    """
    in_memory = gib is None and room.is_wide
    store = InMemory(target.device, room.share) if in_memory else OnDisk(target, layers, folder, gib)
    kept = Kept(target, layers, store, room)
    table = None if ids is None else draft_ids(ids, target.config.get_text_config().vocab_size)

    def read(tokens: Tensor) -> tuple[Tensor, Likely]:
        states, found = kept(tokens)
        states = states if scale is None else states * scale
        return states, found if table is None else found._replace(ids=table[found.ids])

    return read


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


class Kept:
    """A reading in the target's ids that makes a pass once for each row, as long as there is room.

    States are rounded to bfloat16, whether a row is new or kept, and probabilities to float16.
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], store: "Store", room: Room = Room()):
        """store: keeps the rows. room: on the target's device."""
        self.target, self.layers, self.store, self.room = target, layers, store, room
        self.vocab = target.config.get_text_config().vocab_size

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> tuple[Tensor, Likely]:
        """Return what was computed: (batch, n) ids -> states (batch, n, layers * hidden), what is likely"""
        n = tokens.shape[1]
        names = [self.store.name(row) for row in tokens.cpu()]
        found = {name: self.store.get(name, n) for name in set(names)}
        rows = {name: row for name, row in found.items() if row is not None}
        new = {name: i for i, name in enumerate(names) if name not in rows}
        places = torch.tensor(list(new.values()), dtype=torch.long)
        for some in places.split(rows_at_once(self.room, n, self.vocab)) if new else ():
            computed = self._computed(tokens[some.to(tokens.device)])
            for i, *row in zip(some.tolist(), *computed, strict=True):
                rows[names[i]] = row
                self.store.put(names[i], row)
        as_used = (self.target.dtype, torch.float32, torch.int64)
        parts = zip(zip(*[rows[name] for name in names], strict=True), as_used, strict=True)
        device = self.target.device
        with torch.autocast(device.type, enabled=False):  # else it would choose the numbers of a stack
            states, probs, ids = (torch.stack(part).to(device, dtype) for part, dtype in parts)
        return states, Likely(probs, ids)

    def _computed(self, tokens: Tensor) -> list[Tensor]:
        with in_float32(self.target.device):
            hidden, logits = target_pass(self.target, tokens, self.layers)
            found = likely(logits.float())
        as_kept = (hidden, KEPT_AS), (found.probs, torch.float16), (found.ids, torch.int32)
        return [part.to(self.store.device, dtype) for part, dtype in as_kept]


class Store(Protocol):
    """Keeps what was computed of a row of n ids: states (n, layers * hidden), probabilities and ids (n, likely), in
    this order and on its device. room: the bytes that are left; what does not fit is not kept."""

    device: torch.device
    room: int

    def name(self, row: Tensor) -> Hashable:
        """Return a name that other ids do not have. row: (n,) ids, on the CPU"""

    def get(self, name: Any, n: int) -> list[Tensor] | None:
        """Return a row of n tokens, None where it is not there."""

    def put(self, name: Any, row: list[Tensor]) -> None:
        """Keep a row, where there is room."""


class InMemory:
    """Keeps rows in the memory of a device, for this process alone."""

    def __init__(self, device: torch.device, room: int):
        self.device, self.room = device, room
        self.rows: dict[bytes, list[Tensor]] = {}

    def name(self, row: Tensor) -> bytes:
        """Return the ids themselves, as bytes."""
        return row.numpy().tobytes()

    def get(self, name: bytes, n: int) -> list[Tensor] | None:
        """Return the row of this name; None where it was not kept."""
        return self.rows.get(name)

    def put(self, name: bytes, row: list[Tensor]) -> None:
        """Keep it without a copy: the rows of a pass share their memory, and all of them are kept but those of the last
        pass that finds room."""
        size = sum(part.nbytes for part in row)
        if size <= self.room:
            self.rows[name] = row
            self.room -= size


class OnDisk:
    """Keeps rows in files of a folder, also for the next training of the same work folder."""

    device = torch.device("cpu")

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], folder: Path, gib: float | None):
        """gib: the disk space that the folder may take; None: USUAL_GIB, or half of what is free if that is less."""
        self.layers, self.folder, self.config = layers, folder, target.config.get_text_config()
        folder.mkdir(parents=True, exist_ok=True)
        if gib is None:
            gib = min(USUAL_GIB.get(target.device.type, 0), shutil.disk_usage(folder).free / 2**31)
        self.room = int(gib * 2**30) - sum(file.stat().st_size for file in folder.iterdir())

    def name(self, row: Tensor) -> str:
        """Return a name that other ids, layers and numbers of likely tokens do not have."""
        content = f"{self.layers} {row.tolist()}".encode()
        return hashlib.sha256(content).hexdigest()[:32]

    def put(self, name: str, row: list[Tensor]) -> None:
        """Write it into a file, where there is room."""
        size = sum(part.nbytes for part in row)
        if size <= self.room:
            save_tensors(self._file(name), [part.clone() for part in row])
            self.room -= size

    def get(self, name: str, n: int) -> list[Tensor] | None:
        """Read a row. Raises EnvironmentProblem where the file does not hold one of n tokens of this target."""
        file = self._file(name)
        if not file.exists():
            return None
        with readable(file):
            row: Any = torch.load(file, weights_only=True)
            states, probs, ids = row
            kinds = [KEPT_AS, torch.float16, torch.int32]
            width = len(self.layers) * self.config.hidden_size
            if [part.dtype for part in row] != kinds or states.shape != (n, width):
                raise ValueError("it does not hold the states of a row")
            if (
                probs.shape != ids.shape
                or probs.shape[:1] != (n,)
                or not 0 <= ids.min() <= ids.max() < self.config.vocab_size
            ):
                raise ValueError("it does not hold what is likely in a row")
        return row

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.pt"
