"""The fast gear's forward pass: the model's own code as one straight line of kernels.

A small model spends its time between the kernels. `torch.export` runs the Hugging Face forward once with symbolic
shapes and writes down the kernels it called; the lab replays that list, without the modules around it, over key-value
buffers that are allocated once and written in place. A few rewrites follow, the same function with other rounding:
products of one input are joined, rotary embeddings lose half of their kernels, and on a CPU the weights are packed the
way oneDNN wants them (a pass over five tokens then reads them as fast as a pass over one).

What comes out: `ExportedModel.forward`, which the gears of the CachedModel feed with ids, positions and views of their
buffers. A model that cannot be flattened raises `CannotExport` and keeps its eager gear; whether the logits are the
model's own is checked by speclab/models/select.py.
"""

import contextlib
import functools
import itertools
import logging
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, fx, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

aten = torch.ops.aten
# Sizes for the export alone: a view that fills its buffer would have other strides, so none does. Nothing in the list
# of kernels depends on the bounds, and no guard checks them later.
_EXAMPLE_ROWS = 64
_OURS, _numbers = "_flat_constant_", itertools.count()  # names of the tensors that the rewrites add
_WIDTHS = torch.export.Dim("width", min=2, max=_EXAMPLE_ROWS - 1)
_TOTALS = torch.export.Dim("total", min=2, max=_EXAMPLE_ROWS - 1)


class CannotExport(Exception):
    """Why this model stays in its eager gear, in one line."""


class WrittenInPlace(CacheLayerMixin):
    """One layer's keys and values as views of a buffer: a pass writes its own rows, the last ones, and reads all.

    keys, values: (1, kv heads, tokens before + tokens of this pass, head width)
    """

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor):
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        width = key_states.shape[2]
        before = self.keys.shape[2] - width
        self.keys.narrow(2, before, width).copy_(key_states)
        self.values.narrow(2, before, width).copy_(value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def lazy_initialization(self, *args) -> None:
        pass


class WrittenAtPositions(WrittenInPlace):
    """The same where a pass writes the rows of its positions, and the views may reach beyond them.

    Nothing here depends on a number the host knows, so that a CUDA graph of it can be replayed anywhere in the text.
    """

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor):
        super().__init__(keys, values)
        self._rows = positions[0]

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
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
    kernels: how often a pass calls what.
    least_width: narrower passes are padded to this many tokens, where that is faster (models/select.py finds out).
    graphed: whether passes run as CUDA graphs (backends/cuda_graphs.py); they then write the rows of their positions.
    lanes, pool, recipes: what those graphs run on and share, and what has been asked for so far.
    """

    def __init__(self, model: PreTrainedModel, graphed: bool | None = None):
        self.least_width = 1
        self.graphed = model.device.type == "cuda" if graphed is None else graphed
        self.lanes: list = []
        self.pool, self.recipes = None, set()
        self.shapes = kv_shapes(model)
        self.device, self.dtype = model.device, model.dtype
        self.packed = can_prepack(model.device, model.dtype)
        graph = exported(model, self)
        if self.packed:
            pack_products(graph)
        elif self.graphed:
            join_in_place(graph, model)
        rotate_by_roll(graph)
        self.kernels = Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        self._constants = lift_constants(graph)
        self._wide = as_function(graph)
        if not self.graphed:
            drop_mask(graph)
        self._narrow = as_function(graph)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """(1, m) ids and positions, (1, 1, m, total) mask, per layer views of `total` rows -> (1, m, vocab) logits

        The last m rows of the views are written; in a graphed model the rows of the positions.
        """
        run = self._narrow if ids.shape[1] == 1 else self._wide
        return run(ids, positions, mask, *keys, *values, *self._constants)[0]

    def buffers(self, capacity: int) -> tuple[list[Tensor], list[Tensor]]:
        """Empty keys and values for `capacity` tokens, a pair for every layer."""

        def new(shape: tuple[int, int]) -> Tensor:
            return torch.zeros(1, shape[0], capacity, shape[1], dtype=self.dtype, device=self.device)

        return [new(keys) for keys, _ in self.shapes], [new(values) for _, values in self.shapes]


def kv_shapes(model: PreTrainedModel) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """What each layer keeps of a token, found by asking the model."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    if not cache.layers or any(type(layer) is not DynamicLayer for layer in cache.layers):
        raise CannotExport("not all of its layers keep plain keys and values of the whole text")
    return [
        ((layer.keys.shape[1], layer.keys.shape[3]), (layer.values.shape[1], layer.values.shape[3]))
        for layer in cache.layers
    ]


