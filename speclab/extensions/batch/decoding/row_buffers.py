"""Passes over several texts at once: each row of a batch is a text of its own length.

Keys and values of all texts lie in buffers with a row for each. A pass writes a text's tokens at that text's own
places, and the mask keeps every token from what is not its text: the places behind it, which hold rejected tokens and
padding, are read by the kernel and count for nothing. They are finite numbers, so that 0 times them is 0.

The same pass runs as the library's own code, or as CUDA graphs, one for each width and number of places. The engine `c`
has pages in the place of buffers (row_pages.py).
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from speclab.core.sampling import to_device
from speclab.engines.cuda import graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel, WrittenInPlace, kv_shapes, rows_read
from speclab.engines.eager import decoder_layers, layer_outputs, masks, window_of
from speclab.models.family import family_of

Outputs = tuple[Tensor, dict[int, Tensor]]
"""(rows, m, vocab) logits, and (rows, m, hidden) outputs of the layers that were asked for"""


@dataclass(frozen=True)
class Placed:
    """Where the `width` tokens of each row stand in a pass, and what they read.

    starts: the tokens of each row before the pass. sizes: so many first tokens of a row count, the others are padding.
    last: the highest position that there is.
    reads: (rows, m, m) bool, which of these tokens each one reads beside all before them; None: all up to itself.
    positions: (rows, m); None: each stands at its place, the first one right behind its row's text.
    """

    starts: list[int]
    sizes: list[int]
    width: int
    last: int
    reads: Tensor | None = None
    positions: Tensor | None = None

    @property
    def total(self) -> int:
        return max(self.starts) + self.width


def visible(places: Tensor, total: int, reads: Tensor | None) -> Tensor:
    """(rows, m) places of a pass's tokens, the first one right behind the row's text -> (rows, m, total) bool"""
    columns = torch.arange(total, device=places.device)
    if reads is None:
        return columns <= places[..., None]
    among = columns - places[:, :1]  # (rows, total) the number of the token that stands there, below 0 the text
    of_pass = reads.gather(-1, among.clamp(0, reads.shape[-1] - 1)[:, None].expand(-1, reads.shape[1], -1))
    return (among < 0)[:, None] | (of_pass & (among < reads.shape[-1])[:, None])


class WrittenAtPlaces(WrittenInPlace):
    """One layer's keys and values, (rows, heads, places, width), where a pass writes each row at places of its own.

    places: (rows, m). row: (rows, 1), the number of each row.
    """

    def __init__(self, keys: Tensor, values: Tensor, places: Tensor, row: Tensor):
        super().__init__(keys, values)
        self._places = row, places

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write (rows, heads, m, width) at the places, and return all of them, (rows, heads, places, width)."""
        self.keys.transpose(1, 2).index_put_(self._places, key_states.transpose(1, 2))
        self.values.transpose(1, 2).index_put_(self._places, value_states.transpose(1, 2))
        return self.keys, self.values


