"""The engine `c`: a whole pass in one call of pass.c, with the model's weights packed as that file reads them.

Keys and values of a text lie in pages. A text that grows gets another page, and nothing is copied. Rolling back is
free: rows behind the text's length are never read, and the next pass overwrites them.
"""

import ctypes
import re
import sys
from collections.abc import Iterable
from ctypes import c_float, c_int, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from speclab.engines.library import SOURCE, library
from speclab.engines.parts import Parts
from speclab.models.family import NoFastBackend

FLOAT32, BFLOAT16, INT8, INT4 = range(4)
GROUP = 32  # columns that share a scale, in the formats of GGUF files
AT_ONCE = 256  # tokens of one call: a longer prompt is several
SAMPLE = 16  # rows that are looked at before a whole matrix
EXACT = 1e-6  # of the largest weight of a group: float32 arithmetic, not another number
ANGLES = 4096  # positions of the first table of angles


def structs() -> dict[str, Any]:
    """Return the structs that pass.c shares with Python, read from that file, where alone they are written down."""
    types: dict[str, Any] = {"int": c_int, "float": c_float}
    text = re.sub(r"/\*.*?\*/|\bconst\b", "", SOURCE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{([^}]*)\}\s*(Norm|Matrix|Layer|Model|Pass);", text):
        fields = []
        for line in filter(str.strip, body.split(";")):
            kind, names = line.split(None, 1)
            fields += [(one.strip(" *\n"), c_void_p if "*" in one else types[kind]) for one in names.split(",")]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types


STRUCTS = structs()
Norm, Matrix, Layer, Model, Pass = (STRUCTS[name] for name in ("Norm", "Matrix", "Layer", "Model", "Pass"))
MATRICES = [name for name, kind in Layer._fields_ if kind is Matrix]


class Stored(NamedTuple):
    """A matrix in the shortest numbers that hold its weights up to float32's own rounding: number * scale + low.
    group: columns that share a scale. numbers: (rows, columns). scale, low: (rows, groups) or None."""

    kind: int
    group: int
    numbers: Tensor
    scale: Tensor | None = None
    low: Tensor | None = None

    @property
    def bytes_spared(self) -> int:
        numbers = self.numbers.nbytes // (2 if self.kind == INT4 else 1)  # two in a byte
        return 4 * self.numbers.numel() - numbers - sum(part.nbytes for part in self[3:] if part is not None)


def stored(weight: Tensor) -> Stored:
    """Find short numbers for (rows, columns) float32 weights, up to float32's own rounding: bfloat16, or whole numbers
    of 8 or 4 bits with a scale for each group of columns, as GGUF files and rounded models have them; else float32."""
    n = weight.shape[1]
    if n % 2 == 0 and torch.equal(weight.bfloat16().float(), weight):
        return Stored(BFLOAT16, n, weight.bfloat16())
    for group in (GROUP, n):
        if n % group == 0 and group % 4 == 0 and (found := in_steps(weight.unflatten(1, (-1, group)), [127], True)):
            return Stored(INT8, group, found[0].flatten(1).to(torch.int8), found[1][..., 0])
    if n % GROUP == 0 and (found := in_steps(weight.unflatten(1, (-1, GROUP)), list(range(15, 0, -1)), False)):
        return Stored(INT4, GROUP, found[0].flatten(1).to(torch.uint8), found[1][..., 0], found[2][..., 0])
    return Stored(FLOAT32, n, weight)


def in_steps(groups: Tensor, counts: list[int], around_zero: bool) -> tuple[Tensor, Tensor, Tensor] | None:
    """Find equal steps on which the numbers of each group lie, (rows, groups, columns): from zero to the largest, or
    from the lowest to the highest, for one of these counts of steps.  -> numbers, step and lowest of each group; None
    where a group does not lie on such steps. A few rows are looked at first."""
    if len(groups) > SAMPLE and in_steps(groups[:SAMPLE], counts, around_zero) is None:
        return None
    low, high = groups.aminmax(dim=-1, keepdim=True)
    largest = torch.maximum(low.abs(), high.abs())
    if around_zero:
        low, high = torch.zeros_like(low), largest
    step, known = torch.ones_like(low), torch.zeros_like(low, dtype=torch.bool)
    for n in counts:
        tried = ((high - low) / n).clamp(min=1e-30)
        exact = (((groups - low) / tried).round() * tried + low - groups).abs() <= EXACT * largest
        fits = exact.all(-1, keepdim=True) & ~known
        step, known = torch.where(fits, tried, step), known | fits
        if known.all():
            return ((groups - low) / step).round(), step, low
    return None


