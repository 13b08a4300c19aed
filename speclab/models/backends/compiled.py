"""Passes compiled by TorchInductor: the exported forward, cut into its layers, as machine code for one width each.

Kernels that are called one by one leave the processor waiting between them, and the usual products read a weight matrix
at a part of the memory's speed when there are few rows. Inductor writes one C++ function for a whole layer. Products
are given to it as sums over the columns, one for each row: it merges them into one loop that reads every weight once.

Layers that are alike share one compiled function, and their weights are arguments, so a model with thirty layers is
compiled as fast as one with two. A function serves any length of the text: it reads buffers of whole blocks of rows.
The functions are packages in the user's cache folder (speclab/models/backends/packages.py).
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from speclab.models.backends import packages, rewrites
from speclab.models.backends.compile_functions import BLOCK, Call, attention, product
from speclab.models.backends.exporting import export
from speclab.models.family import NoFastBackend
from speclab.system.errors import first_line

aten = torch.ops.aten
LANES = {"AVX512": 16, "AVX2": 8}  # numbers of 32 bits in a register
WIDEST = 9  # tokens of a compiled pass: every row of a product is one more sum in its loop
_VIEWS = (
    aten.reshape.default,
    aten.view.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.clone.default,
    aten.slice.Tensor,
    aten.permute.default,
)
Blocks = dict[int, Tensor]
"""matrices in blocks, by the identity of the matrix"""


class GraphPart(NamedTuple):
    """A part of the pass as a module, with its inputs and outputs as nodes of the whole graph."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]

    @property
    def form(self) -> str:
        """Return a text that says what the part computes. Layers that are alike have the same text."""
        return "\n".join([_steps_of(self.module), *(str(node.meta["val"].shape) for node in self.inputs)])


class Step(NamedTuple):
    """A compiled function with its inputs.

    A pass keeps its arguments, and then all results of its steps, in one list; a slot is a place in that list.
    run: it takes a list of tensors. inputs: the constants in that list, None elsewhere. holes: (place in the list,
    slot) of every other input.
    """

    run: Any
    inputs: list[Tensor | None]
    holes: list[tuple[int, int]]


