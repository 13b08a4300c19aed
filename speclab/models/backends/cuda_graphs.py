"""CUDA graphs for the fast backend: one replay instead of a launch for each kernel.

What is captured is a *program*: a pass, or several with work on the device between them, as the whole chain of k draft
steps. A graph repeats what was captured: the same kernels on the same addresses with the same shapes. So a program
reads its inputs and the length of the text from fixed tensors, writes keys and values at the positions after it, and
masks whatever lies further on. Shapes are few: a pass is padded to a width that this decoding has used before (so a
short last block is no new shape), and attention reads a multiple of BUCKET rows, so that it costs what the context
holds and not what the buffer could hold.

Buffers and the graphs over them make a graph cache. Capturing takes longer than many replays, so these outlive a
decoding: the model keeps those that are not in use. And it is done early: with a prompt's own pass every program is
captured that the model has been asked for so far, so that after a warm-up no capture falls into a timed step. A chain
that was not captured then runs pass by pass; so do the shorter chains of last rounds, of which there would be too many.

Not measured on a GPU yet. What is tested without one: everything but the capture itself (tests/models/test_graphs.py).
"""

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from speclab.models.backends.exported import ExportedModel, WrittenInPlace
from speclab.models.limits import context_length

BUCKET = 256  # rows
SPARE = 512  # tokens a new cache can take after its prompt before it has to grow
WARM_UPS = 2  # passes before a capture: kernels are chosen and workspaces allocated in them


Forward = Callable[[Tensor], Tensor]  # (1, m) ids -> (1, m, vocab) logits, after what the cache holds


class Program(Protocol):
    """Passes of one model and work on the device between them. Equal programs share their graphs, so it is hashable."""

    def widths(self, *inputs: Any, **named: Any) -> tuple[int, ...]:
        """Tokens of each pass it will make; only the inputs' shapes matter."""

    def capture_inputs(self, *inputs: Any, **named: Any) -> list[tuple[Tensor, ...]]:
        """Inputs of all shapes that a decoding will bring which brings these; only their shapes matter."""

    def __call__(self, forward: Forward, *inputs: Any, **named: Any) -> tuple[Tensor, ...]:
        """Do it. Nothing in it may wait for the device."""


@dataclass(frozen=True)
class Pass:
    """The plainest program: ids in, logits out."""

    def widths(self, ids: Tensor) -> tuple[int, ...]:
        """One pass over all ids."""
        return (ids.shape[1],)

    def capture_inputs(self, ids: Tensor) -> list[tuple[Tensor, ...]]:
        """These ids alone."""
        return [(ids,)]

    def __call__(self, forward: Forward, ids: Tensor) -> tuple[Tensor, ...]:
        """(1, m) ids -> (1, m, vocab) logits"""
        return (forward(ids),)


class GraphKey(NamedTuple):
    """Everything that a graph fixes but the cache and the rows that attention reads."""

    program: Program
    inputs: tuple[tuple[torch.Size, torch.dtype], ...]
    n_tokens: int  # fed by it
    vocab_size: int | None = None  # logits are cut to it

    @classmethod
    def of(cls, program: Program, inputs: tuple[Tensor, ...], vocab_size: int) -> "GraphKey":
        """The key of a program for inputs of these shapes."""
        shapes = tuple((given.shape, given.dtype) for given in inputs)
        return cls(program, shapes, sum(program.widths(*inputs)), vocab_size)


