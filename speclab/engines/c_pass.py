"""The engine `c`: a whole pass in one call of pass.c, with the model's weights packed as that file reads them.

Keys and values of a text lie in pages of PAGE tokens. A text that grows gets another page, and nothing is copied.
Rolling back is free: rows behind the text's length are never read, and the next pass overwrites them.
"""

import ctypes
import sys
from collections.abc import Iterable
from ctypes import POINTER, Structure, c_float, c_int, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor, nn

from speclab.engines.library import library
from speclab.engines.parts import NormOf, Parts
from speclab.models.family import NoFastBackend

FLOAT32, BFLOAT16, INT8, INT4 = range(4)
GROUP = 32  # columns that share a scale, in the formats of GGUF files
AT_ONCE = 256  # tokens of one call: a longer prompt is several
SAMPLE = 16  # rows that are looked at before a whole matrix
EXACT = 1e-6  # of the largest weight of a group: float32 arithmetic, not another number
ANGLES = 4096  # positions of the first table of angles


class Norm(Structure):
    """The struct of that name in pass.c."""

    _fields_ = [(name, c_void_p) for name in ("gain", "shift")]


class Matrix(Structure):
    """The struct of that name in pass.c."""

    _fields_ = [(name, c_int) for name in ("kind", "columns", "group")] + [
        (name, c_void_p) for name in ("data", "scale", "low", "bias")
    ]


NORMS = ("before_attention", "after_attention", "before_mlp", "after_mlp", "queries", "keys")
MATRICES = ("qkv", "out", "up", "down")


class Layer(Structure):
    """The struct of that name in pass.c."""

    _fields_ = (
        [(name, Norm) for name in NORMS]
        + [(name, Matrix) for name in MATRICES]
        + [("cosines", c_void_p), ("sines", c_void_p), ("window", c_int)]
    )


SIZES = ("heads", "kv_heads", "head_size", "mlp")
SWITCHES = ("centred", "whole_norms", "gated", "activation", "parallel", "beside", "start_normed")
NUMBERS = ("epsilon", "attention_scale", "attention_cap", "logit_cap", "embedding_scale")


class Model(Structure):
    """The struct of that name in pass.c."""

    _fields_ = (
        [(name, c_int) for name in ("layers", "hidden", *SIZES, "turned", "ids", *SWITCHES)]
        + [(name, c_float) for name in NUMBERS]
        + [("embeddings", c_void_p), ("places", c_void_p), ("last", Norm), ("states", Norm), ("head", Matrix)]
        + [("layer", POINTER(Layer))]
    )


class Pass(Structure):
    """The struct of that name in pass.c."""

    _fields_ = [
        ("model", POINTER(Model)),
        *((name, c_int) for name in ("m", "first", "end")),
        *((name, c_void_p) for name in ("ids", "states", "text", "position", "row", "whole", "mask")),
        ("masked", c_int),
        *((name, c_void_p) for name in ("pages", "outputs")),
        ("n_logits", c_int),
        *((name, c_void_p) for name in ("wanted", "logits", "scratch")),
    ]


class Stored(NamedTuple):
    """A matrix in the shortest numbers that hold its weights exactly: number * scale + low.

    group: columns that share a scale. numbers: (rows, columns). scale, low: (rows, groups) or None.
    """

    kind: int
    group: int
    numbers: Tensor
    scale: Tensor | None = None
    low: Tensor | None = None

    @property
    def n_bytes(self) -> int:
        """Return the bytes that a pass reads of it."""
        numbers = self.numbers.nbytes // (2 if self.kind == INT4 else 1)  # two in a byte
        return numbers + sum(part.nbytes for part in (self.scale, self.low) if part is not None)