def first_line(error: Exception) -> str:
    """What an error of some library says, short enough for one line of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


def context_length(model: PreTrainedModel) -> int | None:
    """How many positions can be decoded with a cache; None where the config sets no limit.

    Families name it differently. Learned positions after a padding index are fewer than the table has rows. Where a
    config has other rotary factors for long texts ("longrope"), keys that are cached before that border are wrong after
    it, so it is the limit.
    """
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "max_target_positions", "max_seq_len")
    named = (getattr(config, name, None) for name in names)
    limits = [n for n in named if isinstance(n, int) and n > 0][:1]
    for name, module in model.named_modules():
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):
        if isinstance(part, dict) and part.get("rope_type") == "longrope":
            border = part.get("original_max_position_embeddings")
            limits += [border or getattr(config, "original_max_position_embeddings", None) or 0]
    return min((n for n in limits if n), default=None)


def causal_mask(width: int, total: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1, 1, width, total): the last `width` of `total` tokens, each reading what stands before it and itself"""
    mask = torch.full((width, total), torch.finfo(dtype).min, dtype=dtype, device=device)
    return mask.triu_(total - width + 1)[None, None]


def exported(model: PreTrainedModel, flat: ExportedModel) -> fx.GraphModule:
    """The kernels of one pass, for any width and any context."""
    width, total = 3, 7
    keys, values = flat.buffers(_EXAMPLE_ROWS)
    views = [[buffer[:, :, :total] for buffer in side] for side in (keys, values)]
    arguments = (
        torch.zeros(1, width, dtype=torch.long, device=flat.device),
        torch.arange(total - width, total, device=flat.device)[None],
        causal_mask(width, total, flat.dtype, flat.device),
        *views,
    )
    n_layers = len(flat.shapes)
    shapes = (
        {1: _WIDTHS},
        {1: _WIDTHS},
        {2: _WIDTHS, 3: _TOTALS},
        [{2: _TOTALS}] * n_layers,
        [{2: _TOTALS}] * n_layers,
    )
    try:
        with torch.no_grad(), _quiet_logs():
            program = torch.export.export(_Pass(model, flat.graphed), arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever the model's code does that cannot be written down
        raise CannotExport(f"torch.export gave up: {first_line(error)}") from None
    graph = program.module(check_guards=False)
    for node in list(graph.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default or _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    return graph


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """torch.export logs pages about what it cannot write down; one line of them is kept as the reason."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _changes_nothing(node: fx.Node) -> bool:
    """A conversion to the type and device that a tensor already has, or a second name for it."""
    if node.target is aten.alias.default:
        return True
    if node.target not in (aten.to.dtype, aten.to.device):
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]
    return before.dtype == after.dtype and before.device == after.device


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """oneDNN packs float32 and, where the processor knows it, bfloat16."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _constant(graph: fx.GraphModule, node: fx.Node | None) -> Tensor | None:
    """The tensor a node stands for; None for no node."""
    if node is None:
        return None
    found = graph
    for name in node.target.split("."):
        found = getattr(found, name)
    return found.detach()


def _add_constant(graph: fx.GraphModule, tensor: Tensor) -> fx.Node:
    """A new constant at the top of the graph."""
    name = f"{_OURS}{next(_numbers)}"
    setattr(graph, name, tensor)  # a plain attribute: oneDNN's packed tensors are opaque
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        return graph.graph.create_node("get_attr", name)


def _replace(old: fx.Node, new: fx.Node) -> None:
    """Put `new`, which gives the same tensor, in the place of `old`."""
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _products(graph: fx.GraphModule) -> list[fx.Node]:
    """Every product with a constant matrix: (input, weight, bias or none)."""
    return [
        node
        for node in graph.graph.nodes
        if node.target is aten.linear.default and all(a is None or a.op == "get_attr" for a in node.args[1:])
    ]


def pack_products(graph: fx.GraphModule) -> None:
    """Weights in oneDNN's own order, products of one input joined: queries, keys and values are one, gate and up are.

    A group at a time, so that no third copy of all weights is ever held.
    """
    for nodes in _groups(graph):
        _pack(graph, _joined(graph, nodes) if len(nodes) > 1 else nodes[0])


def join_in_place(graph: fx.GraphModule, model: PreTrainedModel) -> None:
    """Joins the products without a second copy: the model's own weights become views of the joined matrices."""
    for nodes in _groups(graph):
        if len(nodes) < 2:
            continue
        names = [[argument.target.removeprefix("model.") for argument in node.args[1:]] for node in nodes]
        joined = _joined(graph, nodes)
        for argument, column in zip(joined.args[1:], zip(*names, strict=True), strict=True):
            parameters = [model.get_parameter(name) for name in column]
            pieces = _constant(graph, argument).split([p.shape[0] for p in parameters])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.data = piece


def _groups(graph: fx.GraphModule) -> list[list[fx.Node]]:
    """Products with the same input, and alike in having a bias."""
    groups = defaultdict(list)
    for node in _products(graph):
        groups[node.args[0], len(node.args)].append(node)
    return list(groups.values())


def _joined(graph: fx.GraphModule, nodes: list[fx.Node]) -> fx.Node:
    """One product in the place of several with the same input, and its pieces in the places of theirs."""
    columns = zip(*(node.args[1:] for node in nodes), strict=True)  # weights, and biases where there are any
    constants = [[_constant(graph, node) for node in column] for column in columns]
    sizes = [weight.shape[0] for weight in constants[0]]
    joined_constants = [_add_constant(graph, torch.cat(tensors)) for tensors in constants]
    with graph.graph.inserting_before(nodes[0]):
        joined = graph.graph.call_function(aten.linear.default, (nodes[0].args[0], *joined_constants))
        parts = graph.graph.call_function(aten.split_with_sizes.default, (joined, sizes, -1))
        pieces = [graph.graph.call_function(operator.getitem, (parts, i)) for i in range(len(nodes))]
    for node, piece in zip(nodes, pieces, strict=True):
        _replace(node, piece)
    return joined


def _pack(graph: fx.GraphModule, node: fx.Node) -> None:
    """The product through oneDNN; a residual connection is added by the same kernel."""
    source, weight, *bias = node.args
    packed = _add_constant(graph, torch.ops.mkldnn._reorder_linear_weight(_constant(graph, weight).contiguous(), 4))
    bias = bias[0] if bias else None
    residual, total = _residual(node)
    with graph.graph.inserting_before(total):
        if residual is None:
            arguments = (source, packed, bias, "none", [], "")
            product = graph.graph.call_function(torch.ops.mkldnn._linear_pointwise.default, arguments)
        else:
            arguments = (source, residual, packed, bias, "add")
            product = graph.graph.call_function(torch.ops.mkldnn._linear_pointwise.binary, arguments)
    for done in dict.fromkeys((total, node)):
        _replace(done, product)
    if weight.target.startswith(_OURS):
        delattr(graph, weight.target)  # a joined matrix nobody needs any more
        graph.graph.erase_node(weight)


def _residual(product: fx.Node) -> tuple[fx.Node | None, fx.Node]:
    """(what the product is added to, the sum), or (None, the product) where it goes elsewhere."""
    total = next(iter(product.users)) if len(product.users) == 1 else None
    if total is None or total.target is not aten.add.Tensor or len(total.args) != 2 or total.kwargs:
        return None, product
    residual = next(a for a in total.args if a is not product) if total.args[0] is not total.args[1] else None
    if not isinstance(residual, fx.Node) or residual.op == "get_attr":
        return None, product
    sizes = [node.meta["val"].shape for node in (residual, total)]
    return (residual, total) if sizes[0] == sizes[1] else (None, product)


def rotate_by_roll(graph: fx.GraphModule) -> None:
    """Rotary embeddings: cat(-second half, first half) * sin is roll(x, half) * (-sin, sin): three kernels, not 7."""
    signed: dict[tuple, fx.Node] = {}  # by what the sine is made of: every layer makes the same one again
    for node in list(graph.graph.nodes):
        found = _rotated_half(node)
        if found is None or len(node.users) != 1:
            continue
        source, half = found
        product = next(iter(node.users))
        if product.target is not aten.mul.Tensor or product.args[0] is not node:
            continue
        sine = product.args[1]
        key = (sine.target, sine.args)
        if key not in signed:
            signs = torch.ones(2 * half, dtype=node.meta["val"].dtype, device=node.meta["val"].device)
            signs[:half] = -1
            constant = _add_constant(graph, signs)
            with graph.graph.inserting_after(sine):
                signed[key] = graph.graph.call_function(aten.mul.Tensor, (sine, constant))
        with graph.graph.inserting_before(product):
            rolled = graph.graph.call_function(aten.roll.default, (source, [half], [-1]))
        product.args = (rolled, signed[key])
        total = next(iter(product.users))
        if len(product.users) == 1 and total.target is aten.add.Tensor and total.args[1] is product:
            with graph.graph.inserting_before(total):
                sum_ = graph.graph.call_function(aten.addcmul.default, (total.args[0], rolled, signed[key]))
            _replace(total, sum_)
    graph.graph.eliminate_dead_code()


def _rotated_half(node: fx.Node) -> tuple[fx.Node, int] | None:
    """(x, half) where the node is cat([-x[..., half:], x[..., :half]], -1), else None."""
    if node.target is not aten.cat.default or len(node.args) != 2 or len(node.args[0]) != 2:
        return None
    negated, first = node.args[0]
    width = node.meta["val"].shape[-1]
    last = node.meta["val"].ndim - 1
    if negated.target is not aten.neg.default or node.args[1] not in (-1, last) or not isinstance(width, int):
        return None
    second = negated.args[0]
    if second.target is not aten.slice.Tensor or first.target is not aten.slice.Tensor:
        return None
    (source, *second_bounds), (same, *first_bounds) = second.args, first.args
    half = width // 2
    ends = second_bounds[:2] == [last, half] and second_bounds[2] >= width and first_bounds == [last, 0, half]
    whole = source.meta["val"].shape[-1] == width  # not the partial rotation of some families
    return (source, half) if source is same and ends and whole else None


def lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Weights become arguments: looking up `a.b.c.weight` in modules costs as much as a small kernel."""
    constants = []
    nodes = list(graph.graph.nodes)
    last_input = [node for node in nodes if node.op == "placeholder"][-1]
    for node in [node for node in nodes if node.op == "get_attr"]:
        constants.append(_constant(graph, node))
        with graph.graph.inserting_after(last_input):
            last_input = graph.graph.placeholder(f"constant_{len(constants)}")
        node.replace_all_uses_with(last_input)
        graph.graph.erase_node(node)
    return constants


def drop_mask(graph: fx.GraphModule) -> None:
    """A single token may read everything, and attention is faster when there is no mask."""
    mask = [node for node in graph.graph.nodes if node.op == "placeholder"][2]
    for node in graph.graph.nodes:
        if node.target is aten.scaled_dot_product_attention.default:
            node.args = tuple(None if argument is mask else argument for argument in node.args)


def as_function(graph: fx.GraphModule) -> Callable[..., tuple[Tensor]]:
    """The kernels as a Python function of inputs and constants."""
    graph.graph.set_codegen(fx.graph.CodeGen())
    graph.recompile()
    return functools.partial(type(graph).forward, None)  # it has no self to speak of: everything is an argument
