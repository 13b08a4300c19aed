"""CUDA graphs for the fast backend: one replay instead of a launch for each kernel.

What is captured is one pass or a *program*: several passes with work on the device between them, as the whole chain of
k draft steps. A graph repeats what was captured: the same kernels on the same addresses with the same shapes. So it
reads its inputs and the length of the text from fixed tensors, writes keys and values at the positions after it, and
masks whatever lies further on. Shapes are few: a pass is padded to a width that this decoding has used before (so a
short last block is no new shape), and attention reads a multiple of BUCKET rows, so that it costs what the context
holds and not what the buffer could hold.

Buffers and the graphs over them make a graph cache. Capturing takes longer than many replays, so these outlive a
decoding: the model keeps those that are not in use. And it is done early: with a prompt's own pass every program is
captured that the model has been asked for so far, so that after a warm-up no capture falls into a timed step. A chain
that was not captured then runs pass by pass; so do the shorter chains of last rounds, of which there would be too many.

Not measured on a GPU yet. Everything but the capture itself is tested without one (tests/models/test_cuda_graphs.py).
"""

import functools
import weakref
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.models.backends.exported import Buffers, ExportedBackend, ExportedModel

BUCKET = 256  # rows
WARM_UPS = 2  # passes before a capture: kernels are chosen and workspaces allocated in them

Forward = Callable[[Tensor], Tensor]  # (1, m) ids -> (1, m, vocab) logits, after what the cache holds