def stored(weight: Tensor) -> Stored:
    """Find the shortest numbers for (rows, columns) float32 weights: bfloat16, or whole numbers of 8 or 4 bits with a
    scale for each group of columns, as GGUF files and rounded models have them; else float32."""
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
    from the lowest to the highest, for one of these counts of steps.  -> numbers, step and lowest of each group

    None where a group does not lie on such steps; a few rows are looked at first.
    """
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


class Packed:
    """A model as pass.c reads it; `run` makes a pass.  kinds: of its weights, bit by bit."""

    def __init__(self, parts: Parts):
        if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in (parts.embeddings, parts.head[0])):
            raise NoFastBackend("the engine c is made for float32 on a CPU")
        self.parts, self._kept, self._angles = parts, [], {}
        found = {
            (i, name): stored(getattr(layer, name)[0].detach())
            for i, layer in enumerate(parts.layers)
            for name in MATRICES
        }
        found[-1, "head"] = stored(parts.head[0].detach())
        self.kinds = sum({1 << one.kind for one in found.values()})
        self.library = library(self.kinds)
        for name in ("page_floats", "floats_needed"):
            getattr(self.library, name).restype = ctypes.c_long
        self.lanes, self.page = self.library.lanes(), self.library.page_tokens()
        self.hidden = parts.embeddings.shape[1]
        self.layers = (Layer * len(parts.layers))()
        for i, (made, layer) in enumerate(zip(self.layers, parts.layers, strict=True)):
            for name in NORMS:
                setattr(made, name, self._norm(getattr(layer, name)))
            for name in MATRICES:
                halves = 2 if name == "up" and parts.gated else 1
                setattr(made, name, self._matrix(found[i, name], getattr(layer, name)[1], halves))
            made.window = layer.window
        sizes = {name: int(getattr(parts, name)) for name in (*SIZES, *SWITCHES)}
        numbers = {name: float(getattr(parts, name)) for name in NUMBERS}
        pointers = {"embeddings": self._kept_at(parts.embeddings), "places": self._kept_at(parts.places)}
        self.model = Model(
            layers=len(parts.layers),
            hidden=self.hidden,
            ids=len(parts.head[0]),
            layer=self.layers,
            **sizes,
            **numbers,
            **pointers,
        )
        self.model.last, self.model.states = self._norm(parts.last), self._norm(parts.states)
        self.model.head = self._matrix(found[-1, "head"], parts.head[1], 1)
        self.page_floats = self.library.page_floats(ctypes.byref(self.model))
        self.width = -(-len(parts.head[0]) // self.lanes) * self.lanes  # of the rows of logits
        self.bytes_spared = sum(4 * one.numbers.numel() - one.n_bytes for one in found.values())
        self._scratch, self._reached = torch.empty(0), 0
        self._numbers, self._zeros = (torch.zeros(0, dtype=torch.int32) for _ in range(2))

    def _kept_at(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    def _norm(self, norm: NormOf) -> Norm:
        return Norm(*map(self._kept_at, norm)) if norm else Norm()

    def _matrix(self, found: Stored, bias: Tensor | None, halves: int) -> Matrix:
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
        return Matrix(kind, columns, group, *(self._kept_at(None if x is None else blocks(x)) for x in (words, *rest)))

    def reach(self, n: int, limit: int) -> None:
        """Make the angles of the first n positions, and of some more up to `limit`, where they are not there yet."""
        if n <= self._reached or not self.parts.angles:
            return
        self._reached = max(n, min(limit, max(ANGLES, 2 * self._reached)))
        places = torch.arange(self._reached)
        with torch.inference_mode():
            self._angles = [angles(places) for angles in self.parts.angles]
        self.model.turned = 2 * self._angles[0][0].shape[1]
        for made, layer in zip(self.layers, self.parts.layers, strict=True):
            if layer.rotary is not None:
                made.cosines, made.sines = (part.data_ptr() for part in self._angles[layer.rotary])

    def zeros(self, n: int) -> int:
        """Return the address of n zeros."""
        if len(self._zeros) < n:
            self._zeros = torch.zeros(2 * n, dtype=torch.int32)
        return self._zeros.data_ptr()

    def numbers(self, n: int) -> int:
        """Return the address of the numbers 0, 1, 2, ..., at least n of them, as pass.c reads them."""
        if len(self._numbers) < n:
            self._numbers = torch.arange(2 * n, dtype=torch.int32)
        return self._numbers.data_ptr()

    def run(self, given: Pass, n_tokens: int, n_logits: int, states: dict[int, Tensor]) -> Tensor:
        """Make a pass of so many tokens.  -> (1, n_logits, ids) logits

        given: what pass.c needs beside them. states: of layers, (1, n_tokens, hidden) each, which are written.
        """
        needed = self.library.floats_needed(ctypes.byref(self.model), n_tokens)
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed)
        logits = torch.empty(1, n_logits, self.width)
        outputs = (c_void_p * len(self.layers))()
        for layer, out in states.items():
            outputs[layer] = out.data_ptr()
        given.model, given.m, given.scratch = ctypes.pointer(self.model), n_tokens, self._scratch.data_ptr()
        given.logits, given.n_logits, given.outputs = logits.data_ptr(), n_logits, ctypes.addressof(outputs)
        self.library.forward(ctypes.byref(given), torch.get_num_threads())
        return logits[..., : self.model.ids]


class Text:
    """The pages of one text, and their addresses."""

    def __init__(self, packed: Packed):
        self._packed, self.pages, self.addresses = packed, [], (c_void_p * 16)()

    def reserve(self, n: int) -> None:
        """Have pages for n tokens."""
        while len(self.pages) * self._packed.page < n:
            if len(self.pages) == len(self.addresses):
                self.addresses = (c_void_p * (2 * len(self.pages)))(*self.addresses)
            self.pages.append(torch.zeros(self._packed.page_floats))
            self.addresses[len(self.pages) - 1] = self.pages[-1].data_ptr()

    def move(self, rows: list[int], start: int) -> None:
        """Move the keys and values of these rows to `start` and the rows after it."""
        model = ctypes.byref(self._packed.model)
        for to, row in enumerate(rows, start):
            self._packed.library.move(model, self.addresses, row, to)


class CModel:
    """A model, or a draft's head, on the engine `c`.

    name: of the engine, for users. largest_window: the most tokens that a layer with a window reads, 0 where all read
    all. page: the tokens of a page. most_positions: that a text may have.
    """

    name, graphed = "c", False

    def __init__(self, parts: Parts, most_positions: int | None = None):
        self.packed, self.most_positions = Packed(parts), most_positions or sys.maxsize
        self.largest_window = max(layer.window for layer in parts.layers)
        self.page = self.packed.page

    @property
    def bytes_spared(self) -> int:
        """Return the bytes of the weights that a pass does not read, as it reads them in fewer bytes than their dtype
        has."""
        return self.packed.bytes_spared

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Nothing to do: any width and length runs."""

    def start(self, hidden_layers: Iterable[int] = ()) -> "CBackend":
        """Return a backend for one decoding."""
        return CBackend(self, hidden_layers)


