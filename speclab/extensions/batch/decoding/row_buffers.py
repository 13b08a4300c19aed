"""Passes over several texts at once: each row of a batch is a text of its own length.

Keys and values of all texts lie in buffers with a row for each. A pass writes a text's tokens at that text's own
places, and the mask keeps every token from what is not its text: the places behind it, which hold rejected tokens and
padding, are read by the kernel and count for nothing. They are finite numbers, so that 0 times them is 0.

The same pass runs as the library's own code, as an exported list of kernels, as compiled functions, or as CUDA graphs,
one for each width and number of places.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from transformers import Cache, PreTrainedModel

from speclab.core import graphs
from speclab.engines.cuda.buffers import WrittenInPlace
from speclab.engines.cuda.cuda_graphs import GraphedModel, rows_read
from speclab.engines.eager import decoder_layers, layer_outputs
from speclab.engines.windows import masks, window_of
from speclab.models.backends import rewrites
from speclab.models.backends.compile_functions import BLOCK
from speclab.models.backends.exported import EXAMPLE_ROWS, TOTALS, WIDTHS, ExportedModel, export, functions
from speclab.models.backends.protocols import FastModel
from speclab.models.family import context_length

Pass = Callable[..., tuple[Tensor, ...]]
"""(ids, positions, mask, places, keys, values) -> (logits, outputs of all layers), see `RowsPass.forward`"""
Compiled = Callable[..., list[Tensor]]
"""a compiled pass, of the same inputs and outputs"""
Shape = tuple[int, int]
"""texts, tokens of each in the pass"""
Programs = Mapping[FastModel, Mapping[Shape, Compiled]]
"""the compiled passes of each model"""


class WrittenAtPlaces(WrittenInPlace):
    """One layer's keys and values, (places, rows, heads, width), where a pass writes each row at places of its own.

    places: (rows, m). row: (rows, 1), the number of each row.
    """

    def __init__(self, keys: Tensor, values: Tensor, places: Tensor, row: Tensor):
        super().__init__(keys, values)
        self._places = places, row

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write (rows, heads, m, width) at the places, and return all of them, (rows, heads, places, width)."""
        self.keys.index_put_(self._places, key_states.transpose(1, 2))
        self.values.index_put_(self._places, value_states.transpose(1, 2))
        return by_row(self.keys), by_row(self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of places that attention reads, and the first one."""
        return self.keys.shape[0], 0


def by_row(buffer: Tensor) -> Tensor:
    """Return a view of a buffer as attention wants it: (places, rows, heads, width) -> (rows, heads, places, width)"""
    return buffer.permute(1, 2, 0, 3)


def by_place(buffer: Tensor) -> Tensor:
    """Return a view of a buffer as a pass takes it: (rows, heads, places, width) -> (places, rows, heads, width)"""
    return buffer.permute(2, 0, 1, 3)


class RowsPass(nn.Module):
    """One pass of a model over several texts, with everything it depends on as an argument."""

    def __init__(self, model: PreTrainedModel, layers: Iterable[int]):
        super().__init__()
        self.model, self.layers, self.window = model, layers, window_of(model)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, places: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """(rows, m) ids, positions and places, (rows, 1, m, total) mask, the first `total` places of the buffers of
        each layer, (total, rows, kv heads, width) -> (rows, m, vocab) logits, and (rows, m, hidden) of each of
        `layers`."""
        row = torch.arange(places.shape[0], device=places.device)[:, None]
        cache = Cache(layers=[WrittenAtPlaces(k, v, places, row) for k, v in zip(keys, values, strict=True)])
        mask = masks(mask, self.window)
        options = {"position_ids": positions, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
        with layer_outputs(self.model, self.layers) as hidden:
            logits = self.model(input_ids=ids, **options).logits
        return logits, *(hidden[layer] for layer in self.layers)


class RowBuffers:
    """Keys and values of several texts: (rows, kv heads, capacity, head width) each, a pair for every layer.

    run: the pass. shapes: for every layer the (kv heads, head width) of its keys and of its values.
    """

    def __init__(self, model: PreTrainedModel, run: Pass, shapes: list, n_rows: int, capacity: int):
        self.model, self.run, self.n_rows, self.capacity = model, run, n_rows, capacity
        self.keys, self.values = (
            [self._zeros(heads, width) for heads, width in side] for side in zip(*shapes, strict=True)
        )

    def prefill(self, row: int, prompt: Tensor, layers: Iterable[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Read a prompt, (1, n) ids, into a row.  -> (1, 1, vocab) logits of the last one, outputs of these layers

        The model's own code reads it: a prompt is bound by arithmetic, not by kernel launches.
        """
        keys, values = (
            [part[row : row + 1, :, : prompt.shape[1]] for part in side] for side in (self.keys, self.values)
        )
        views: list = [WrittenInPlace(k, v) for k, v in zip(keys, values, strict=True)]
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        with layer_outputs(self.model, layers) as hidden:
            return self.model(input_ids=prompt, **options).logits, hidden

    def forward(self, ids: Tensor, positions: Tensor, places: Tensor, visible: Tensor) -> tuple[Tensor, ...]:
        """Run one pass over (rows, m) tokens.  -> the outputs of RowsPass.forward

        visible: (rows, m, total) bool, the places that each token reads, itself included.
        """
        return self.run(ids, positions, additive(visible, self.model.dtype), places, *self._first(visible.shape[-1]))

    def n_read(self, total: int) -> int:
        """The number of places that a pass reads, of which `total` may be in use."""
        return total

    def width(self, m: int) -> int:
        """The number of tokens to which m tokens of each text are padded."""
        return m

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Announce the passes that will come. They need no preparation here: any width and length runs."""

    def move(self, sources: Tensor, places: Tensor) -> None:
        """Copy keys and values of each text from some of its places to others, (rows, n) both."""
        row = torch.arange(len(places), device=places.device)[:, None]
        for part in self.keys + self.values:
            transposed = part.transpose(1, 2)
            transposed[row, places] = transposed[row, sources]

    def _first(self, total: int) -> tuple[list[Tensor], list[Tensor]]:
        return [by_place(keys)[:total] for keys in self.keys], [by_place(values)[:total] for values in self.values]

    def _zeros(self, heads: int, width: int) -> Tensor:
        """Allocate the keys or values of a layer, (rows, heads, capacity, width)."""
        shape = self.n_rows, heads, self.capacity, width
        return torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)


class GraphedRowBuffers(RowBuffers):
    """Row buffers with one CUDA graph for each width and number of places that are read, recorded when first needed."""

    def __init__(self, graphed: GraphedModel, n_rows: int, capacity: int):
        rows_pass = RowsPass(graphed.model, graphed.layers)

        def run(*inputs: Tensor | list[Tensor]) -> tuple[Tensor, ...]:
            with graphed.kernels.used():
                return rows_pass(*inputs)

        super().__init__(graphed.model, run, graphed.shapes, n_rows, capacity)
        self.graphs: dict[tuple[int, int], graphs.Graph] = {}

    def n_read(self, total: int) -> int:
        """The number of places that the graphs of single texts read."""
        return rows_read(total, self.capacity)

    def forward(self, ids: Tensor, positions: Tensor, places: Tensor, visible: Tensor) -> tuple[Tensor, ...]:
        """Run one pass over (rows, m) tokens as a replay: the next one writes the outputs of layers to the same
        places."""
        given = [ids, positions, additive(visible, self.model.dtype), places]
        graph = self._graph(given)
        for fixed, tensor in zip(graph.inputs, given, strict=True):
            fixed.copy_(tensor)
        graph.replay()
        return graph.outputs[0].clone(), *graph.outputs[1:]

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Record passes of these widths, for texts of up to `longest` tokens, while no row has a text."""
        for width in sorted(set(widths)):
            total = width
            while total <= min(longest, self.capacity):
                read = self.n_read(total)
                places = torch.arange(read - width, read, device=self.model.device).expand(self.n_rows, -1)
                visible = places.new_ones((self.n_rows, width, read), dtype=torch.bool)
                positions = places.clamp(max=(context_length(self.model) or sys.maxsize) - 1)  # buffers may hold more
                self._graph([torch.zeros_like(places), positions, additive(visible, self.model.dtype), places])
                total = read + 1

    def _graph(self, given: list[Tensor]) -> graphs.Graph:
        """The graph of passes with tensors of these shapes: ids, positions, mask, places."""
        key = (given[0].shape[1], given[2].shape[-1])
        if key not in self.graphs:
            inputs = [tensor.clone() for tensor in given]  # warm-ups write what this pass writes
            replay, outputs = graphs.capture(lambda: self.run(*inputs, *self._first(key[1])))
            self.graphs[key] = graphs.Graph(replay, inputs, outputs)
        return self.graphs[key]


class CompiledRowBuffers(RowBuffers):
    """Row buffers whose passes are compiled functions. A pass wider than all of them runs on the kernels one by one.

    In memory the places stand first: the first ones of any number are one piece, and their strides are always the same.
    programs: the compiled passes over so many texts, by the tokens of each.
    """

    def __init__(self, fast: ExportedModel, n_rows: int, capacity: int, programs: Mapping[int, Compiled]):
        self.programs = programs
        capacity = self.n_read(capacity + max(programs))
        super().__init__(fast.model, functools.partial(over_rows, fast), fast.shapes, n_rows, capacity)

    def n_read(self, total: int) -> int:
        """The number of places in whole blocks."""
        return -(-total // BLOCK) * BLOCK

    def width(self, m: int) -> int:
        """The number of tokens of the compiled pass."""
        return min((width for width in self.programs if width >= m), default=m)

    def forward(self, ids: Tensor, positions: Tensor, places: Tensor, visible: Tensor) -> tuple[Tensor, ...]:
        """Run one pass over (rows, m) tokens."""
        run = self.programs.get(ids.shape[1])
        if run is None:  # the kernels of a single token read all places
            return super().forward(ids, positions, places, visible[..., : int(places.max()) + 1])
        given = ids, positions, additive(visible, self.model.dtype), places
        return tuple(run(*given, *self._first(visible.shape[-1])))

    def _zeros(self, heads: int, width: int) -> Tensor:
        return by_row(torch.zeros(self.capacity, self.n_rows, heads, width, dtype=self.model.dtype))


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add: (rows, m, total) bool -> (rows, 1, m, total), 0 where a token reads, the lowest number
    elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )[:, None]


# --- the kernels of RowsPass on the exported backend ------------------------------------------------------------------

_TEXTS = torch.export.Dim("texts", min=2, max=EXAMPLE_ROWS - 1)
Kernels = Callable[..., tuple[Tensor, ...]]
# The pass of each model, by whether it reads packed weights.
EXPORTED: WeakKeyDictionary[ExportedModel, dict[bool, Kernels]] = WeakKeyDictionary()
WRITTEN_DOWN: WeakKeyDictionary[ExportedModel, fx.GraphModule] = WeakKeyDictionary()


def over_rows(
    fast: ExportedModel,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor,
    places: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
) -> tuple[Tensor, ...]:
    """Run a pass over several texts, as RowsPass.forward does; it is exported when it is first needed.

    One text runs on the kernels of one text, a single token on those that are fastest for it: a batch of one costs what
    a loop over one text does. Its tokens stand at the last places of the views.
    """
    if ids.shape[0] == 1:
        rows = [[buffer[:, 0] for buffer in side] for side in (keys, values)]
        return fast.forward(ids, positions, mask, places[0], rows[0], rows[1])
    kernels = EXPORTED.setdefault(fast, {})
    if fast.packs_several not in kernels:
        graph = rewrites.copied(exported_rows(fast))
        if fast.packs_several:
            rewrites.pack_products(graph)
        kernels[fast.packs_several] = functions(graph)[0]
    return kernels[fast.packs_several](ids, positions, mask, places, *keys, *values)


def exported_rows(fast: ExportedModel) -> fx.GraphModule:
    """Return the kernels of a pass over several texts, exported when they are first needed."""
    if fast not in WRITTEN_DOWN:
        WRITTEN_DOWN[fast] = export_rows(fast.model, fast.shapes, range(len(decoder_layers(fast.model))))
    return WRITTEN_DOWN[fast]


def export_rows(model: PreTrainedModel, shapes: list, layers: Iterable[int]) -> fx.GraphModule:
    """The kernels of one pass over several texts, for any number of them, any width and any context."""
    rows, width, total = 3, 5, 7
    ids = torch.zeros(rows, width, dtype=torch.long, device=model.device)
    places = ids + torch.arange(width, device=model.device)
    mask = torch.zeros(rows, 1, width, total, dtype=model.dtype, device=model.device)
    keys, values = (
        [mask.new_zeros(EXAMPLE_ROWS, rows, n_heads, size)[:total] for n_heads, size in side]
        for side in zip(*shapes, strict=True)
    )
    of_ids, of_mask = {0: _TEXTS, 1: WIDTHS}, {0: _TEXTS, 2: WIDTHS, 3: TOTALS}
    of_buffers = [{0: TOTALS, 1: _TEXTS}] * len(shapes)
    dynamic = (of_ids, of_ids, of_mask, of_ids, of_buffers, of_buffers)
    return export(RowsPass(model, layers), (ids, places, mask, places.clone(), keys, values), dynamic)
