"""Passes over several texts at once: each row of a batch is a text of its own length.

Keys and values of all texts lie in buffers with a row for each. A pass writes a text's tokens at that text's own
places, and the mask keeps every token from what is not its text: the places behind it, which hold rejected tokens and
padding, are finite numbers, so that 0 times them is 0. The same pass runs as the library's own code, or as CUDA graphs,
one for each width and number of places. On the engine `c` pages are in the place of buffers.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from speclab.core.sampling import to_device
from speclab.engines.c_pass import CModel
from speclab.engines.cuda import graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel, WrittenInPlace, kv_shapes, rows_read
from speclab.engines.eager import decoder_layers, layer_outputs, masks, window_of

Outputs = tuple[Tensor, dict[int, Tensor]]
"""(rows, m, vocab) logits, and (rows, m, hidden) outputs of the layers that were asked for"""


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


class RowBuffers:
    """Keys and values of several texts: (rows, kv heads, capacity, head width) each, a pair for every layer.

    last: the highest position that a token may have.
    """

    def __init__(self, model: PreTrainedModel, n_rows: int, capacity: int, last: int):
        self.model, self.n_rows, self.capacity, self.last = model, n_rows, capacity, last
        self.window, self.layers = window_of(model), range(len(decoder_layers(model)))
        of_all: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
        self.keys, self.values = (
            [torch.zeros(n_rows, heads, capacity, width, **of_all) for heads, width in side]
            for side in zip(*kv_shapes(model), strict=True)
        )

    def prefill(self, row: int, prompt: Tensor, layers: Iterable[int]) -> Outputs:
        """Read a prompt, (1, n) ids, into a row.  -> (1, 1, vocab) logits of the last one, outputs of these layers. The
        model's own code reads it: a prompt is bound by arithmetic, not by kernel launches."""
        own = slice(row, row + 1), slice(None), slice(prompt.shape[1])
        views: list = [WrittenInPlace(k[own], v[own]) for k, v in zip(self.keys, self.values, strict=True)]
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        with layer_outputs(self.model, layers) as hidden:
            return self.model(input_ids=prompt, **options).logits, hidden

    def forward(self, ids: Tensor, starts: list[int], sizes: list[int], layers: Iterable[int]) -> Outputs:
        """Read (rows, m) ids, each row's behind its first `starts` tokens.  -> logits, outputs of these layers. sizes:
        so many first ones of a row count, the others are padding, which is computed like them."""
        logits, *hidden = self.run(*self.given(ids, starts))
        return logits, {layer: hidden[layer] for layer in layers}

    def given(self, ids: Tensor, starts: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `run` takes. Of the mask, 0 is where a token reads, the lowest number elsewhere."""
        m, device, dtype = ids.shape[1], ids.device, self.model.dtype
        places = to_device(starts, device)[:, None] + torch.arange(m, device=device)  # (rows, m)
        columns = torch.arange(self.n_read(max(starts) + m), device=device)
        seen = columns <= places[..., None]  # (rows, m, total)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)
        return ids, places.clamp(max=self.last), mask[:, None], places

    def run(self, ids: Tensor, positions: Tensor, mask: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        """(rows, m) ids, positions and places, (rows, 1, m, total) mask -> (rows, m, vocab) logits, and the outputs of
        all layers, (rows, m, hidden) each; attention reads the first `total` places."""
        row, total = torch.arange(self.n_rows, device=ids.device)[:, None], mask.shape[-1]
        pairs = zip(self.keys, self.values, strict=True)
        cache = Cache(layers=[WrittenAtPlaces(k[:, :, :total], v[:, :, :total], places, row) for k, v in pairs])
        options = {"position_ids": positions, "past_key_values": cache, "use_cache": True}
        with layer_outputs(self.model, self.layers) as hidden:
            logits = self.model(input_ids=ids, attention_mask=masks(mask, self.window), **options).logits
        return logits, *(hidden[layer] for layer in self.layers)

    def n_read(self, total: int) -> int:
        """The number of places that a pass reads, of which `total` may be in use."""
        return total

    def fill(self, generator: torch.Generator) -> None:
        for part in self.keys + self.values:
            part.normal_(generator=generator)


class GraphedRowBuffers(RowBuffers):
    """Row buffers with one CUDA graph for each width and number of places that are read, recorded when first needed."""

    def __init__(self, graphed: GraphedModel, n_rows: int, capacity: int, last: int):
        super().__init__(graphed.model, n_rows, capacity, last)
        self.kernels, self.graphs = graphed.kernels, dict[tuple[int, int], graphs.Graph]()

    def n_read(self, total: int) -> int:
        """The number of places that the graphs of single texts read."""
        return rows_read(total, self.capacity)

    def run(self, *given: Tensor) -> tuple[Tensor, ...]:
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
                ids = torch.zeros(self.n_rows, width, dtype=torch.long, device=self.model.device)
                given = self.given(ids, [total - width] * self.n_rows)
                self._graph(given)
                total = given[2].shape[-1] + 1

    def _graph(self, given: tuple[Tensor, ...]) -> graphs.Graph:
        """The graph of passes with tensors of these shapes: ids, positions, mask, places."""
        key = (given[0].shape[1], given[2].shape[-1])
        if key not in self.graphs:
            inputs = [tensor.clone() for tensor in given]  # warm-ups write what this pass writes

            @self.kernels.used()
            def step() -> tuple[Tensor, ...]:
                return RowBuffers.run(self, *inputs)

            replay, outputs = graphs.capture(step)
            self.graphs[key] = graphs.Graph(replay, inputs, outputs)
        return self.graphs[key]


class RowPages:
    """Keys and values of several texts on the engine `c`, in pages of each text. The tokens of all texts that count are
    one call of pass.c: padding is never computed. capacity: the most tokens that a text is meant to have."""

    def __init__(self, fast: CModel, n_rows: int, capacity: int, last: int):
        self.fast, self.capacity, self.last = fast, capacity, last
        self.rows = [fast.start() for _ in range(n_rows)]

    def prefill(self, row: int, prompt: Tensor, layers: Iterable[int]) -> Outputs:
        """Read a prompt, (1, n) ids, into new pages.  -> what RowBuffers.prefill gives"""
        backend = self.rows[row] = self.fast.start(layers)
        return backend.prefill(prompt), backend.hidden

    def forward(self, ids: Tensor, starts: list[int], sizes: list[int], layers: Iterable[int]) -> Outputs:
        """Run one pass, as RowBuffers.forward does. Of padding the logits and states are zeros."""
        n_rows, m = ids.shape
        live = [(row, i) for row, n in enumerate(sizes) for i in range(n)]
        number = torch.tensor([row * m + i for row, i in live])
        places = [(row, starts[row] + i) for row, i in live]
        # Text, position, row, and how many first rows are read: all up to the token's own.
        token = torch.tensor([(row, min(at, self.last), at, at + 1) for row, at in places], dtype=torch.int32)
        for backend, start in zip(self.rows, starts, strict=True):
            backend.reserve(start + m)
        chosen = ids.flatten()[number][None]
        logits, hidden = self.fast.run(self.rows, token, chosen, wanted=range(len(live)), kept=layers)

        def by_row(found: Tensor) -> Tensor:
            """(1, tokens, width) -> (rows, m, width)"""
            if len(live) < n_rows * m:
                found = found.new_zeros(1, n_rows * m, found.shape[-1]).index_copy_(1, number, found)
            return found[0].unflatten(0, (n_rows, m))

        return by_row(logits), {layer: by_row(states) for layer, states in hidden.items()}

    def fill(self, generator: torch.Generator) -> None:
        for backend in self.rows:
            backend.reserve(self.capacity)
            for page in backend.pages:
                page.normal_(generator=generator)