class GraphBackend:
    """The exported model on CUDA graphs, for one decoding."""

    def __init__(self, model: PreTrainedModel, exported: ExportedModel):
        self._model, self._exported = model, exported
        self._positions_known = context_length(model) or sys.maxsize
        self._widths: set[int] = set()  # of this decoding: what another one used must not decide what is timed here
        self._most_passes = 0  # of this decoding's programs

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits, after every known program is captured for this length."""
        n = prompt.shape[1]
        self._take_cache(n + SPARE)
        # A prompt's length is never seen twice: the model's own code reads it, into the cache's buffers.
        pairs = zip(self._cache.keys, self._cache.values, strict=True)
        views: list = [WrittenInPlace(keys[:, :, :n], values[:, :, :n]) for keys, values in pairs]
        self._cache.prepare(n, min(self._cache.capacity, self._positions_known))
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        return self._model(input_ids=prompt, **options).logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids after `length` tokens -> (1, m, vocab) logits, as one replay."""
        n_tokens = tokens.shape[1]
        self._make_room(length, n_tokens)
        width = self._width(n_tokens)
        if length + width > min(self._cache.capacity, self._positions_known):
            width = n_tokens  # at the edge there is no room for padding
        return self._cache.run(_pass_of(width), (tokens,), length)[0][:, :n_tokens]

    def run(
        self, program: Program, inputs: tuple[Tensor, ...], length: int, vocab_size: int
    ) -> tuple[Tensor, ...] | None:
        """The whole program as one replay, or None where it was not captured with the prompt's pass."""
        key = GraphKey.of(program, inputs, vocab_size)
        n_passes = len(program.widths(*inputs))
        if n_passes >= self._most_passes:  # the last round's shorter chain is not worth a graph
            self._most_passes = n_passes
            self._exported.graph_keys.update(
                GraphKey.of(program, other, vocab_size) for other in program.capture_inputs(*inputs)
            )
        if length + key.n_tokens > self._cache.capacity or not self._cache.holds(key, length):
            return None
        return self._cache.run(key, inputs, length)

    def _width(self, n_tokens: int) -> int:
        """The least width used so far that holds them; their own if there is none. One token stays one."""
        known = [width for width in self._widths if width >= n_tokens]
        if known and n_tokens > 1:
            return min(known)
        self._widths.add(n_tokens)
        self._exported.graph_keys.add(_pass_of(n_tokens))
        return n_tokens

    def crop(self, n_tokens: int) -> None:
        """Nothing to do: rows after the length are never read."""

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, (1, kv heads, capacity, head width) each."""
        return list(zip(self._cache.keys, self._cache.values, strict=True))

    def _take_cache(self, capacity: int) -> None:
        """One that is free and large enough, or a new one. It goes back when this backend is gone."""
        free = [cache for cache in self._exported.graph_caches if cache.capacity >= capacity]
        if free:
            self._cache = max(free, key=lambda cache: cache.n_graphs)
            self._exported.graph_caches.remove(self._cache)
        else:
            self._cache = GraphCache(self._exported, _bucket(capacity))
        self._release = weakref.finalize(self, self._exported.graph_caches.append, self._cache)

    def _make_room(self, length: int, n_tokens: int) -> None:
        """Move into a cache twice as long where they do not fit after `length` tokens."""
        if length + n_tokens <= self._cache.capacity:
            return
        old = self._cache
        self._release()
        self._take_cache(2 * old.capacity)
        for side in ("keys", "values"):
            for theirs, ours in zip(getattr(old, side), getattr(self._cache, side), strict=True):
                ours[:, :, :length] = theirs[:, :, :length]


@functools.cache
def _pass_of(width: int) -> GraphKey:
    return GraphKey(Pass(), ((torch.Size((1, width)), torch.long),), width)


def _bucket(n: int) -> int:
    """`n` rows, rounded up."""
    return -(-n // BUCKET) * BUCKET


class Graph(NamedTuple):
    """What was captured, and the tensors it reads and writes."""

    replay: Callable[[], None]
    length: Tensor  # (1, 1) tokens before it
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]


class GraphCache:
    """Buffers for the keys and values of one text, and the graphs captured over them."""

    def __init__(self, exported: ExportedModel, capacity: int):
        self.exported, self.capacity = exported, capacity
        self.keys, self.values = exported.buffers(capacity)
        self._places = torch.arange(capacity, device=exported.device)[None]  # (1, capacity)
        self._graphs: dict[tuple[GraphKey, int], Graph] = {}  # by key and rows read

    @property
    def n_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    def prepare(self, length: int, room: int) -> None:
        """Capture what decodings of this model have needed so far, for `length` tokens and what may follow them."""
        end = min(room, length + SPARE)
        for key in self.exported.graph_keys:
            for rows in range(_bucket(length + key.n_tokens), _bucket(end) + 1, BUCKET):
                if min(rows, room) - key.n_tokens >= length:
                    self._graph(key, min(rows, room))

    def holds(self, key: GraphKey, length: int) -> bool:
        """Whether it is captured for `length` tokens."""
        return (key, self._rows(length + key.n_tokens)) in self._graphs

    def _rows(self, total: int) -> int:
        return min(self.capacity, _bucket(total))

    def _graph(self, key: GraphKey, total: int) -> Graph:
        """For a program that leaves `total` tokens."""
        rows = self._rows(total)
        if (key, rows) not in self._graphs:
            self._graphs[key, rows] = self._captured(key, rows, total - key.n_tokens)
        return self._graphs[key, rows]

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
        keys, values = ([buffer[:, :, :rows] for buffer in side] for side in (self.keys, self.values))
        lowest, columns = torch.finfo(dtype).min, self._places[0, :rows]

        def step() -> tuple[Tensor, ...]:
            n_fed = 0

            def forward(ids: Tensor) -> Tensor:
                nonlocal n_fed
                width = ids.shape[1]
                positions = before + self._places[:, n_fed : n_fed + width]  # (1, width)
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
