"""Rewrites of an exported forward pass: the same function with fewer kernels and other rounding.

Products of one input are joined, and the weights are packed the way oneDNN wants them: a pass over five tokens then
reads them as fast as a pass over one.
"""

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, fx

aten = torch.ops.aten
_ADDED, _numbers = "_lab_constant_", itertools.count()  # names of the tensors that the rewrites add


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """oneDNN packs float32 and, where the processor knows it, bfloat16."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_weight(weight: Tensor) -> Tensor:
    """A matrix in oneDNN's own order, for products of a few rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 4)


def constant(graph: fx.GraphModule, node: fx.Node | None) -> Tensor | None:
    """The tensor a node stands for; None for no node."""
    if node is None:
        return None
    return operator.attrgetter(node.target)(graph).detach()


def _add_constant(graph: fx.GraphModule, tensor: Tensor) -> fx.Node:
    """A new constant at the top of the graph."""
    name = f"{_ADDED}{next(_numbers)}"
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


def _groups(graph: fx.GraphModule) -> list[list[fx.Node]]:
    """Products with the same input, and alike in having a bias."""
    groups = defaultdict(list)
    for node in _products(graph):
        groups[node.args[0], len(node.args)].append(node)
    return list(groups.values())


def _joined(graph: fx.GraphModule, nodes: list[fx.Node]) -> fx.Node:
    """One product in the place of several with the same input, and its pieces in the places of theirs."""
    columns = zip(*(node.args[1:] for node in nodes), strict=True)  # weights, and biases where there are any
    constants = [[constant(graph, node) for node in column] for column in columns]
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
    """Run the product through oneDNN."""
    source, weight, *bias = node.args
    packed = _add_constant(graph, packed_weight(constant(graph, weight)))
    with graph.graph.inserting_before(node):
        arguments = (source, packed, bias[0] if bias else None, "none", [], "")
        product = graph.graph.call_function(torch.ops.mkldnn._linear_pointwise.default, arguments)
    _replace(node, product)
    if weight.target.startswith(_ADDED):
        delattr(graph, weight.target)  # a joined matrix that is not needed any more
        graph.graph.erase_node(weight)


def copied(graph: fx.GraphModule) -> fx.GraphModule:
    """Another list of the same kernels over the same tensors."""
    nodes = fx.Graph()
    nodes.output(nodes.graph_copy(graph.graph, {}))
    return fx.GraphModule(graph, nodes)


def halves(graph: fx.GraphModule, n_layers: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The list in two: the first `n_layers` decoder layers, which give their outputs, and everything behind them.

    graph: gives logits and the outputs of all layers. The second part takes the last output of the first one in the
    place of the ids; all other inputs are the same.
    """
    parts = []
    for is_first in (True, False):
        part = copied(graph)
        ids = next(node for node in part.graph.nodes if node.op == "placeholder")
        output = next(node for node in part.graph.nodes if node.op == "output")
        logits, *hidden = output.args[0]
        cut = hidden[n_layers - 1]
        nodes = list(part.graph.nodes)
        of_first = set(nodes[: nodes.index(cut) + 1])
        output.args = (tuple(hidden[:n_layers]) if is_first else (logits, *hidden[n_layers:]),)
        if not is_first:
            cut.replace_all_uses_with(ids)
        written = {node for node in nodes if node.op == "call_function" and node.is_impure()}  # rows of the buffers
        kept = {node for node in written if (node in of_first) == is_first}
        part.graph.eliminate_dead_code(lambda node, kept=kept: node.op in ("placeholder", "output") or node in kept)
        parts.append(part)
    return parts[0], parts[1]


def lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Weights become arguments: looking up `a.b.c.weight` in modules costs as much as a small kernel."""
    constants = []
    nodes = list(graph.graph.nodes)
    last_input = [node for node in nodes if node.op == "placeholder"][-1]
    for node in [node for node in nodes if node.op == "get_attr"]:
        constants.append(constant(graph, node))
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
    return functools.partial(type(graph).forward, None)  # no self: everything is an argument
