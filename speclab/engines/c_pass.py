"""The engine `c`: a whole pass in one call of pass.c, with the model's weights packed as that file reads them.

Keys and values of a text lie in pages. A text that grows gets another page, and nothing is copied. Rolling back is
free: rows behind the text's length are never read, and the next pass overwrites them.
"""

import ctypes
import re
from collections.abc import Iterable, Sequence
from ctypes import c_float, c_int, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from speclab.engines.eager import TextBackend
from speclab.engines.library import SOURCE, library
from speclab.engines.parts import Parts
from speclab.models.family import NoFastBackend

FLOAT32, BFLOAT16, INT8, INT4 = range(4)
GROUP = 32  # columns that share a scale, in the formats of GGUF files
NO_CHAIN = (0, 0, None, None)
AT_ONCE = 256  # tokens of one call: a longer prompt is several
SAMPLE = 16  # rows that are looked at before a whole matrix
EXACT = 1e-6  # of the largest weight of a group: float32 arithmetic, not another number


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
Stored = tuple[int, int, Tensor, Tensor | None, Tensor | None]
"""The kind of a matrix, the columns that share a scale, the numbers (rows, columns), and (rows, groups) scales and
lowest values where it has them: a weight is number * scale + low."""


def stored(weight: Tensor) -> Stored:
    """Find the shortest numbers that hold (rows, columns) float32 weights up to float32's own rounding: bfloat16, or
    whole numbers of 8 or 4 bits with a scale for each group of columns, as GGUF files and rounded models have them."""
    n = weight.shape[1]
    if n % 2 == 0 and torch.equal(weight.bfloat16().float(), weight):
        return BFLOAT16, n, weight.bfloat16(), None, None
    for kind, group, counts in ((INT8, GROUP, [127]), (INT8, n, [127]), (INT4, GROUP, range(15, 0, -1))):
        fits = n % group == 0 and group % 4 == 0
        if fits and (found := in_steps(weight.unflatten(1, (-1, group)), counts, around_zero=kind == INT8)):
            numbers, scale, low = found
            numbers = numbers.flatten(1).to(torch.int8)
            return kind, group, numbers, scale[..., 0], low[..., 0] if kind == INT4 else None
    return FLOAT32, n, weight, None, None


