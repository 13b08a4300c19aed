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
from speclab.engines.parts import NormOf, Parts
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
NORMS, MATRICES = ([name for name, kind in Layer._fields_ if kind is of] for of in (Norm, Matrix))


class Stored(NamedTuple):
    """A matrix in the shortest numbers that hold its weights up to float32's own rounding: number * scale + low.

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


class CModel:
    """A model, or a draft's head, as pass.c reads it.

    name: of the engine, for users. page: tokens of a page. largest_window: the most tokens that a layer with a window
    reads, 0 where all read all. most_positions: that a text may have. kinds: of its weights, bit by bit. bytes_spared:
    of the weights, which a pass does not read, as it reads them in fewer bytes than their dtype has.
    """

    name, graphed = "c", False

    def __init__(self, parts: Parts, most_positions: int | None = None):
        if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in (parts.embeddings, parts.head[0])):
            raise NoFastBackend("the engine c is made for float32 on a CPU")
        self.parts, self.most_positions, self._kept, self._angles = parts, most_positions or sys.maxsize, [], []
        self.hidden, self.ids = parts.embeddings.shape[1], len(parts.head[0])
        self.largest_window = max(layer.window for layer in parts.layers)
        found = [[stored(getattr(layer, name)[0].detach()) for name in MATRICES] for layer in parts.layers]
        head = stored(parts.head[0].detach())
        every = [head, *(one for of_layer in found for one in of_layer)]
        self.bytes_spared = sum(4 * one.numbers.numel() - one.n_bytes for one in every)
        self.kinds = sum({1 << one.kind for one in every})
        self.library = library(self.kinds)
        for name in ("page_floats", "floats_needed"):
            getattr(self.library, name).restype = ctypes.c_long
        self.lanes, self.page = self.library.lanes(), self.library.page_tokens()
        self.layers = (Layer * len(parts.layers))()
        for made, layer, of_layer in zip(self.layers, parts.layers, found, strict=True):
            for name in NORMS:
                setattr(made, name, self._norm(getattr(layer, name)))
            for name, one in zip(MATRICES, of_layer, strict=True):
                halves = 2 if name == "up" and parts.gated else 1
                setattr(made, name, self._matrix(one, getattr(layer, name)[1], halves))
            made.window = layer.window
        known = len(parts.embeddings)
        self.model = Model(layers=len(parts.layers), hidden=self.hidden, ids=self.ids, known=known)
        for name, kind in Model._fields_:  # the others have the names of pass.c, too
            if kind in (c_int, c_float) and hasattr(parts, name) and name != "layers":
                setattr(self.model, name, kind(getattr(parts, name)))
        self.model.layer, self.model.head = ctypes.addressof(self.layers), self._matrix(head, parts.head[1], 1)
        self.model.embeddings, self.model.places = map(self._kept_at, (parts.embeddings, parts.places))
        self.model.last, self.model.states = self._norm(parts.last), self._norm(parts.states)
        self.places = None if parts.places is None else len(parts.places)
        self.page_floats = self.library.page_floats(ctypes.byref(self.model))
        for layer in parts.layers:  # the packed ones take their place
            layer.qkv = layer.out = layer.up = layer.down = None
        self._scratch, self._reached = torch.empty(0), 0
        self._numbers, self._zeros = (torch.zeros(0, dtype=torch.int32) for _ in range(2))

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Nothing to do: any width and length runs."""

    def start(self, hidden_layers: Iterable[int] = ()) -> "CBackend":
        """Return a backend for one decoding."""
        return CBackend(self, hidden_layers)

    def _kept_at(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    def _norm(self, norm: NormOf) -> Any:
        return Norm(*map(self._kept_at, norm)) if norm else Norm()

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
        return Matrix(kind, columns, group, *(self._kept_at(None if x is None else blocks(x)) for x in (words, *rest)))

    def reach(self, n: int) -> None:
        """Make the angles of the first n positions, and of some more, where they are not there yet."""
        if n <= self._reached or not self.parts.angles:
            return
        self._reached = max(n, min(self.most_positions, max(ANGLES, 2 * self._reached)))
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

    def run(
        self, given: Any, n_tokens: int, n_logits: int, states: dict[int, Tensor], chain: "Chain | None" = None
    ) -> Tensor:
        """Make a pass of so many tokens.  -> (1, n_logits, ids) logits

        given: what pass.c needs beside them. states: of layers, (1, n_tokens, hidden) each, which are written. chain:
        as many passes as it has places, each over the most probable token after the one before.
        """
        needed = self.library.floats_needed(ctypes.byref(self.model), n_tokens)
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed)
        logits = torch.empty(1, n_logits, -(-self.ids // self.lanes) * self.lanes)  # whole registers
        outputs = (c_void_p * len(self.layers))()
        for layer, out in states.items():
            outputs[layer] = out.data_ptr()
        given.model, given.m, given.scratch = ctypes.addressof(self.model), n_tokens, self._scratch.data_ptr()
        given.logits, given.n_logits, given.outputs = logits.data_ptr(), n_logits, ctypes.addressof(outputs)
        if chain is None:
            known = self.library.forward(ctypes.byref(given), torch.get_num_threads())
        else:
            places = (c_void_p(part.data_ptr()) for part in (chain.tokens, chain.highest))
            known = self.library.chain(
                ctypes.byref(given), torch.get_num_threads(), len(chain.tokens), chain.n_ids, *places
            )
        if not known:
            raise IndexError(f"an id of this pass is not among the {self.model.known} that have an embedding")
        return logits[..., : self.ids]


class Chain(NamedTuple):
    """Where a chain of k passes writes: (k,) the most probable ones of the first n_ids, and (k,) their logits."""

    n_ids: int
    tokens: Tensor
    highest: Tensor


class Text:
    """The pages of one text, and their addresses."""

    def __init__(self, model: CModel):
        self._model, self.pages, self.addresses = model, [], (c_void_p * 16)()

    def reserve(self, n: int) -> None:
        """Have pages for n tokens."""
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
        self.text, self._given, self._all = Text(model), Pass(), range(len(model.layers))

    def prefill(self, prompt: Tensor) -> Tensor:
        """Read a prompt, (1, prompt) ids.  -> (1, 1, vocab) logits of the last one"""
        return self.read(prompt, 0, only_last=True)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """Run a pass: (1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        return self.read(tokens, length)

    step = forward

    def chain(self, tokens: Tensor, length: int, k: int, n_ids: int) -> tuple[Tensor, Tensor]:
        """Run k passes: over (1, m) ids after `length` tokens, then over the most probable one of the first `n_ids`
        after the pass before.  -> (k,) these ids and (k,) their logits, not finite where a logit is no number"""
        chain = Chain(n_ids, torch.empty(k, dtype=torch.long), torch.empty(k))
        self._run(tokens, None, length, self._all, (), 1, chain=chain)
        return chain.tokens, chain.highest

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
        chain: Chain | None = None,
    ) -> Tensor:
        """Run these layers over (1, m) ids, (1, m, hidden) states, or both, after `length` tokens. The states after the
        layers `kept` are kept.  -> (1, n_logits, vocab) logits of the last tokens

        masked: positions (m,), and which rows each token reads, (m, length + m) bool, where tokens do not all follow
        each other.
        """
        model, given = self._model, self._given
        inputs = [None if ids is None else ids.long().contiguous(), None if states is None else states.contiguous()]
        m = next(part.shape[1] for part in inputs if part is not None)
        total = length + m
        further = 0 if chain is None else len(chain.tokens) - 1
        self.text.reserve(total + further)
        if model.places is not None and masked is None and total + further > model.places:
            raise IndexError(f"the model has {model.places} positions, and the text {total + further} tokens")
        model.reach(total + further)
        given.ids, given.states = (None if part is None else part.data_ptr() for part in inputs)
        numbers, zeros = model.numbers(total + further + 1), model.zeros(m)
        given.text, given.position, given.row = zeros, numbers + 4 * length, numbers + 4 * length
        given.whole, given.wanted = numbers + 4 * (length + 1), numbers + 4 * (m - n_logits)
        given.mask, given.masked = None, 0
        if masked is not None:
            given.position, given.mask, given.masked = masked[0].data_ptr(), masked[1].data_ptr(), total
            given.whole = zeros
        given.first, given.end = layers.start, layers.stop
        texts = (c_void_p * 1)(ctypes.addressof(self.text.addresses))
        given.pages = ctypes.addressof(texts)
        self.hidden = {layer: torch.empty(1, m, model.hidden) for layer in kept}
        return model.run(given, m, n_logits, self.hidden, chain)
