"""CUDA graphs for the fast gear: a pass is one replay instead of a launch for each of its kernels.

A graph repeats what was captured: the same kernels on the same addresses with the same shapes. So a pass reads its
ids and positions from fixed tensors, writes keys and values at those positions, and masks whatever lies behind them.
Shapes are few: a pass is padded to a width that this decoding has used before (so a short last block is no new shape),
and attention reads a multiple of BUCKET rows, so that it costs what the context holds and not what the buffer could
hold.

Buffers and the graphs over them make a *lane*. Capturing takes longer than many replays, so lanes outlive decodings:
the model keeps those that nobody uses. And it is done early: with a prompt's own pass a lane captures every width that
the model has been asked for so far, so that after a warm-up no capture falls into a timed step.

Not measured on a GPU yet. What is tested without one: everything but the capture itself (tests/test_graphs.py).
"""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from speclab.flat import FlatModel, WrittenInPlace, positions_known

BUCKET = 256  # rows
SPARE = 512  # tokens a new lane can take behind its prompt before it has to grow
WARM_UPS = 2  # passes before a capture: kernels are chosen and workspaces allocated in them


class GraphGear:
    """The flat model on CUDA graphs, for one decoding."""

    def __init__(self, model: PreTrainedModel, flat: FlatModel):
        self._model, self._flat = model, flat
        self._positions_known = positions_known(model)
        self._widths: set[int] = set()  # of this decoding: what another one used must not decide what is timed here

    def prefill(self, prompt: Tensor) -> Tensor:
        n = prompt.shape[1]
        self._take_lane(n + SPARE)
        # A prompt's length is never seen twice: the model's own code reads it, into the lane's buffers.
        pairs = zip(self._lane.keys, self._lane.values, strict=True)
        views = [WrittenInPlace(keys[:, :, :n], values[:, :, :n]) for keys, values in pairs]
        self._lane.prepare(n, min(self._lane.capacity, self._positions_known))
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        return self._model(input_ids=prompt, **options).logits

    def feed(self, tokens: Tensor, length: int) -> Tensor:
        n_tokens = tokens.shape[1]
        if length + n_tokens > self._lane.capacity:
            self._move(length)
        width = self._width(n_tokens)
        if length + width > min(self._lane.capacity, self._positions_known):
            width = n_tokens  # at the edge there is no room for padding
        return self._lane.run(tokens, length, width)

    def _width(self, n_tokens: int) -> int:
        """The least width used so far that holds them; their own if there is none. One token stays one."""
        known = [width for width in self._widths if width >= n_tokens]
        if known and n_tokens > 1:
            return min(known)
        self._widths.add(n_tokens)
        self._flat.widths.add(n_tokens)
        return n_tokens

    def forget(self, n_tokens: int) -> None:
        pass

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._lane.keys, self._lane.values, strict=True))

    def _take_lane(self, capacity: int) -> None:
        """One that is free and large enough, or a new one. It goes back when this gear is gone."""
        free = [lane for lane in self._flat.lanes if lane.capacity >= capacity]
        if free:
            self._lane = max(free, key=lambda lane: lane.n_graphs)
            self._flat.lanes.remove(self._lane)
        else:
            self._lane = Lane(self._flat, _bucket(capacity))
        self._release = weakref.finalize(self, self._flat.lanes.append, self._lane)

    def _move(self, length: int) -> None:
        """Into a lane twice as long."""
        old = self._lane
        self._release()
        self._take_lane(2 * old.capacity)
        for side in ("keys", "values"):
            for theirs, ours in zip(getattr(old, side), getattr(self._lane, side), strict=True):
                ours[:, :, :length] = theirs[:, :, :length]


def _bucket(n: int) -> int:
    """`n` rows, rounded up."""
    return -(-n // BUCKET) * BUCKET


class Lane:
    """Buffers for the keys and values of one text, and the graphs captured over them."""

    def __init__(self, flat: FlatModel, capacity: int):
        self.flat, self.capacity = flat, capacity
        self.keys, self.values = flat.buffers(capacity)
        self._places = torch.arange(capacity, device=flat.device)[None]  # (1, capacity)
        # (width, rows read) -> replay, ids, positions, logits
        self._graphs: dict[tuple[int, int], tuple[Callable[[], None], Tensor, Tensor, Tensor]] = {}

    @property
    def n_graphs(self) -> int:
        return len(self._graphs)

    def prepare(self, length: int, room: int) -> None:
        """Capture what decodings of this model have needed so far, for `length` tokens and what may follow them."""
        end = min(room, length + SPARE)
        for width in self.flat.widths:
            for rows in range(_bucket(length + width), _bucket(end) + 1, BUCKET):
                if min(rows, room) - width >= length:
                    self._graph(width, min(rows, room))

    def _graph(self, width: int, total: int) -> tuple[Callable[[], None], Tensor, Tensor, Tensor]:
        """For a pass of this width that ends at `total` tokens."""
        rows = min(self.capacity, _bucket(total))
        if (width, rows) not in self._graphs:
            self._graphs[width, rows] = self._captured(width, rows, total - width)
        return self._graphs[width, rows]

    def run(self, tokens: Tensor, length: int, width: int) -> Tensor:
        """(1, n) ids behind `length` tokens, padded to `width` -> (1, n, vocab) logits"""
        n_tokens, total = tokens.shape[1], length + width
        replay, ids, positions, logits = self._graph(width, total)
        ids[:, :n_tokens].copy_(tokens)  # what stands behind them is never read
        positions.copy_(self._places[:, length:total])
        replay()
        return logits[:, :n_tokens].clone()  # the next replay writes to the same place

    def _captured(self, width: int, rows: int, length: int) -> tuple[Callable[[], None], Tensor, Tensor, Tensor]:
        ids = torch.zeros(1, width, dtype=torch.long, device=self.flat.device)
        # Warm-ups write keys and values like any pass: at rows that are not alive.
        positions = self._places[:, length : length + width].clone()
        keys, values = ([buffer[:, :, :rows] for buffer in side] for side in (self.keys, self.values))
        lowest = torch.finfo(self.flat.dtype).min
        columns = self._places[0, :rows]

        def step() -> Tensor:
            mask = torch.zeros(1, 1, width, rows, dtype=self.flat.dtype, device=self.flat.device)
            mask = mask.masked_fill(columns > positions[0, :, None], lowest)  # (1, 1, width, rows)
            return self.flat.forward(ids, positions, mask, keys, values)

        replay, logits = capture(step)
        return replay, ids, positions, logits


def capture(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A CUDA graph of `step`.  -> what replays it, and the tensor a replay writes to"""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return graph.replay, output