class Program:
    """A compiled pass over `width` tokens of one text, or of each of several. It is called like the replayed one
    (`Replayed` in exported.py).

    It is made for these sizes, for contiguous inputs and for buffers of whole blocks of rows, and checks none of this.

    steps: what comes before the layers, each layer, and what comes behind them. outputs: the slots of the logits and of
    the outputs of the layers.
    """

    def __init__(self, width: int, steps: list[Step], outputs: list[int]):
        self.width, self._steps, self._outputs = width, steps, outputs

    @staticmethod
    def n_rows(total: int) -> int:
        """Return the number of rows that a pass reads which ends with token `total`: whole blocks."""
        return -(-total // BLOCK) * BLOCK

    def __call__(self, ids: Tensor, *arguments: Any) -> list[Tensor]:
        """Run the pass over one text: (1, width) ids and positions, (1, 1, width, n) mask, (width,) places, and the
        first n rows of the keys and of the values, (n, heads, head width) for each layer; n is a multiple of BLOCK.

        Over several: (texts, width) ids, positions and places, (texts, 1, width, n) mask, (n, texts, heads, head width)
        keys and values.  -> logits and the outputs of the layers, (texts, width, ...) each
        """
        values = self._values(ids, *arguments)
        self._run(values, self._steps)
        return [values[slot] for slot in self._outputs]

    def first(self, n_layers: int, ids: Tensor, *arguments: Any) -> list[Tensor]:
        """Run the first layers alone, over one text.  -> their outputs, (1, width, hidden) each"""
        values = self._values(ids, *arguments)
        self._run(values, self._steps[: 1 + n_layers])
        return [values[slot] for slot in self._outputs[1 : 1 + n_layers]]

    def rest(self, n_layers: int, states: Tensor, *arguments: Any) -> list[Tensor]:
        """Run all layers but the first ones, whose last outputs are (1, width, hidden), over one text.

        -> logits (1, width, vocab) and the outputs of these layers, (1, width, hidden) each
        """
        ids = torch.zeros(1, self.width, dtype=torch.long)  # the layers left read what is made before them, not the ids
        values = self._values(ids, *arguments)
        self._run(values, self._steps[:1])
        values += [states.contiguous()] * n_layers  # in the slots of the outputs of these layers; the last one is read
        self._run(values, self._steps[1 + n_layers :])
        return [values[slot] for slot in (self._outputs[0], *self._outputs[1 + n_layers :])]

    @staticmethod
    def _values(
        ids: Tensor, positions: Tensor, mask: Tensor, places: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> list[Tensor]:
        """Return the arguments of the pass. Compiled functions take the strides of inputs as given."""
        copied = (tensor.contiguous() for tensor in (ids, positions, mask, places))  # the first rows of buffers are
        return [*copied, *keys, *values]

    @staticmethod
    def _run(values: list[Tensor], steps: list[Step]) -> None:
        """Run these steps, and add what they give to the values."""
        for step in steps:
            inputs = step.inputs.copy()
            for place, slot in step.holes:
                inputs[place] = values[slot]
            values += step.run(inputs)


class CutPass:
    """An exported pass in parts: what comes before the layers, each layer, and what comes behind them.

    graph: gives logits and the outputs of all layers; it reads ids, positions, mask, places and the rows of the
    buffers. blocks: the matrices in blocks of another pass over the same weights, which it shares. Raises NoFastBackend
    for a pass that has no such parts.
    """

    def __init__(self, graph: fx.GraphModule, blocks: Blocks | None = None):
        self._graph, self.blocks = graph, {} if blocks is None else blocks
        _write_out(graph, self.blocks)
        self.arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._take_sizes_from_mask()
        output = next(node for node in graph.graph.nodes if node.op == "output")
        self.outputs: tuple[fx.Node, ...] = output.args[0]
        if len(self.outputs) < 2 or len(set(self.outputs)) < len(self.outputs):
            raise NoFastBackend("the outputs of its layers are not those of the pass")
        self.parts = list(self._parts())

    def _take_sizes_from_mask(self) -> None:
        """Take every size from the mask, which has them all. An exporter may take some from the keys of one layer, and
        the others would then have one more input."""
        mask = self.arguments[2]
        sizes = {str(size): dimension for dimension, size in enumerate(mask.meta["val"].shape)}
        for node in self._graph.graph.nodes:
            if node.target is aten.sym_size.int and (dimension := sizes.get(str(node.meta["val"]))) is not None:
                node.args = (mask, dimension)

    @property
    def bytes_spared(self) -> int:
        """Return the bytes of float32 weights that a pass does not read, because bfloat16 holds them exactly."""
        read = {node for part in self.parts for node in part.inputs if node.op == "get_attr"}
        constants = {id(t): t for node in read if (t := rewrites.constant(self._graph, node)) is not None}
        return sum(2 * t.numel() for t in constants.values() if t.dtype == torch.bfloat16)

    def program(
        self, width: int, threads: int, find: packages.Find = packages.in_folder, n_texts: int = 1
    ) -> Program | None:
        """Return the compiled pass over `width` tokens of each text, None where `find` lacks one of its functions.

        n_texts: texts of the pass, where it was exported for several. Raises NoFastBackend where a part cannot be
        compiled.
        """
        shapes = FakeTensorMode()  # sizes and strides are computed, and no numbers
        example = {node: shapes.from_tensor(tensor) for node, tensor in self._example(n_texts, width).items()}
        n_rows = self.arguments[4].meta["val"].shape[0]
        slots = {node: slot for slot, node in enumerate(example)}
        steps: list[Step] = []
        results: dict[str, Any] = {}  # of the parts, by the names of their functions
        for part in self.parts:
            constants = [rewrites.constant(self._graph, n) if n.op == "get_attr" else None for n in part.inputs]
            given = [
                example[n] if constant is None else shapes.from_tensor(constant)
                for n, constant in zip(part.inputs, constants, strict=True)
            ]
            # What comes before the layers is too little to be worth a compiled function.
            run = _function(part, given, n_rows, threads, find) if steps else _called(part.module)
            if (name := _name_of(part, given, threads)) not in results:  # layers that are alike give the same sizes
                with torch.no_grad(), shapes:
                    results[name] = part.module(*given)
            example.update(zip(part.outputs, results[name], strict=True))
            steps.append(Step(run, constants, [(i, slots[n]) for i, n in enumerate(part.inputs) if n in slots]))
            slots |= {node: len(slots) + i for i, node in enumerate(part.outputs)}
        outputs = [slots[node] for node in self.outputs]
        return Program(width, steps, outputs) if all(step.run for step in steps) else None

    def _example(self, n_texts: int, width: int) -> dict[fx.Node, Any]:
        """Return inputs of a pass over so many tokens: zeros, as only their sizes count."""
        shapes = {node: node.meta["val"].shape for node in self.arguments}
        ids, _, mask, *_ = shapes.values()
        n_rows = 2 * BLOCK  # neither 1, which is special, nor a size of the model
        sizes = {str(ids[0]): n_texts, str(ids[1]): width, str(mask[-1]): n_rows}
        return {
            node: torch.zeros([sizes.get(str(size), size) for size in shape], dtype=node.meta["val"].dtype)
            for node, shape in shapes.items()
        }

    def _parts(self) -> Iterator[GraphPart]:
        """Cut the graph at the outputs of its layers. Raises NoFastBackend where nothing comes before them."""
        logits, *hidden = self.outputs
        nodes = list(self._graph.graph.nodes)
        at = {node: i for i, node in enumerate(nodes)}
        needed = []
        for i, layer in enumerate([*hidden, logits]):
            begin, end = at[hidden[i - 1]] if i else -1, at[layer]
            written = [n for n in nodes[begin + 1 : end] if n.op == "call_function" and n.is_impure()]
            needed.append(_ancestors([layer, *written], set(hidden[:i])))
        # What several layers read is made once, before them: rotary angles, the masks of windows.
        several = {n for n in nodes if sum(n in part for part in needed) > 1 and not _is_size(n)}
        bodies = [{n for n in part if n not in several} for part in needed]
        first = self._first_input(bodies, hidden)
        bodies[0] -= _ancestors(first, set())
        before = several | _ancestors(first, set())
        used = {n for body in bodies for node in body for n in node.all_input_nodes}
        shared = tuple(n for n in nodes if n in before and n in used and not _is_size(n))
        if not shared:
            raise NoFastBackend("its layers read nothing that is made before them")
        yield _part(self._graph, _ancestors(shared, set()), shared)
        for body, layer in zip(bodies, [*hidden, logits], strict=True):
            yield _part(self._graph, body | {n for n in nodes if _is_size(n)}, (layer,))

    def _first_input(self, bodies: list[set[fx.Node]], hidden: list[fx.Node]) -> set[fx.Node]:
        """Return the node that the first layer reads where the second one reads the first one's output: {node}.

        With that node both layers are alike. Where no node makes them so, it is the first one of that size, which is
        the embedding.
        """
        nodes = self._graph.graph.nodes
        sizes, like = {n for n in nodes if _is_size(n)}, hidden[0].meta["val"].shape
        able = [n for n in nodes if n in bodies[0] - {hidden[0]} and getattr(n.meta["val"], "shape", None) == like]
        second = _part(self._graph, bodies[1] | sizes, (hidden[1],)).form if len(hidden) > 1 else ""
        for node in able if second else []:
            body = _ancestors([hidden[0], *(n for n in bodies[0] if n.is_impure())], {node}) & bodies[0]
            if _part(self._graph, body | sizes, (hidden[0],)).form == second:
                return {node}
        return set(able[:1])


def _steps_of(module: fx.GraphModule) -> str:
    """Return what a graph calls, a line for each step, without the names of its nodes."""
    number = {node: i for i, node in enumerate(module.graph.nodes)}
    lines = []
    for node in module.graph.nodes:
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda other: f"%{number[other]}")
        lines.append(f"{node.op} {_name(node.target) if node.op == 'call_function' else ''} {arguments}")
    return "\n".join(lines)


def name_of_pass(graph: fx.GraphModule, widths: Iterable[int], threads: int) -> str:
    """Return the name under which the folder knows that an exported pass was compiled for these widths.

    graph: the pass as it was exported. Passes of the same steps over weights of the same sizes have one name.
    """
    constants = (rewrites.constant(graph, node) for node in graph.graph.nodes if node.op == "get_attr")
    sizes = [(tuple(tensor.shape), str(_shortest(tensor).dtype)) for tensor in constants if tensor is not None]
    return packages.name_of(_steps_of(graph), [tuple(sorted(widths)), *sizes], threads)


def _part(graph: fx.GraphModule, body: set[fx.Node], outputs: tuple[fx.Node, ...]) -> GraphPart:
    """Return a part of the graph as a module of its own. Sizes in `body` that it does not need are left out."""
    wanted = {n for n in body if not _is_size(n)}
    wanted |= {n for n in _ancestors(list(wanted), set()) if _is_size(n)}
    part = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    inputs: list[fx.Node] = []
    ordered = [n for n in graph.graph.nodes if n in wanted]
    for node in ordered:
        for source in node.all_input_nodes:
            if source not in wanted and source not in made:
                made[source] = part.placeholder(f"input_{len(inputs)}")
                inputs.append(source)
    for node in ordered:
        made[node] = part.node_copy(node, made.__getitem__)
    part.output(tuple(made[node] for node in outputs))
    return GraphPart(fx.GraphModule(graph, part), tuple(inputs), outputs)


def _function(part: GraphPart, given: list[Any], n_rows: Any, threads: int, find: packages.Find) -> packages.Run | None:
    """Return a part as a compiled function, or None where `find` lacks it.

    given: example inputs. n_rows: the number of rows of the buffers as a symbol; every size with it may differ.
    """

    def source() -> packages.Source:
        shapes = [node.meta["val"].shape for node in part.inputs]
        sizes = [[i for i, size in enumerate(shape) if str(size) == str(n_rows)] for shape in shapes]
        return part.module, tuple(given), sizes, threads

    return find(_name_of(part, given, threads), source)


def _name_of(part: GraphPart, given: list[Any], threads: int) -> str:
    """Return the name of a part as a compiled function. given: example inputs."""
    return packages.name_of(part.form, [(tuple(t.shape), t.stride(), str(t.dtype)) for t in given], threads)


def whole_function(
    function: nn.Module, inputs: tuple[Tensor, ...], sizes: list[list[int]], threads: int, find: packages.Find
) -> Callable[..., Any] | None:
    """Return a small network as one compiled function, None where `find` lacks it. It takes what the network takes,
    contiguous, and gives a list.

    inputs: an example; the last one has the rows of a buffer along its first dimension. sizes: for each input, the
    dimensions along which there may be any number of blocks of rows. Raises NoFastBackend where it cannot be exported.
    """
    blocks = BLOCK * torch.export.Dim("blocks", min=1, max=2**20)
    dynamic = tuple(dict.fromkeys(dimensions, blocks) for dimensions in sizes)
    graph = export(Call(function), inputs, (dynamic,))
    _write_out(graph, {})
    nodes = list(graph.graph.nodes)
    arguments = [node for node in nodes if node.op == "placeholder"]
    outputs: Any = next(node for node in nodes if node.op == "output").args[0]
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    part = _part(graph, {node for node in nodes if node.op == "call_function"}, tuple(outputs))
    example = dict(zip(arguments, inputs, strict=True))
    given: list[Any] = [rewrites.constant(graph, n) if n.op == "get_attr" else example[n] for n in part.inputs]
    run = _function(part, given, arguments[-1].meta["val"].shape[0], threads, find)
    if run is None:
        return None
    constants = [None if n in example else tensor for n, tensor in zip(part.inputs, given, strict=True)]
    places = [(i, arguments.index(n)) for i, n in enumerate(part.inputs) if n in example]

    def call(*tensors: Tensor) -> list[Tensor]:
        filled: list[Any] = constants.copy()
        for place, i in places:
            filled[place] = tensors[i]
        return run(filled)

    return call


def _name(target: Any) -> str:
    """Return the name of a function, which is the same in every process."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else f"{target.__module__}.{target.__qualname__}"


def _called(module: fx.GraphModule) -> packages.Run:
    """Return a part that is not compiled as a function that is called like a compiled one."""
    forward = module.forward  # calling the module looks for hooks first
    return lambda inputs: forward(*inputs)


def _is_size(node: fx.Node) -> bool:
    """Tell whether a node computes a size, not a tensor. Every part computes the sizes that it needs."""
    return node.op == "call_function" and not isinstance(node.meta.get("val"), Tensor | tuple | list)


def _ancestors(nodes: Iterable[fx.Node], stop: set[fx.Node]) -> set[fx.Node]:
    """Return these nodes and all that they are computed from, up to arguments, weights and `stop`."""
    found: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found and node not in stop and node.op == "call_function":
            found.add(node)
            todo += node.all_input_nodes
    return found


def _write_out(graph: fx.GraphModule, blocks: Blocks) -> None:
    """Write attention and products as plain arithmetic, which Inductor merges with what stands around it."""
    for node in list(graph.graph.nodes):
        if node.target is aten.scaled_dot_product_attention.default:
            arguments = dict(zip(("query", "key", "value", "attn_mask", "dropout", "causal"), node.args, strict=False))
            arguments |= node.kwargs
            if arguments.get("dropout") or arguments.get("causal") or arguments.get("attn_mask") is None:
                raise NoFastBackend("its attention has no mask")
            query, key, value = (arguments[name] for name in ("query", "key", "value"))
            scale = arguments.get("scale") or query.meta["val"].shape[-1] ** -0.5
            inputs = (query, _not_repeated(key, query), _not_repeated(value, query), arguments["attn_mask"], scale)
            _replace(node, attention, inputs)
        elif node.target is aten.linear.default and all(a is None or a.op == "get_attr" for a in node.args[1:]):
            source, weight, *bias = node.args
            size = node.meta["val"].shape[-1]
            _replace(node, product, (source, _in_blocks(graph, weight, blocks), size, *bias))
    graph.graph.eliminate_dead_code(
        lambda n: n.op in ("placeholder", "output") or (n.op == "call_function" and n.is_impure())
    )


def _replace(node: fx.Node, function: Any, inputs: tuple) -> None:
    """Put a call of `function` in the place of a node."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(function, inputs)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def _not_repeated(node: fx.Node, query: fx.Node) -> fx.Node:
    """Return the keys or values as they were before each was repeated for the queries of its group; the node itself
    where they were not repeated."""
    source = node
    while source.op == "call_function" and source.target in _VIEWS and len(source.meta["val"].shape) != 3:
        shape = source.meta["val"].shape
        if source is not node and len(shape) == 4 and shape[1] != query.meta["val"].shape[1]:
            return source
        if source.target is aten.permute.default:  # before it the heads stand elsewhere
            break
        source = source.all_input_nodes[0]
    return node


def in_blocks(weight: Tensor) -> Tensor:
    """Return a matrix, (size, n), in blocks of as many rows as a register holds: (ceil(size / lanes), n, lanes).

    A register then reads one column of a block, and every row of the states adds to it with one instruction. Weights
    that bfloat16 holds exactly are stored so: a pass over few tokens takes as long as reading them.
    """
    lanes = LANES.get(torch.backends.cpu.get_cpu_capability(), 4)
    size, n = weight.shape
    padded = nn.functional.pad(_shortest(weight), (0, 0, 0, -size % lanes))
    return padded.view(-1, lanes, n).transpose(1, 2).contiguous()


def _shortest(weight: Tensor) -> Tensor:
    """Return the weight in bfloat16 where all of its numbers are the same there, as those of most trained models are;
    else as it is."""
    if weight.dtype != torch.float32 or weight.ndim != 2:
        return weight
    if not torch.equal(weight[:1].bfloat16().float(), weight[:1]):  # the first row tells of most that are not exact
        return weight
    short = weight.bfloat16()
    return short if torch.equal(short.float(), weight) else weight


def _in_blocks(graph: fx.GraphModule, weight: fx.Node, blocks: Blocks) -> fx.Node:
    """Return a new constant of the graph: this one in blocks. It stands where the old one stands."""
    tensor = operator.attrgetter(str(weight.target))(graph)
    # The number keeps the names of `a.b_c` and `a_b.c` apart.
    name = f"{str(weight.target).replace('.', '_')}_in_blocks_{len(graph.graph.nodes)}"
    if id(tensor) not in blocks:
        blocks[id(tensor)] = in_blocks(tensor.detach())
    setattr(graph, name, blocks[id(tensor)])
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        node = graph.graph.create_node("get_attr", name)
    node.meta["val"] = blocks[id(tensor)]
    return node


def cut(graph: fx.GraphModule, blocks: Blocks | None = None) -> CutPass:
    """Return the pass in parts. blocks: as in CutPass. Raises NoFastBackend where it cannot be cut."""
    try:
        return CutPass(graph, blocks)
    except NoFastBackend:
        raise
    except Exception as error:  # a graph of a form that nobody has seen yet
        raise NoFastBackend(f"its layers cannot be told apart: {type(error).__name__}: {first_line(error)}") from error
