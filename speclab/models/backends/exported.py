"""The exported backend: the model's own forward pass as one straight line of kernels over buffers written in place.

A small model spends its time between the kernels. `torch.export` runs the Hugging Face forward once with symbolic
shapes and writes down the kernels it called; the lab replays that list, without the modules around it, over key-value
buffers that are allocated once. Rewrites follow (rewrites.py).

A model that cannot be exported raises `CannotExport` and keeps the eager backend. Whether the logits are right
is checked by speclab/models/select.py.
"""

import logging
import sys
from typing import Any

import torch
from torch import Tensor, fx, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from speclab.models.backends import rewrites
from speclab.models.limits import cached_layers, context_length
from speclab.system.errors import first_line

aten = torch.ops.aten
# Sizes for the export alone: a view that fills its buffer would have other strides, so none does. Nothing in the list
# of kernels depends on the bounds, and no guard checks them later.
_EXAMPLE_ROWS = 64
_WIDTHS = torch.export.Dim("width", min=2, max=_EXAMPLE_ROWS - 1)
_TOTALS = torch.export.Dim("total", min=2, max=_EXAMPLE_ROWS - 1)
WIDEST = 64  # passes up to this width take their mask from a table


class CannotExport(Exception):
    """Why this model cannot be exported, in one line."""