def in_steps(groups: Tensor, counts: Sequence[int], around_zero: bool) -> tuple[Tensor, Tensor, Tensor] | None:
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
    """

    name = "c"

    def __init__(self, parts: Parts):
        embeddings, layers = parts["embeddings"], parts["layer"]
        if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in (embeddings, parts["head"][0])):
            raise NoFastBackend("the engine c is made for float32 on a CPU")
        self.hidden, self.ids, self.bytes_spared, self.kept = embeddings.shape[1], len(parts["head"][0]), 0, []
        self._windows = [layer.get("window") or 0 for layer in layers]
        self.largest_window = max(self._windows)
        self._halves = {"up": 2 if parts.setdefault("gated", True) else 1}
        owners = [*((layer, name) for layer in layers for name in MATRICES), (parts, "head")]
        for owner, name in owners:
            weight, bias = owner[name]
            owner[name] = stored(weight.detach()), bias
        self.kinds = sum({1 << owner[name][0][0] for owner, name in owners})
        self.library = library(self.kinds)
        self.library.page_floats.restype = ctypes.c_long
        self.lanes, self.page = self.library.lanes(), self.library.page_tokens()
        self.layers = (Layer * len(layers))(*(self._struct(Layer, layer) for layer in layers))
        sizes = {"layers": len(layers), "hidden": self.hidden, "ids": self.ids, "known": len(embeddings)}
        parts |= sizes | {"mlp": self.layers[0].down.columns, "layer": None}
        if (places := parts.get("places")) is not None:
            parts["positions"] = len(places)
        if (frequencies := parts.get("frequencies")) is not None:
            parts["rotaries"], parts["turned"] = len(frequencies), 2 * frequencies.shape[1]
        self.model = self._struct(Model, parts)
        self.model.layer = ctypes.addressof(self.layers)
        self.page_floats = self.library.page_floats(ctypes.byref(self.model))
        self._tokens = torch.empty(0, 4)

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
                stored, bias = value
                value = self._matrix(stored, bias, self._halves.get(name, 1))
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

        rows, columns = numbers.shape
        if kind == INT4:
            numbers = numbers[:, ::2] | numbers[:, 1::2] << 4
        words = numbers.contiguous().view(torch.int32)  # (rows, words), the first column in the lowest bits
        self.bytes_spared += 4 * rows * columns - sum(x.nbytes for x in (words, scale, low) if x is not None)
        given = (words, scale, low, None if bias is None else bias.detach()[:, None])
        return Matrix(kind, columns, group, *(self._address(None if x is None else blocks(x)) for x in given))

    def tokens(self, n: int) -> Tensor:
        """Return the first tokens of a text as pass.c reads them, at least n: (n, 4), its text, position and row, and
        the rows that it reads."""
        if len(self._tokens) < n:
            rows = torch.arange(2 * n, dtype=torch.int32)
            self._tokens = torch.stack([torch.zeros_like(rows), rows, rows, rows + 1], dim=1)
        return self._tokens

    def run(self, given: Any, wanted: Sequence[int], states: dict[int, Tensor], chain: tuple = NO_CHAIN) -> Tensor:
        """Make a pass.  -> (1, len(wanted), ids) logits of the tokens `wanted`. given: what pass.c needs beside.
        states: of layers, (1, m, hidden) each, which are written. chain: see `CBackend.chain`."""
        logits = torch.empty(1, len(wanted), -(-self.ids // self.lanes) * self.lanes)  # whole registers
        outputs, numbers = (c_void_p * len(self.layers))(), (c_int * len(wanted))(*wanted)
        for layer, out in states.items():
            outputs[layer] = out.data_ptr()
        given.model, given.logits, given.n_logits = ctypes.addressof(self.model), logits.data_ptr(), len(wanted)
        given.outputs, given.wanted = ctypes.addressof(outputs), ctypes.addressof(numbers)
        if not self.library.forward(ctypes.byref(given), torch.get_num_threads(), *chain):
            raise IndexError("a token of this pass, or its position, is not among those that have an embedding")
        return logits[..., : self.ids]


class CBackend(TextBackend):
    """A model on the engine `c` at work on one text, whose keys and values lie in `pages`."""

    def __init__(self, model: CModel, hidden_layers: Iterable[int] = ()):
        super().__init__(tuple(hidden_layers))
        self._model, self.layers, self.pages = model, range(len(model.layers)), []

    def reserve(self, n: int) -> None:
        """Make pages for the first n tokens."""
        while len(self.pages) * self._model.page < n:
            self.pages.append(torch.zeros(self._model.page_floats))
            self.addresses = (c_void_p * len(self.pages))(*(page.data_ptr() for page in self.pages))

    def move(self, length: int, rows: Tensor) -> None:
        for to, row in enumerate(rows.tolist(), length):
            self._model.library.move(ctypes.byref(self._model.model), self.addresses, length + row, to)

    def prefill(self, prompt: Tensor) -> Tensor:
        return self.read(prompt, 0)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        return self.read(tokens, length, every=True)

    step = forward

    def chain(self, tokens: Tensor, length: int, k: int, n_ids: int) -> tuple[Tensor, Tensor]:
        """Run k passes: over (1, m) ids after `length` tokens, then over the most probable one of the first `n_ids`
        after the pass before.  -> (k,) these ids and (k,) their logits, not finite where a logit is no number"""
        found = torch.empty(k, dtype=torch.long), torch.empty(k)
        chain = (k, n_ids, *(c_void_p(part.data_ptr()) for part in found))
        self.run(tokens, None, length, self.layers, (), 1, chain=chain)
        return found

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """Do the same as `forward`, but each token has its position (1, m), and the mask (1, 1, m, length + m) says
        what it reads."""
        masked = positions[0], (mask[0, 0] == 0).contiguous()
        return self.run(tokens, None, length, self.layers, self._hidden_layers, tokens.shape[1], masked)

    def read(self, tokens: Tensor, length: int, states: Tensor | None = None, every: bool = False) -> Tensor:
        """Run all layers over (1, m) ids after `length` tokens -> (1, 1, vocab) logits of the last one, or (1, m,
        vocab) of every one. states: (1, m, hidden), which a draft's head reads beside the ids."""
        logits, hidden = [], []
        for done in range(0, tokens.shape[1], AT_ONCE):  # a long prompt is several passes
            part = tokens[:, done : done + AT_ONCE]
            beside = None if states is None else states[:, done : done + AT_ONCE]
            wanted = part.shape[1] if every else 1
            logits.append(self.run(part, beside, length + done, self.layers, self._hidden_layers, wanted))
            hidden.append(self.hidden)
        if len(hidden) > 1:
            self.hidden = {layer: torch.cat([part[layer] for part in hidden], dim=1) for layer in self._hidden_layers}
        return torch.cat(logits, dim=1) if every and len(logits) > 1 else logits[-1]

    def run(
        self,
        ids: Tensor | None,
        states: Tensor | None,
        length: int,
        layers: range,
        kept: Iterable[int],
        n_logits: int,
        masked: tuple[Tensor, Tensor] | None = None,
        chain: tuple = NO_CHAIN,
    ) -> Tensor:
        """Run these layers over (1, m) ids, (1, m, hidden) states, or both, after `length` tokens. The states after the
        layers `kept` are kept.  -> (1, n_logits, vocab) logits of the last tokens

        masked: positions (m,), and which rows each token reads, (m, length + m) bool, where tokens do not all follow
        each other. chain: k and n_ids of `CBackend.chain`, and where it writes.
        """
        model = self._model
        ids, states = (part if part is None else part.contiguous() for part in (ids, states))
        m = next(part.shape[1] for part in (ids, states) if part is not None)
        last = length + m + max(chain[0] - 1, 0)
        self.reserve(last)
        tokens, mask = model.tokens(last)[length:], None
        if masked is not None:
            positions, mask = masked
            tokens = torch.stack([0 * positions, positions, tokens[:m, 2], 0 * positions], dim=1).int()
        pages = (c_void_p * 1)(ctypes.addressof(self.addresses))
        given = Pass(m=m, first=layers.start, end=layers.stop, pages=ctypes.addressof(pages))
        fields = {"ids": ids, "states": states, "token": tokens, "mask": mask}
        for name, part in fields.items():
            setattr(given, name, None if part is None else part.data_ptr())
        given.masked = 0 if mask is None else mask.shape[1]
        self.hidden = {layer: torch.empty(1, m, model.hidden) for layer in kept}
        return model.run(given, range(m - n_logits, m), self.hidden, chain)
