"""CUDA graphs: work of the device, recorded once and started again with one launch.

A launch costs the host some microseconds, and a small kernel runs no longer than that, so a pass of many small kernels
takes as long as launching them. A graph repeats the same kernels on the same addresses with the same shapes, so it
reads its inputs from fixed tensors and writes its outputs to others.

`capture` records a step, `graphed` makes a pure function of tensors run as graphs on a GPU (speclab/core/sampling.py).
Recording stops the device, so it is done before anything is timed, which tests prove with its count, `captures.n`.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from speclab.core.sampling import ON_GRAPHS, Function

WARM_UPS = 2  # runs before a recording: kernels are chosen and workspaces allocated in them
Step = Callable[[], tuple[Tensor, ...]]


class Captures:
    """The number of graphs recorded so far, and the memory that all of them share, since no two replay at once.

    failed: a recording was broken off, which may leave the device's allocator in the middle of it: no other is begun.
    """

    n = 0
    failed = False
    pool: Any = None
    anchor: Any = None  # a graph that is never given up: the pool lives no longer than the graphs on it
    side: Any = None  # the stream of all warm-ups


captures = Captures()


class Graph(NamedTuple):
    """A recorded step, with the tensors that a replay reads and writes."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]


def capture(step: Step) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Record `step`.  -> what replays it, and the tensors that a replay writes to. CUDA only.

    Raises RuntimeError for a step that waits for the device: its last warm-up finds out, before anything is recorded.
    """
    if captures.failed:
        raise RuntimeError("no CUDA graph is recorded after one that failed")
    current = torch.cuda.current_stream()
    captures.side = captures.side or torch.cuda.Stream()
    captures.side.wait_stream(current)
    with torch.cuda.stream(captures.side):
        for _ in range(WARM_UPS - 1):
            step()
        with _waits_are_errors():
            step()
    current.wait_stream(captures.side)
    if captures.pool is None:
        captures.pool = torch.cuda.graph_pool_handle()
        captures.anchor, _ = _record(lambda: (torch.zeros(1, device="cuda"),))
    replay, outputs = _record(step)
    captures.n += 1
    return replay, outputs


@contextlib.contextmanager
def _waits_are_errors() -> Iterator[None]:
    """Inside, PyTorch raises RuntimeError where the host waits for the device."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # it warns that it does not find every wait
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _record(step: Step) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Make one recording. A failed one leaves PyTorch on the stream of the recording: that is put right."""
    current, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=captures.pool):
            outputs = step()
    except BaseException:
        captures.failed = True
        torch.cuda.set_stream(current)
        raise
    return graph.replay, outputs


def on_graphs(tensor: Tensor) -> bool:
    """Tell whether functions of this tensor are replayed as graphs."""
    return tensor.device.type == "cuda" and not captures.failed and not torch.cuda.is_current_stream_capturing()


@functools.cache
def graphed(function: Function) -> Function:
    """Run `function` as graphs, one graph for each kind of arguments.

    It takes and gives tensors, tuples and data classes of them, None, and hashable values. It must not wait for the
    device, and what it gives depends on its arguments alone.
    """
    graphs: dict[Hashable, tuple[Graph, Any]] = {}

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not on_graphs(args[0]):
            return function(*args)
        tensors: list[Tensor] = []
        _mapped(args, tensors.append)
        key = _mapped(args, lambda tensor: (tensor.shape, tensor.dtype, tensor.device))
        with torch.inference_mode():
            if key not in graphs:
                graphs[key] = _recorded(function, args, tensors)
            graph, result = graphs[key]
            for fixed, given in zip(graph.inputs, tensors, strict=True):
                fixed.copy_(given)
            graph.replay()
            outputs = iter([output.clone() for output in graph.outputs])  # the next replay writes to the same places
        return _mapped(result, lambda _: next(outputs))

    return call  # type: ignore[return-value]


ON_GRAPHS["cuda"] = graphed


def _recorded(function: Callable, args: tuple, tensors: list[Tensor]) -> tuple[Graph, Any]:
    """Record a graph of `function`.  -> the graph, and a value of the form of its result"""
    inputs = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
    copies = iter(inputs)
    fixed = _mapped(args, lambda _: next(copies))
    results: list[Any] = []

    def step() -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        results[:] = [function(*fixed)]
        _mapped(results[0], outputs.append)
        return tuple(outputs)

    replay, outputs = capture(step)
    return Graph(replay, inputs, outputs), results[0]


def _mapped(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return nested tuples and data classes with `function` of each tensor in its place, called in their order."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        parts = [_mapped(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{name: _mapped(part, function) for name, part in vars(value).items()})
    return value