class WrittenInPlace(CacheLayerMixin):
    """One layer's keys and values as views of a buffer: a pass writes its own rows, the last ones, and reads all.

    keys, values: (1, kv heads, tokens before + tokens of this pass, head width)
    """

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor):
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write this pass's rows; give all of them."""
        width = key_states.shape[2]
        before = self.keys.shape[2] - width
        self.keys.narrow(2, before, width).copy_(key_states)
        self.values.narrow(2, before, width).copy_(value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that attention reads, and where they start."""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        """0: positions are always given."""
        return 0  # positions are always given

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def lazy_initialization(self, *args) -> None:
        """Nothing to do."""


class WrittenAtPositions(WrittenInPlace):
    """The same where a pass writes the rows of its positions, and the views may reach beyond them.

    Nothing here depends on a number the host knows, so that a CUDA graph of it can be replayed anywhere in the text.
    """

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor):
        super().__init__(keys, values)
        self._rows = positions[0]

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write the rows of the positions; give all of them."""
        self.keys.index_copy_(2, self._rows, key_states)
        self.values.index_copy_(2, self._rows, value_states)
        return self.keys, self.values


class _Pass(nn.Module):
    """One forward pass with everything it depends on as an argument: what gets exported."""

    def __init__(self, model: PreTrainedModel, at_positions: bool):
        super().__init__()
        self.model, self.at_positions = model, at_positions

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        pairs = zip(keys, values, strict=True)
        if self.at_positions:
            cache = Cache(layers=[WrittenAtPositions(k, v, positions) for k, v in pairs])
        else:
            cache = Cache(layers=[WrittenInPlace(k, v) for k, v in pairs])
        options = {"position_ids": positions, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
        return self.model(input_ids=ids, **options).logits


class ExportedModel:
    """The exported forward of one model. It has no state: buffers and positions come in.

    shapes: for every layer the (kv heads, head width) of its keys and of its values.
    packed: whether the products read copies of the weights in oneDNN's own order.
    least_width: narrower passes are padded to this many tokens, where that is faster (models/select.py finds out).
    graphed: whether passes run as CUDA graphs (backends/cuda_graphs.py); they then write the rows of their positions.
    graph_caches, pool, graph_keys: what those graphs run on and share, and what has been asked for so far.
    """

    def __init__(self, model: PreTrainedModel, graphed: bool | None = None):
        self.least_width = 1
        self.graphed = model.device.type == "cuda" if graphed is None else graphed
        self.graph_caches: list = []
        self.pool: Any = None
        self.graph_keys: set = set()
        self.shapes = _kv_shapes(model)
        self.device, self.dtype = model.device, model.dtype
        self.packed = rewrites.can_prepack(model.device, model.dtype)
        graph = export_forward(model, self)
        if self.packed:
            rewrites.pack_products(graph)
        elif self.graphed:
            rewrites.join_in_place(graph, model)
        rewrites.rotate_by_roll(graph)
        self._constants = rewrites.lift_constants(graph)
        self._wide = rewrites.as_function(graph)
        if not self.graphed:
            rewrites.drop_mask(graph)
        self._narrow = rewrites.as_function(graph)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """(1, m) ids and positions, (1, 1, m, total) mask, per layer views of `total` rows -> (1, m, vocab) logits

        The last m rows of the views are written; in a graphed model the rows of the positions.
        """
        run = self._narrow if ids.shape[1] == 1 else self._wide
        return run(ids, positions, mask, *keys, *values, *self._constants)[0]


class Buffers:
    """Keys and values of one text, allocated once: (1, kv heads, capacity, head width) each, a pair for every layer.

    places: (1, capacity), the positions of their rows.
    """

    SPARE = 512  # tokens that new buffers can take after a prompt before they have to grow

    def __init__(self, exported: ExportedModel, capacity: int):
        self.exported, self.capacity = exported, capacity
        self.places = torch.arange(capacity, device=exported.device)[None]
        self._masks = causal_mask(WIDEST, capacity + WIDEST, exported.dtype, exported.device)
        self.keys, self.values = (
            [self._zeros(*shape) for shape in side] for side in zip(*exported.shapes, strict=True)
        )

    def _zeros(self, n_heads: int, width: int) -> Tensor:
        return torch.zeros(1, n_heads, self.capacity, width, dtype=self.exported.dtype, device=self.exported.device)

    def first(self, n_rows: int) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the first rows: keys, values."""
        return [keys[:, :, :n_rows] for keys in self.keys], [values[:, :, :n_rows] for values in self.values]

    def mask(self, width: int, total: int) -> Tensor:
        """(1, 1, width, total): of a pass that leaves `total` tokens."""
        if width > WIDEST:
            return causal_mask(width, total, self.exported.dtype, self.exported.device)
        # Row i of a pass after `length` tokens reads column j while j <= length + i: the same table, moved to the left.
        start = self.capacity - (total - width)
        return self._masks[:, :, :width, start : start + total]

    def copy_from(self, other: "Buffers", n_rows: int) -> None:
        """Take over the first rows of smaller buffers."""
        for old, new in zip(other.keys + other.values, self.keys + self.values, strict=True):
            new[:, :, :n_rows] = old[:, :, :n_rows]


class ExportedBackend:
    """The exported model over buffers that are written in place: nothing is copied from round to round.

    Rolling back is free: rows after the length are never read, and the next pass overwrites them.
    """

    def __init__(self, model: PreTrainedModel, exported: ExportedModel):
        self._model, self._exported = model, exported
        self._most_positions = context_length(model) or sys.maxsize

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits.

        The prompt is bound by arithmetic, not by kernel launches: the model's own code reads it, into the buffers.
        """
        n = prompt.shape[1]
        self._buffers = self._new_buffers(self._rows(n, n + Buffers.SPARE))
        views: list = [WrittenInPlace(keys, values) for keys, values in zip(*self._buffers.first(n), strict=True)]
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        return self._model(input_ids=prompt, **options).logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        n_tokens = tokens.shape[1]
        width = max(n_tokens, self._exported.least_width)
        if length + width > self._most_positions:
            width = n_tokens
        if width > n_tokens:  # padding comes last, so no other row reads it, and the next pass overwrites it
            tokens = nn.functional.pad(tokens, (0, width - n_tokens))
        total = length + width
        self._reserve(total, length)
        buffers = self._buffers
        positions, mask = buffers.places[:, length:total], buffers.mask(width, total)
        return self._exported.forward(tokens, positions, mask, *buffers.first(total))[:, :n_tokens]

    def crop(self, n_tokens: int) -> None:
        """Nothing to do: rows after the length are never read."""

    def _new_buffers(self, capacity: int) -> Buffers:
        return Buffers(self._exported, capacity)

    def _rows(self, needed: int, wished: int) -> int:
        """Of new buffers: `wished`, or the model's positions where they are fewer, and never less than `needed`."""
        return max(needed, min(wished, self._most_positions))

    def _reserve(self, total: int, length: int) -> None:
        """Make room for `total` tokens, twice as many as before if the model has them; keep the first `length`."""
        old = self._buffers
        if total > old.capacity:
            self._buffers = self._new_buffers(self._rows(total, 2 * old.capacity))
            self._buffers.copy_from(old, length)


def _kv_shapes(model: PreTrainedModel) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """What each layer keeps of a token: (kv heads, head width) of its keys and of its values."""
    layers = cached_layers(model)
    if not layers or any(type(layer) is not DynamicLayer for layer in layers):
        raise CannotExport("not all of its layers keep plain keys and values of the whole text")
    pairs = ((layer.keys.shape, layer.values.shape) for layer in layers)
    return [((keys[1], keys[3]), (values[1], values[3])) for keys, values in pairs]


def causal_mask(width: int, total: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1, 1, width, total): the last `width` of `total` tokens, each reading what stands before it and itself"""
    mask = torch.full((width, total), torch.finfo(dtype).min, dtype=dtype, device=device)
    return mask.triu_(total - width + 1)[None, None]


def export_forward(model: PreTrainedModel, exported: ExportedModel) -> fx.GraphModule:
    """The kernels of one pass, for any width and any context."""
    width, total, device = 3, 7, exported.device
    arguments = (
        torch.zeros(1, width, dtype=torch.long, device=device),
        torch.arange(total - width, total, device=device)[None],
        causal_mask(width, total, exported.dtype, device),
        *Buffers(exported, _EXAMPLE_ROWS).first(total),
    )
    of_buffers = [{2: _TOTALS}] * len(exported.shapes)
    shapes = ({1: _WIDTHS}, {1: _WIDTHS}, {2: _WIDTHS, 3: _TOTALS}, of_buffers, of_buffers)
    one_pass, before = _Pass(model, exported.graphed), logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch.export logs pages; one line of them is kept as the reason
    try:
        with torch.no_grad():
            program = torch.export.export(one_pass, arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever the model's code does that cannot be written down
        raise CannotExport(f"torch.export gave up: {first_line(error)}") from None
    finally:
        logging.disable(before)
    graph = program.module(check_guards=False)
    for node in list(graph.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default or _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    return graph


def _changes_nothing(node: fx.Node) -> bool:
    """A conversion to the type and device that a tensor already has, or a second name for it."""
    if node.target is aten.alias.default:
        return True
    if node.target not in (aten.to.dtype, aten.to.device):
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]
    return before.dtype == after.dtype and before.device == after.device