class CBackend:
    """A model on the engine `c` at work on one text."""

    n_replays = n_single = 0

    def __init__(self, model: CModel, hidden_layers: Iterable[int] = ()):
        self._model, self._packed, self._hidden_layers = model, model.packed, tuple(hidden_layers)
        self.hidden: dict[int, Tensor] = {}
        self.text = Text(model.packed)
        self._all = range(len(model.packed.layers))
        self._given = Pass()

    def prefill(self, prompt: Tensor) -> Tensor:
        """Read a prompt, (1, prompt) ids.  -> (1, 1, vocab) logits of the last one"""
        return self.read(prompt, 0, only_last=True)

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """Do the same as `forward`."""
        return self.read(tokens, length)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """Run a pass: (1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        return self.read(tokens, length)

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """Do the same as `forward`, but each token has its position (1, m), and the mask (1, 1, m, length + m) says
        what it reads."""
        reads, places = (mask[0, 0] == 0).contiguous(), positions[0].int()
        return self._run(tokens, None, length, self._all, self._hidden_layers, tokens.shape[1], (places, reads))

    def forward_first(self, tokens: Tensor, length: int, n_layers: int) -> Tensor:
        """Run the first `n_layers` layers alone: (1, m) ids after `length` tokens -> their outputs (1, m, hidden)."""
        self._run(tokens, None, length, range(n_layers), (n_layers - 1,), 0)
        return self.hidden[n_layers - 1]

    def forward_rest(self, states: Tensor, length: int, n_layers: int) -> Tensor:
        """Run all other layers: the outputs of the first ones, (1, m, hidden), after `length` tokens -> (1, m, vocab)
        logits."""
        kept = [layer for layer in self._hidden_layers if layer >= n_layers]
        logits = self._run(None, states, length, self._all[n_layers:], kept, states.shape[1])
        if n_layers - 1 in self._hidden_layers:
            self.hidden[n_layers - 1] = states
        return logits

    def keep(self, length: int, rows: Tensor) -> None:
        """Keep these rows, (n,), of the last pass: they move to the front of the rows behind `length`, and their hidden
        states move with them."""
        self.text.move([length + row for row in rows.tolist()], length)
        self.hidden = {layer: states[:, rows] for layer, states in self.hidden.items()}

    def crop(self, n_tokens: int, length: int) -> None:
        """Do nothing: rows after the length are never read."""

    def read(self, tokens: Tensor, length: int, states: Tensor | None = None, only_last: bool = False) -> Tensor:
        """Run all layers over (1, m) ids after `length` tokens -> (1, m, vocab) logits, or those of the last token.

        states: (1, m, hidden), which a draft's head reads beside the ids.
        """
        logits, hidden, n = [], [], tokens.shape[1]
        for done in range(0, n, AT_ONCE):  # a long prompt is several passes
            part = tokens[:, done : done + AT_ONCE]
            beside = None if states is None else states[:, done : done + AT_ONCE]
            wanted = 1 if only_last else part.shape[1]
            logits.append(self._run(part, beside, length + done, self._all, self._hidden_layers, wanted))
            hidden.append(self.hidden)
        if len(logits) > 1:
            self.hidden = {layer: torch.cat([part[layer] for part in hidden], dim=1) for layer in self._hidden_layers}
        return logits[-1] if only_last or len(logits) == 1 else torch.cat(logits, dim=1)

    def _run(
        self,
        ids: Tensor | None,
        states: Tensor | None,
        length: int,
        layers: range,
        kept: Iterable[int],
        n_logits: int,
        masked: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Run these layers over (1, m) ids, (1, m, hidden) states, or both, after `length` tokens. The states after the
        layers `kept` are kept.  -> (1, n_logits, vocab) logits of the last tokens

        masked: positions (m,), and which rows each token reads, (m, length + m) bool, where tokens do not all follow
        each other.
        """
        packed, given = self._packed, self._given
        inputs = [None if part is None else part.contiguous() for part in (ids, states)]
        m = next(part.shape[1] for part in inputs if part is not None)
        total = length + m
        self.text.reserve(total)
        packed.reach(total, self._model.most_positions)
        given.ids, given.states = (None if part is None else part.data_ptr() for part in inputs)
        numbers, zeros = packed.numbers(total + 1), packed.zeros(m)
        given.text, given.position, given.row = zeros, numbers + 4 * length, numbers + 4 * length
        given.whole, given.wanted = numbers + 4 * (length + 1), numbers + 4 * (m - n_logits)
        given.mask, given.masked = None, 0
        if masked is not None:
            given.position, given.mask, given.masked = masked[0].data_ptr(), masked[1].data_ptr(), total
            given.whole = zeros
        given.first, given.end = layers.start, layers.stop
        texts = (c_void_p * 1)(ctypes.addressof(self.text.addresses))
        given.pages = ctypes.addressof(texts)
        self.hidden = {layer: torch.empty(1, m, packed.hidden) for layer in kept}
        return packed.run(given, m, n_logits, self.hidden)