class RowsPass(nn.Module):
    """One pass of a model over several texts, with everything it depends on as an argument."""

    def __init__(self, model: PreTrainedModel, layers: Iterable[int]):
        super().__init__()
        self.model, self.layers, self.window = model, layers, window_of(model)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, places: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """(rows, m) ids, positions and places, (rows, 1, m, total) mask, the first `total` places of the buffers of
        each layer, (rows, kv heads, total, width) -> (rows, m, vocab) logits, and (rows, m, hidden) of each of
        `layers`."""
        row = torch.arange(places.shape[0], device=places.device)[:, None]
        cache = Cache(layers=[WrittenAtPlaces(k, v, places, row) for k, v in zip(keys, values, strict=True)])
        mask = masks(mask, self.window)
        options = {"position_ids": positions, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
        with layer_outputs(self.model, self.layers) as hidden:
            logits = self.model(input_ids=ids, **options).logits
        return logits, *(hidden[layer] for layer in self.layers)


class RowBuffers:
    """Keys and values of several texts: (rows, kv heads, capacity, head width) each, a pair for every layer."""

    def __init__(self, model: PreTrainedModel, n_rows: int, capacity: int):
        self.model, self.n_rows, self.capacity = model, n_rows, capacity
        self.run: Callable[..., tuple[Tensor, ...]] = RowsPass(model, range(len(decoder_layers(model))))
        self.keys, self.values = (
            [
                torch.zeros(n_rows, heads, capacity, width, dtype=model.dtype, device=model.device)
                for heads, width in side
            ]
            for side in zip(*kv_shapes(model), strict=True)
        )

    def prefill(self, row: int, prompt: Tensor, layers: Iterable[int]) -> Outputs:
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

    def forward(self, ids: Tensor, placed: Placed, layers: Iterable[int]) -> Outputs:
        start = to_device(placed.starts, ids.device)[:, None]
        places = start + torch.arange(placed.width, device=ids.device)  # (rows, m)
        positions = places.clamp(max=placed.last) if placed.positions is None else placed.positions
        seen = visible(places, self.n_read(placed.total), placed.reads)
        given = ids, positions, additive(seen, self.model.dtype), places
        logits, *hidden = self._run(given, seen.shape[-1])
        return logits, {layer: hidden[layer] for layer in layers}

    def _run(self, given: tuple[Tensor, ...], n_read: int) -> tuple[Tensor, ...]:
        return self.run(*given, *self._first(n_read))

    def n_read(self, total: int) -> int:
        """The number of places that a pass reads, of which `total` may be in use."""
        return total

    def move(self, starts: list[int], rows: Tensor) -> None:
        """Move keys and values of these tokens of each text's last pass, (texts, n), to its first places."""
        text = torch.arange(len(rows), device=rows.device)[:, None]
        first = to_device(starts, rows.device)[:, None]  # (texts, 1)
        for part in self.keys + self.values:
            transposed = part.transpose(1, 2)
            transposed[text, first + torch.arange(rows.shape[1], device=rows.device)] = transposed[text, first + rows]

    def fill(self, generator: torch.Generator) -> None:
        for part in self.keys + self.values:
            part.normal_(generator=generator)

    def _first(self, total: int) -> tuple[list[Tensor], list[Tensor]]:
        return [keys[:, :, :total] for keys in self.keys], [values[:, :, :total] for values in self.values]


class GraphedRowBuffers(RowBuffers):
    """Row buffers with one CUDA graph for each width and number of places that are read, recorded when first needed."""

    def __init__(self, graphed: GraphedModel, n_rows: int, capacity: int):
        super().__init__(graphed.model, n_rows, capacity)
        rows_pass = self.run

        def run(*inputs: Tensor | list[Tensor]) -> tuple[Tensor, ...]:
            with graphed.kernels.used():
                return rows_pass(*inputs)

        self.run = run
        self.graphs: dict[tuple[int, int], graphs.Graph] = {}

    def n_read(self, total: int) -> int:
        """The number of places that the graphs of single texts read."""
        return rows_read(total, self.capacity)

    def _run(self, given: tuple[Tensor, ...], n_read: int) -> tuple[Tensor, ...]:
        """Run a pass as a replay: the next one writes the outputs of layers to the same places."""
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
                seen = places.new_ones((self.n_rows, width, read), dtype=torch.bool)
                room = family_of(self.model).room(self.model.config)
                positions = places.clamp(max=(room.text or sys.maxsize) - 1)  # buffers may hold more
                self._graph((torch.zeros_like(places), positions, additive(seen, self.model.dtype), places))
                total = read + 1

    def _graph(self, given: tuple[Tensor, ...]) -> graphs.Graph:
        """The graph of passes with tensors of these shapes: ids, positions, mask, places."""
        key = (given[0].shape[1], given[2].shape[-1])
        if key not in self.graphs:
            inputs = [tensor.clone() for tensor in given]  # warm-ups write what this pass writes
            replay, outputs = graphs.capture(lambda: self.run(*inputs, *self._first(key[1])))
            self.graphs[key] = graphs.Graph(replay, inputs, outputs)
        return self.graphs[key]


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add: (rows, m, total) bool -> (rows, 1, m, total), 0 where a token reads, the lowest number
    elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