class Program(Protocol):
    """Passes and what lies between them. Nothing in it may wait for the device.

    In `widths` and `capture_inputs` only the shapes of the inputs matter. Equal programs share their graphs, so they
    are hashable.
    """

    def widths(self, *inputs: Tensor) -> tuple[int, ...]:
        """Tokens of each pass."""

    def capture_inputs(self, *inputs: Tensor) -> list[tuple[Tensor, ...]]:
        """Inputs of all shapes that a decoding will bring which brings these."""

    def __call__(self, forward: Forward, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run it."""


def one_pass(forward: Forward, ids: Tensor) -> tuple[Tensor, ...]:
    """(1, m) ids -> (1, m, vocab) logits"""
    return (forward(ids),)


class GraphKey(NamedTuple):
    """Everything that a graph fixes but the cache and the rows that attention reads."""

    program: Callable[..., tuple[Tensor, ...]]  # a Program, or one_pass
    inputs: tuple[tuple[torch.Size, torch.dtype], ...]
    n_tokens: int  # fed by it
    vocab_size: int | None = None  # logits are cut to it

    @classmethod
    def for_inputs(cls, program: Program, inputs: tuple[Tensor, ...], vocab_size: int) -> "GraphKey":
        """The key of a program for inputs of these shapes."""
        shapes = tuple((given.shape, given.dtype) for given in inputs)
        return cls(program, shapes, sum(program.widths(*inputs)), vocab_size)


class GraphBackend(ExportedBackend):
    """The exported model on CUDA graphs, for one decoding."""

    _buffers: "GraphCache"

    def __init__(self, model: PreTrainedModel, exported: ExportedModel):
        super().__init__(model, exported)
        self._widths: set[int] = set()  # of this decoding: what another one used must not decide what is timed here
        self._most_passes = 0  # of this decoding's programs
        self._release: Callable[[], object] | None = None  # gives the graph cache back

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits; then every known program is captured for this length."""
        logits = super().prefill(prompt)  # no graph: a prompt's length is never seen twice
        self._buffers.prepare(prompt.shape[1], min(self._buffers.capacity, self._most_positions))
        return logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids after `length` tokens -> (1, m, vocab) logits, as one replay."""
        n_tokens = tokens.shape[1]
        self._reserve(length + n_tokens, length)
        width = self._width(n_tokens)
        if length + width > min(self._buffers.capacity, self._most_positions):
            width = n_tokens  # at the edge there is no room for padding
        return self._buffers.run(_pass_of(width), (tokens,), length)[0][:, :n_tokens]

    def run(
        self, program: Program, inputs: tuple[Tensor, ...], length: int, vocab_size: int
    ) -> tuple[Tensor, ...] | None:
        """The whole program as one replay, or None where it was not captured with the prompt's pass."""
        key = GraphKey.for_inputs(program, inputs, vocab_size)
        n_passes = len(program.widths(*inputs))
        if n_passes >= self._most_passes:  # the last round's shorter chain is not worth a graph
            self._most_passes = n_passes
            self._exported.graph_keys.update(
                GraphKey.for_inputs(program, other, vocab_size) for other in program.capture_inputs(*inputs)
            )
        if length + key.n_tokens > self._buffers.capacity or not self._buffers.holds(key, length):
            return None
        return self._buffers.run(key, inputs, length)

    def _width(self, n_tokens: int) -> int:
        """The least width used so far that holds them; their own if there is none. One token stays one."""
        known = [width for width in self._widths if width >= n_tokens]
        if known and n_tokens > 1:
            return min(known)
        self._widths.add(n_tokens)
        self._exported.graph_keys.add(_pass_of(n_tokens))
        return n_tokens

    def _new_buffers(self, capacity: int) -> "GraphCache":
        """A graph cache that is free and large enough, or a new one. It is given back when outgrown, or when this
        backend is gone."""
        if self._release is not None:
            self._release()
        free = self._exported.graph_caches
        fitting = [cache for cache in free if cache.capacity >= capacity]
        if fitting:
            chosen = max(fitting, key=lambda cache: len(cache.graphs))
            free.remove(chosen)
        else:
            chosen = GraphCache(self._exported, _bucket(capacity))
        self._release = weakref.finalize(self, free.append, chosen)
        return chosen


@functools.cache
def _pass_of(width: int) -> GraphKey:
    return GraphKey(one_pass, ((torch.Size((1, width)), torch.long),), width)


def _bucket(n: int) -> int:
    """`n` rows, rounded up."""
    return -(-n // BUCKET) * BUCKET


class Graph(NamedTuple):
    """What was captured, and the tensors it reads and writes."""

    replay: Callable[[], None]
    length: Tensor  # (1, 1) tokens before it
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]


class GraphCache(Buffers):
    """Buffers for the keys and values of one text, and the graphs captured over them."""

    def __init__(self, exported: ExportedModel, capacity: int):
        super().__init__(exported, capacity)
        self.graphs: dict[tuple[GraphKey, int], Graph] = {}  # by key and rows read

    def prepare(self, length: int, room: int) -> None:
        """Capture what decodings of this model have needed so far, for `length` tokens and what may follow them."""
        end = min(room, length + self.SPARE)
        for key in self.exported.graph_keys:
            for rows in range(_bucket(length + key.n_tokens), _bucket(end) + 1, BUCKET):
                if min(rows, room) - key.n_tokens >= length:
                    self._graph(key, min(rows, room))

    def holds(self, key: GraphKey, length: int) -> bool:
        """Whether it is captured for `length` tokens."""
        return (key, self._rows(length + key.n_tokens)) in self.graphs

    def _rows(self, total: int) -> int:
        return min(self.capacity, _bucket(total))

    def _graph(self, key: GraphKey, total: int) -> Graph:
        """For a program that leaves `total` tokens."""
        rows = self._rows(total)
        if (key, rows) not in self.graphs:
            self.graphs[key, rows] = self._captured(key, rows, total - key.n_tokens)
        return self.graphs[key, rows]

    def run(self, key: GraphKey, inputs: tuple[Tensor, ...], length: int) -> tuple[Tensor, ...]:
        """What the program makes of `inputs` after `length` tokens. Inputs may be shorter than the key's."""
        graph = self._graph(key, length + key.n_tokens)
        for fixed, given in zip(graph.inputs, inputs, strict=True):
            fixed[tuple(map(slice, given.shape))].copy_(given)  # in a padded pass the rows after them are not read
        graph.length.fill_(length)
        graph.replay()
        return tuple(output.clone() for output in graph.outputs)  # the next replay writes to the same places

    def _captured(self, key: GraphKey, rows: int, length: int) -> Graph:
        device, dtype = self.exported.device, self.exported.dtype
        inputs = [torch.zeros(shape, dtype=kind, device=device) for shape, kind in key.inputs]
        # Warm-ups write keys and values like any pass: at rows that are not alive.
        before = torch.full((1, 1), length, device=device)
        keys, values = self.first(rows)
        lowest, columns = torch.finfo(dtype).min, self.places[0, :rows]

        def step() -> tuple[Tensor, ...]:
            n_fed = 0

            def forward(ids: Tensor) -> Tensor:
                nonlocal n_fed
                width = ids.shape[1]
                positions = before + self.places[:, n_fed : n_fed + width]  # (1, width)
                n_fed += width
                mask = torch.zeros(1, 1, width, rows, dtype=dtype, device=device)
                mask = mask.masked_fill(columns > positions[0, :, None], lowest)  # (1, 1, width, rows)
                return self.exported.forward(ids, positions, mask, keys, values)[..., : key.vocab_size]

            return key.program(forward, *inputs)

        replay, outputs = capture(step, self.exported)
        return Graph(replay, before, inputs, outputs)


def capture(
    step: Callable[[], tuple[Tensor, ...]], exported: ExportedModel
) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """A CUDA graph of `step`.  -> what replays it, and the tensors a replay writes to

    All graphs of a model share one memory pool: no two replay at once, and outputs are copied before the next one does.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    exported.pool = exported.pool or torch.cuda.graph_pool_handle()
    with torch.cuda.graph(graph, pool=exported.pool):
        outputs = step()
    return graph.replay, outputs