class CModel:
    """A model, or a draft's head, as pass.c reads it.

    name: of the engine, for users. page: tokens of a page. largest_window: the most tokens that a layer with a window
    reads, 0 where all read all. kinds: of its weights, bit by bit. bytes_spared: of the weights, which a pass does not
    read, as it reads them in fewer bytes than their dtype has.

    parts: packed matrices leave them one by one, so that the weights are held once more and not twice.
    most_positions: that a text may have.
    """

    name = "c"

    def __init__(self, parts: Parts, most_positions: int | None = None):
        embeddings, places, layers = parts["embeddings"], parts.get("places"), parts["layer"]
        if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in (embeddings, parts["head"][0])):
            raise NoFastBackend("the engine c is made for float32 on a CPU")
        self.hidden, self.ids, self._gated = embeddings.shape[1], len(parts["head"][0]), parts.setdefault("gated", True)
        self.places = None if places is None else len(places)
        self.most_positions, self.angles, self.kept = most_positions or sys.maxsize, parts["angles"], []
        self.rotary = [layer.get("rotary") for layer in layers]
        self._windows = [layer.get("window") or 0 for layer in layers]
        self.largest_window = max(self._windows)
        owners = [*((layer, name) for layer in layers for name in MATRICES), (parts, "head")]
        for owner, name in owners:
            weight, bias = owner[name]
            owner[name] = stored(weight.detach()), bias
        self.bytes_spared = sum(owner[name][0].bytes_spared for owner, name in owners)
        self.kinds = sum({1 << owner[name][0].kind for owner, name in owners})
        self.library = library(self.kinds)
        for name in ("page_floats", "floats_needed"):
            getattr(self.library, name).restype = ctypes.c_long
        self.lanes, self.page = self.library.lanes(), self.library.page_tokens()
        self.layers = (Layer * len(layers))(*(self._struct(Layer, layer) for layer in layers))
        parts |= {"layers": len(layers), "hidden": self.hidden, "ids": self.ids, "known": len(embeddings)}
        self.model = self._struct(Model, parts | {"layer": None})
        self.model.layer = ctypes.addressof(self.layers)
        self.page_floats = self.library.page_floats(ctypes.byref(self.model))
        self._scratch, self._tables, self._reached = torch.empty(0), torch.empty(2, 0), 0

    def cut_windows(self, most: int) -> None:
        """Let layers with a sliding window read so many tokens at most."""
        for layer, window in zip(self.layers, self._windows, strict=True):
            layer.window = min(window, most)

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Nothing to do: any width and length runs."""

    def start(self, hidden_layers: Iterable[int] = ()) -> "CBackend":
        return CBackend(self, hidden_layers)

    def _address(self, tensor: Tensor | None) -> int | None:
        """Return where the numbers of a tensor are kept."""
        if tensor is None:
            return None
        self.kept.append(tensor.detach().contiguous())
        return self.kept[-1].data_ptr()

    def _struct(self, of: Any, parts: Parts) -> Any:
        """Make a struct of pass.c from the parts with the names of its fields."""
        made = of()
        for name, kind in of._fields_:
            if (value := parts.pop(name, None)) is None:
                continue
            if kind is Matrix:
                found, bias = value
                value = self._matrix(found, bias, 2 if name == "up" and self._gated else 1)
            elif kind is Norm:
                value = Norm(*map(self._address, value))
            else:
                value = self._address(value) if kind is c_void_p else kind(value)
            setattr(made, name, value)
        return made

    def _matrix(self, found: Stored, bias: Tensor | None, halves: int) -> Any:
        kind, group, numbers, scale, low = found

        def blocks(part: Tensor) -> Tensor:
            """(rows, n) -> (blocks, n, L), the rows that are missing filled up; two halves in turns."""
            each = part.unflatten(0, (halves, -1))
            each = nn.functional.pad(each, (0, 0, 0, -each.shape[1] % self.lanes)).unflatten(1, (-1, self.lanes))
            return each.transpose(0, 1).flatten(0, 1).transpose(1, 2)

        columns = numbers.shape[1]
        if kind == INT4:
            numbers = numbers[:, ::2] | numbers[:, 1::2] << 4
        words = numbers.contiguous().view(torch.int32)  # (rows, words), the first column in the lowest bits
        rest = (scale, low, None if bias is None else bias.detach()[:, None])
        return Matrix(kind, columns, group, *(self._address(None if x is None else blocks(x)) for x in (words, *rest)))

    def reach(self, n: int) -> None:
        """Make the angles of the first n positions, and of some more, where they are not there yet."""
        if n <= self._reached or not self.angles:
            return
        self._reached = max(n, min(self.most_positions, max(ANGLES, 2 * self._reached)))
        places = torch.arange(self._reached)
        with torch.inference_mode():
            self._made = [angles(places) for angles in self.angles]
        self.model.turned = 2 * self._made[0][0].shape[1]
        for layer, number in zip(self.layers, self.rotary, strict=True):
            if number is not None:
                layer.cosines, layer.sines = (part.data_ptr() for part in self._made[number])

    def tables(self, n: int) -> tuple[int, int]:
        """Return the addresses of n zeros and of the numbers 0, 1, 2, ..., at least n of them, as pass.c reads them."""
        if self._tables.shape[1] < n:
            numbers = torch.arange(2 * n, dtype=torch.int32)
            self._tables = torch.stack([torch.zeros_like(numbers), numbers])
        return self._tables.data_ptr(), self._tables[1].data_ptr()

    def run(self, given: Any, n_tokens: int, n_logits: int, states: dict[int, Tensor], chain: tuple = ()) -> Tensor:
        """Make a pass of so many tokens.  -> (1, n_logits, ids) logits. given: what pass.c needs beside them. states:
        of layers, (1, n_tokens, hidden) each, which are written. chain: see `CBackend.chain`."""
        needed = self.library.floats_needed(ctypes.byref(self.model), n_tokens)
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed)
        logits = torch.empty(1, n_logits, -(-self.ids // self.lanes) * self.lanes)  # whole registers
        outputs = (c_void_p * len(self.layers))()
        for layer, out in states.items():
            outputs[layer] = out.data_ptr()
        given.model, given.m, given.scratch = ctypes.addressof(self.model), n_tokens, self._scratch.data_ptr()
        given.logits, given.n_logits, given.outputs = logits.data_ptr(), n_logits, ctypes.addressof(outputs)
        call, threads = ctypes.byref(given), torch.get_num_threads()
        if chain:
            n_ids, *places = chain
            addresses = (c_void_p(part.data_ptr()) for part in places)
            known = self.library.chain(call, threads, len(places[0]), n_ids, *addresses)
        else:
            known = self.library.forward(call, threads)
        if not known:
            raise IndexError(f"an id of this pass is not among the {self.model.known} that have an embedding")
        return logits[..., : self.ids]


class Text:
    """The pages of one text, and their addresses."""

    def __init__(self, model: CModel):
        self._model, self.pages, self.addresses = model, [], (c_void_p * 16)()

    def reserve(self, n: int) -> None:
        while len(self.pages) * self._model.page < n:
            if len(self.pages) == len(self.addresses):
                self.addresses = (c_void_p * (2 * len(self.pages)))(*self.addresses)
            self.pages.append(torch.zeros(self._model.page_floats))
            self.addresses[len(self.pages) - 1] = self.pages[-1].data_ptr()

    def move(self, rows: list[int], start: int) -> None:
        """Move the keys and values of these rows to `start` and the rows after it."""
        for to, row in enumerate(rows, start):
            self._model.library.move(ctypes.byref(self._model.model), self.addresses, row, to)


class CBackend:
    """A model on the engine `c` at work on one text."""

    n_replays = n_single = 0

    def __init__(self, model: CModel, hidden_layers: Iterable[int] = ()):
        self._model, self._hidden_layers = model, tuple(hidden_layers)
        self.hidden: dict[int, Tensor] = {}
        self.text, self._given, self.layers = Text(model), Pass(), range(len(model.layers))

    def prefill(self, prompt: Tensor) -> Tensor:
        return self.read(prompt, 0, only_last=True)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        return self.read(tokens, length)

    step = forward

    def chain(self, tokens: Tensor, length: int, k: int, n_ids: int) -> tuple[Tensor, Tensor]:
        """Run k passes: over (1, m) ids after `length` tokens, then over the most probable one of the first `n_ids`
        after the pass before.  -> (k,) these ids and (k,) their logits, not finite where a logit is no number"""
        found = torch.empty(k, dtype=torch.long), torch.empty(k)
        self.run(tokens, None, length, self.layers, (), 1, chain=(n_ids, *found))
        return found

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """Do the same as `forward`, but each token has its position (1, m), and the mask (1, 1, m, length + m) says
        what it reads."""
        masked = positions[0].int(), (mask[0, 0] == 0).contiguous()
        return self.run(tokens, None, length, self.layers, self._hidden_layers, tokens.shape[1], masked)

    def keep(self, length: int, rows: Tensor) -> None:
        """Keep these rows, (n,), of the last pass: they move to the front of the rows behind `length`, and their hidden
        states move with them."""
        self.text.move([length + row for row in rows.tolist()], length)
        self.hidden = {layer: states[:, rows] for layer, states in self.hidden.items()}

    def crop(self, n_tokens: int, length: int) -> None:
        """Do nothing: rows after the length are never read."""

    def read(self, tokens: Tensor, length: int, states: Tensor | None = None, only_last: bool = False) -> Tensor:
        """Run all layers over (1, m) ids after `length` tokens -> (1, m, vocab) logits, or those of the last token.
        states: (1, m, hidden), which a draft's head reads beside the ids."""
        logits, hidden, n = [], [], tokens.shape[1]
        for done in range(0, n, AT_ONCE):  # a long prompt is several passes
            part = tokens[:, done : done + AT_ONCE]
            beside = None if states is None else states[:, done : done + AT_ONCE]
            wanted = 1 if only_last else part.shape[1]
            logits.append(self.run(part, beside, length + done, self.layers, self._hidden_layers, wanted))
            hidden.append(self.hidden)
        if len(logits) > 1:
            self.hidden = {layer: torch.cat([part[layer] for part in hidden], dim=1) for layer in self._hidden_layers}
        return logits[-1] if only_last or len(logits) == 1 else torch.cat(logits, dim=1)

    def run(
        self,
        ids: Tensor | None,
        states: Tensor | None,
        length: int,
        layers: range,
        kept: Iterable[int],
        n_logits: int,
        masked: tuple[Tensor, Tensor] | None = None,
        chain: tuple = (),
    ) -> Tensor:
        """Run these layers over (1, m) ids, (1, m, hidden) states, or both, after `length` tokens. The states after the
        layers `kept` are kept.  -> (1, n_logits, vocab) logits of the last tokens

        masked: positions (m,), and which rows each token reads, (m, length + m) bool, where tokens do not all follow
        each other. chain: see `CBackend.chain`; its n_ids, and where it writes.
        """
        model, given = self._model, self._given
        inputs = [None if ids is None else ids.long().contiguous(), None if states is None else states.contiguous()]
        m = next(part.shape[1] for part in inputs if part is not None)
        total = length + m
        last = total + (len(chain[1]) - 1 if chain else 0)
        self.text.reserve(last)
        if model.places is not None and masked is None and last > model.places:
            raise IndexError(f"the model has {model.places} positions, and the text {last} tokens")
        model.reach(last)
        given.ids, given.states = (None if part is None else part.data_ptr() for part in inputs)
        zeros, numbers = model.tables(last + 1)
        given.text, given.position, given.row = zeros, numbers + 4 * length, numbers + 4 * length
        given.whole, given.wanted = numbers + 4 * (length + 1), numbers + 4 * (m - n_logits)
        given.mask, given.masked = None, 0
        if masked is not None:
            given.position, given.mask = (part.data_ptr() for part in masked)
            given.whole, given.masked = zeros, total
        given.first, given.end = layers.start, layers.stop
        texts = (c_void_p * 1)(ctypes.addressof(self.text.addresses))
        given.pages = ctypes.addressof(texts)
        self.hidden = {layer: torch.empty(1, m, model.hidden) for layer in kept}
        return model.run(given, m, n_logits, self.hidden, chain)
