"""The engine `c`: a whole pass in one call of pass.c, with the model's weights packed as that file reads them.

Keys and values of a text lie in pages. A text that grows gets another page, and nothing is copied. Rolling back is
free: rows behind the text's length are never read, and the next pass overwrites them.
"""

import ctypes
import re
from collections.abc import Iterable, Sequence
from ctypes import addressof, byref, c_float, c_int, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from speclab.engines.eager import TextBackend
from speclab.engines.library import SOURCE, library
from speclab.engines.parts import Parts
from speclab.models.family import NoFastBackend

FLOAT32, BFLOAT16, INT8, INT4 = range(4)
GROUP = 32  # columns that share a scale, in the formats of GGUF files
ONE_PASS = (1, 0, None, None)
AT_ONCE = 256  # tokens of a pass over a long prompt, since its memory grows with them
SAMPLE = 16  # rows that are looked at before a whole matrix
EXACT = 1e-6  # of the largest weight of a group: float32 arithmetic, not another number


def structs() -> dict[str, Any]:
    """Return the structs that pass.c shares with Python, read from that file, where alone they are written down."""
    types: dict[str, Any] = {"int": c_int, "float": c_float}
    text = re.sub(r"/\*.*?\*/|\bconst\b", "", SOURCE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for body, name in re.findall(r"typedef struct \{([^}]*)\}\s*(Norm|Matrix|Layer|Model|Pass);", text):
        declared = [(kind, one) for kind, names in re.findall(r"(\w+) ([^;]+);", body) for one in names.split(",")]
        fields = [(one.strip(" *\n"), c_void_p if "*" in one else types[kind]) for kind, one in declared]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types


STRUCTS = structs()
Norm, Matrix, Layer, Model, Pass = (STRUCTS[name] for name in ("Norm", "Matrix", "Layer", "Model", "Pass"))


def stored(weight: Tensor) -> tuple[int, int, Tensor, Tensor | None, Tensor | None]:
    """Find the shortest numbers that hold (rows, columns) float32 weights up to float32's own rounding: bfloat16, or
    whole numbers of 8 or 4 bits with a scale for each group of columns, as GGUF files and rounded models have them.

    -> their kind, the columns of a group, the numbers, (rows, columns) or two of 4 bits in one, and (rows, groups)
    scales and lowest values, where it has them: a weight is number * scale + low
    """
    n = weight.shape[1]
    if n % 2 == 0 and torch.equal(weight.bfloat16().float(), weight):
        return BFLOAT16, n, weight.bfloat16(), None, None
    for kind, group in ((INT8, GROUP), (INT8, n), (INT4, GROUP)):
        fits = n % group == 0 and group % 4 == 0
        if fits and (found := in_steps(weight.unflatten(1, (-1, group)), kind)):
            numbers, scale, low = found
            if kind == INT8:
                return kind, group, numbers, scale, None
            return kind, group, numbers[:, ::2] | numbers[:, 1::2] << 4, scale, low
    return FLOAT32, n, weight, None, None


def in_steps(groups: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Find equal steps on which the numbers of each group lie, (rows, groups, columns): 127 from zero to the largest
    for INT8, at most 15 from the lowest to the highest for INT4.  -> (rows, all columns) int8 numbers, (rows, groups)
    steps and lowest; None where a group does not lie on such steps. A few rows are looked at first."""
    if len(groups) > SAMPLE and in_steps(groups[:SAMPLE], kind) is None:
        return None
    low, high = groups.aminmax(dim=-1, keepdim=True)
    largest = torch.maximum(low.abs(), high.abs())
    if kind == INT8:
        low, high = torch.zeros_like(low), largest
    step = torch.zeros_like(low)  # 0: not found yet
    for n in [127] if kind == INT8 else range(15, 0, -1):
        tried = ((high - low) / n).clamp(min=1e-30)
        exact = (((groups - low) / tried).round() * tried + low - groups).abs() <= EXACT * largest
        step = torch.where(exact.all(-1, keepdim=True) & (step == 0), tried, step)
        if step.all():
            return ((groups - low) / step).round().flatten(1).to(torch.int8), step[..., 0], low[..., 0]
    return None


class CModel:
    """A model, or a draft's head, as pass.c reads it. Packed matrices leave `parts` one by one, which spares memory.

    page: tokens of a page. bytes_spared: of the weights, as a pass reads them in fewer bytes than their dtype has.
    """

    name = "c"

    def __init__(self, parts: Parts):
        embeddings, head, layers = parts["embeddings"], parts["head"][0], parts["layer"]
        if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in (embeddings, head)):
            raise NoFastBackend("the engine c is made for float32 on a CPU")
        self.hidden, self.ids, self.bytes_spared, self.kept = embeddings.shape[1], len(head), 0, []
        matrices = [name for name, kind in Layer._fields_ if kind is Matrix]
        owners = [*((layer, name) for layer in layers for name in matrices if layer.get(name)), (parts, "head")]
        for owner, name in owners:
            weight, bias = owner[name]
            form, group, numbers, scale, low = stored(weight.detach())
            words = numbers.contiguous().view(torch.int32)  # (rows, words), the first column in the lowest bits
            owner[name] = form, group, words, scale, low, None if bias is None else bias[:, None]
            self.bytes_spared += weight.nbytes - sum(part.nbytes for part in (words, scale, low) if part is not None)
        self.library = library(sum({1 << owner[name][0] for owner, name in owners}))
        self.library.page_floats.restype = ctypes.c_long
        self.lanes, self.page = self.library.lanes(), self.library.page_tokens()
        self.layers = (Layer * len(layers))(*(self._struct(Layer, layer) for layer in layers))
        parts |= {"layers": len(layers), "hidden": self.hidden, "ids": self.ids, "known": len(embeddings)}
        parts |= {"mlp": self.layers[0].down.columns, "layer": addressof(self.layers)}
        parts["positions"] = 0 if parts.get("places") is None else len(parts["places"])
        self.model = self._struct(Model, parts)
        self.page_floats = self.library.page_floats(byref(self.model))

    def start(self, hidden_layers: Iterable[int] = ()) -> "CBackend":
        return CBackend(self, hidden_layers)

    def _address(self, tensor: Tensor | None, in_blocks: bool = False) -> int | None:
        """Return where the numbers of a tensor are kept: as they are, or (rows, n) in blocks of as many rows as a
        register has lanes, (blocks, n, L), the rows that are missing filled up."""
        if tensor is None:
            return None
        if in_blocks:
            rows = nn.functional.pad(tensor, (0, 0, 0, -len(tensor) % self.lanes))
            tensor = rows.unflatten(0, (-1, self.lanes)).transpose(1, 2)
        self.kept.append(tensor.detach().contiguous())
        return self.kept[-1].data_ptr()

    def _struct(self, of: Any, parts: Parts) -> Any:
        """Make a struct of pass.c from the parts with the names of its fields."""
        made = of()
        for name, kind in of._fields_:
            if (value := parts.pop(name, None)) is None:
                continue
            if kind is Matrix:
                form, group, words, *more = value
                addresses = (self._address(part, in_blocks=True) for part in (words, *more))
                value = Matrix(form, words.shape[1] << form, group, *addresses)
            elif kind is Norm:
                value = Norm(*map(self._address, value))
            elif isinstance(value, Tensor):
                value = self._address(value)
            setattr(made, name, value)
        return made

    def run(
        self,
        texts: Sequence["CBackend"],
        token: Tensor,
        ids: Tensor | None = None,
        states: Tensor | None = None,
        mask: Tensor | None = None,
        wanted: Sequence[int] = (),
        layers: range | None = None,
        kept: Iterable[int] = (),
        chain: tuple = ONE_PASS,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Make a pass over m tokens.  -> (1, len(wanted), ids) logits, and by layer of `kept` the (1, m, hidden) states

        texts: whose pages are read and written. token: (m, 4) int32, of each token its text, position and row, and how
        many first rows it reads. ids, states: (1, m) and (1, m, hidden), one of them or both. mask: (m, n) bool, which
        of n further rows a token reads. layers: without a gap, None: all. chain: see `CBackend.chain`.
        """
        m = next(part.shape[1] for part in (ids, states) if part is not None)
        layers, n_masked = layers or range(len(self.layers)), 0 if mask is None else mask.shape[1]
        logits = torch.empty(1, len(wanted), -(-self.ids // self.lanes) * self.lanes)  # whole registers
        hidden = {layer: torch.empty(1, m, self.hidden) for layer in kept}
        outputs = [hidden[layer].data_ptr() if layer in hidden else None for layer in range(len(self.layers))]
        tensors = [part if part is None else part.contiguous() for part in (ids, states, token, mask)]
        pages = (c_void_p * len(texts))(*(addressof(text.addresses) for text in texts))
        to_layers, rows = (c_void_p * len(outputs))(*outputs), (c_int * len(wanted))(*wanted)
        numbers = m, layers.start, layers.stop, n_masked, len(wanted)
        given = [part if part is None else part.data_ptr() for part in tensors]
        results = addressof(pages), addressof(to_layers), logits.data_ptr(), addressof(rows)
        one = Pass(addressof(self.model), *numbers, *given, *results)
        if (known := self.library.forward(byref(one), torch.get_num_threads(), *chain)) < 0:
            raise MemoryError(f"there is no memory for a pass over {m} tokens")
        if not known:
            raise IndexError("a token of this pass, or its position, is not among those that have an embedding")
        return logits[..., : self.ids], hidden


class CBackend(TextBackend):
    """A model on the engine `c` at work on one text, whose keys and values lie in `pages`.

    tokens: (rows, 4), the tokens of a text whose tokens follow each other, as `CModel.run` takes them.
    """

    def __init__(self, model: CModel, hidden_layers: Iterable[int] = ()):
        super().__init__(tuple(hidden_layers))
        self._model, self.layers, self.pages = model, range(len(model.layers)), []

    def reserve(self, n: int) -> None:
        """Make pages for the first n tokens."""
        if n <= len(self.pages) * self._model.page:
            return
        while len(self.pages) * self._model.page < n:
            self.pages.append(torch.zeros(self._model.page_floats))
        self.addresses = (c_void_p * len(self.pages))(*(page.data_ptr() for page in self.pages))
        rows = torch.arange(len(self.pages) * self._model.page, dtype=torch.int32)
        self.tokens = torch.stack([torch.zeros_like(rows), rows, rows, rows + 1], dim=1)

    def move(self, length: int, rows: Tensor) -> None:
        for to, row in enumerate(rows.tolist(), length):
            self._model.library.move(byref(self._model.model), self.addresses, length + row, to)

    def prefill(self, prompt: Tensor) -> Tensor:
        return self.run(0, 1, prompt)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        return self.run(length, tokens.shape[1], tokens)

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        place = torch.arange(length, length + tokens.shape[1])
        token = torch.stack([0 * place, positions[0], place, 0 * place], dim=1).int()
        return self.run(length, len(token), tokens, token=token, mask=mask[0, 0] == 0)

    def chain(self, tokens: Tensor, length: int, k: int, n_ids: int) -> tuple[Tensor, Tensor]:
        """Run k passes: over (1, m) ids after `length` tokens, then over the most probable one of the first `n_ids`
        after the pass before.  -> (k,) these ids and (k,) their logits, not finite where a logit is no number"""
        found = torch.empty(k, dtype=torch.long), torch.empty(k)
        self.run(length, 1, tokens, chain=(k, n_ids, *(c_void_p(part.data_ptr()) for part in found)))
        return found

    def run(
        self, length: int, n_logits: int, ids: Tensor | None = None, states: Tensor | None = None, **given: Any
    ) -> Tensor:
        """Make a pass after `length` tokens.  -> (1, n_logits, vocab) logits of the last tokens. The rest is as in
        `CModel.run`; where nothing else is given, tokens follow each other, and what was asked for is kept."""
        m = next(part.shape[1] for part in (ids, states) if part is not None)
        if not given and m > AT_ONCE >= n_logits:
            n, parts = m - AT_ONCE, (ids, states)
            self.run(length, 0, *(part if part is None else part[:, :n] for part in parts))
            before = self.hidden
            logits = self.run(length + n, n_logits, *(part if part is None else part[:, n:] for part in parts))
            self.hidden = {layer: torch.cat([before[layer], after], 1) for layer, after in self.hidden.items()}
            return logits
        self.reserve(length + m + given.get("chain", ONE_PASS)[0] - 1)
        given = {"token": self.tokens[length:], "wanted": range(m - n_logits, m), "kept": self._hidden_layers} | given
        logits, self.hidden = self._model.run([self], ids=ids, states=states, **given)
        return logits
