"""The backend for CUDA: the library's own forward pass as CUDA graphs, one replay for each pass.

A graph repeats the same kernels with the same shapes on the same addresses. So a pass reads its ids, positions and mask
from fixed tensors, writes keys and values at its positions, and masks whatever lies further on. Rolling back is free:
rows after the text's length are never read, and the next pass overwrites them.
Shapes are few: a pass is padded to one of a small set of widths, and attention reads BUCKET rows or twice as many, four
times as many and so on, whatever holds the text.

Buffers and the graphs over them make a graph cache. Recording takes longer than many replays, so these outlive a
decoding: the model keeps those that are not in use. `GraphedModel.prepare` says beforehand which widths and how long
texts a run has; each graph cache records these when it is made, before a warm-up ends, and others when they are met.

tests/models/test_cuda_graphs.py tests all but the recording itself without a GPU, tests/test_cuda.py the recording.
"""

import sys
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from speclab.engines.cuda import graphs
from speclab.engines.cuda.kernels import Kernels, usable_compiler
from speclab.engines.eager import TextBackend, decoder_layers, layer_outputs, masks, move_rows, window_of
from speclab.models.family import NoFastBackend, cached_layers, family_of

BUCKET = 256  # rows
SPARE = 512  # tokens that new buffers can take after a prompt before they have to grow
WIDEST = 64  # passes up to this width take their mask from a table


def kv_shapes(model: PreTrainedModel) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return what each layer keeps of a token: (kv heads, head width) of its keys and of its values."""
    if why := family_of(model).why_eager:
        raise NoFastBackend(why)
    layers = cached_layers(model)
    kinds = (DynamicLayer, DynamicSlidingWindowLayer)
    if not layers or any(type(layer) not in kinds or layer.keys is None for layer in layers):
        raise NoFastBackend("not all of its layers keep plain keys and values")
    pairs = ((layer.keys.shape, layer.values.shape) for layer in layers)
    return [((keys[1], keys[3]), (values[1], values[3])) for keys, values in pairs]


class WrittenInPlace(CacheLayerMixin):
    """One layer's keys and values as views of a buffer, (1, kv heads, tokens before + tokens of this pass, head width):
    a pass writes its own rows, the last ones, and reads all."""

    is_sliding = False

    keys: Tensor
    values: Tensor

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
        """Return how many rows attention reads, and where they start."""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given

    def get_max_length(self) -> int:
        return -1  # no limit

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def lazy_initialization(self, *args) -> None: ...


class WrittenInRows(WrittenInPlace):
    """One layer's keys and values where a pass writes rows that a tensor names, (m,), and the views reach beyond them.
    Nothing here depends on a number that the host knows, so that a graph can be replayed anywhere in the text."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor):
        super().__init__(keys, values)
        self._rows = rows

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self._rows, key_states)
        self.values.index_copy_(2, self._rows, value_states)
        return self.keys, self.values


class GraphedModel:
    """A model whose passes run as CUDA graphs. Raises NoFastBackend where it does not keep plain keys and values.

    window: the window of the layers with a sliding window, None where there are none; buffers hold the whole text.
    widths: the widths that passes are padded to. free: the graph caches that no decoding uses now.
    """

    name = "graphs"

    def __init__(self, model: PreTrainedModel):
        self.model, self.shapes, self.window = model, kv_shapes(model), window_of(model)
        self.kernels = Kernels(model, usable_compiler(model.device))
        self.layers = range(len(decoder_layers(model)))
        self.widths: set[int] = {1}
        self.longest = 0  # tokens that a text of this run may reach
        self.most_positions = family_of(model).room(model.config).text or sys.maxsize
        self.free: list[GraphCache] = []

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Graph caches made from now on record passes of these widths, for texts of up to `longest` tokens."""
        if not self.widths.issuperset(widths := set(widths)) or longest > self.longest:
            self.free = []  # they lack some of these
        self.widths |= widths
        self.longest = max(self.longest, longest)

    def forget(self) -> None:
        """Forget what an earlier run has announced, and its graph caches."""
        self.widths, self.longest, self.free = {1}, 0, []

    def start(self, hidden_layers: Iterable[int] = ()) -> "GraphBackend":
        return GraphBackend(self, hidden_layers)

    def width_for(self, n_tokens: int) -> int:
        """The smallest prepared width that holds so many tokens; where there is none, this number becomes a width."""
        if n_tokens > max(self.widths):
            self.widths.add(n_tokens)
        return min(width for width in self.widths if width >= n_tokens)

    def forward(self, ids: Tensor, places: Tensor, mask: Tensor, buffers: "GraphCache") -> tuple[Tensor, ...]:
        """(1, m) ids, (1, 1, m, rows) mask -> (1, m, vocab) logits, and the outputs of all layers, (1, m, hidden) each

        places: (2, m), the positions, and the rows of the buffers: others where tokens do not all follow each other.
        """
        pairs = zip(*buffers.first(mask.shape[-1]), strict=True)
        cache = Cache(layers=[WrittenInRows(keys, values, places[1]) for keys, values in pairs])
        mask = masks(mask, self.window)
        with self.kernels.used():
            options = {"position_ids": places[:1], "attention_mask": mask, "past_key_values": cache, "use_cache": True}
            with layer_outputs(self.model, self.layers) as hidden:
                logits = self.model(input_ids=ids, **options).logits
            return logits, *(hidden[layer] for layer in self.layers)


class GraphCache:
    """Keys and values of one text, allocated once, and the graphs recorded over them.

    keys, values: (1, kv heads, capacity, head width) each, one for every layer. places: (2, capacity), the positions of
    their rows, none higher than the model has, and the rows.
    """

    def __init__(self, graphed: GraphedModel, capacity: int):
        dtype, device = graphed.model.dtype, graphed.model.device
        self._graphed, self.capacity, self.dtype, self.device = graphed, capacity, dtype, device
        rows = torch.arange(capacity, device=device)
        self.places = torch.stack([rows.clamp(max=graphed.most_positions - 1), rows])
        # Rows stand first in memory: the first ones of any number are one piece.
        self.keys, self.values = (
            [torch.zeros(capacity, n, width, dtype=dtype, device=device).transpose(0, 1)[None] for n, width in side]
            for side in zip(*graphed.shapes, strict=True)
        )
        self._masks = causal_mask(WIDEST, capacity, 2 * capacity + WIDEST, dtype, device)
        self.graphs: dict[tuple[int, int], graphs.Graph] = {}  # by width and rows read
        for width in sorted(graphed.widths):
            total = 1
            while total <= min(graphed.longest, capacity):
                self._graph(width, rows_read(total, capacity))
                total = rows_read(total, capacity) + 1

    def mask(self, width: int, length: int, n_rows: int) -> Tensor:
        """(1, 1, width, n_rows): of a pass after `length` tokens that reads the first `n_rows` rows."""
        if width > WIDEST:
            return causal_mask(width, length, n_rows, self.dtype, self.device)
        # Row i reads column j while j <= length + i: the table of a full buffer, moved to the left.
        start = self.capacity - length
        return self._masks[:, :, :width, start : start + n_rows]

    def first(self, n_rows: int) -> tuple[list[Tensor], list[Tensor]]:
        return [keys[:, :, :n_rows] for keys in self.keys], [values[:, :, :n_rows] for values in self.values]

    def run(self, ids: Tensor, length: int, width: int, masked: tuple[Tensor, Tensor] | None = None) -> list[Tensor]:
        """Run a pass of `width` >= m tokens over (1, m) ids after `length` tokens, and return what GraphedModel.forward
        returns; the next replay writes to the same place. masked: positions (1, m) and mask (1, 1, m, length + m),
        where the tokens do not all follow each other."""
        n_tokens, n_rows = ids.shape[1], rows_read(length + width, self.capacity)
        graph = self._graph(width, n_rows)
        fixed_ids, places, mask = graph.inputs
        fixed_ids[:, :n_tokens].copy_(ids)  # padding comes last, and its logits are not read
        places.copy_(self.places[:, length : length + width])
        if masked is None:
            mask.copy_(self.mask(width, length, n_rows))
        else:  # nothing reads the padding
            positions, reads = masked
            unread, extra = (0, n_rows - reads.shape[-1], 0, width - n_tokens), (0, width - n_tokens)
            places[:1].copy_(nn.functional.pad(positions, extra))
            mask.copy_(nn.functional.pad(reads, unread, value=torch.finfo(reads.dtype).min))
        graph.replay()
        return [output[:, :n_tokens] for output in graph.outputs]

    def _graph(self, width: int, rows: int) -> graphs.Graph:
        if (width, rows) not in self.graphs:
            # Warm-ups write keys and values like any pass: at the last rows, which are not alive while width fits.
            length = max(0, rows - width)
            ids = torch.zeros(1, width, dtype=torch.long, device=self.device)
            places = self.places[:, length : length + width].clone()
            mask = self.mask(width, length, rows).clone()
            replay, outputs = graphs.capture(lambda: self._graphed.forward(ids, places, mask, self))
            self.graphs[width, rows] = graphs.Graph(replay, [ids, places, mask], outputs)
        return self.graphs[width, rows]


def causal_mask(width: int, length: int, n_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1, 1, width, n_rows): a pass after `length` tokens, of which each reads what stands before it and itself"""
    mask = torch.full((width, n_rows), torch.finfo(dtype).min, dtype=dtype, device=device)
    return mask.triu_(length + 1)[None, None]


def rows_read(total: int, capacity: int) -> int:
    """BUCKET rows, or twice as many, four times as many and so on, that hold `total`; at most all of the buffers."""
    rows = BUCKET
    while rows < total:
        rows *= 2
    return min(rows, capacity)


class GraphBackend(TextBackend):
    """A model on CUDA graphs at work on one text."""

    def __init__(self, graphed: GraphedModel, hidden_layers: Iterable[int] = ()):
        super().__init__(hidden_layers)
        self._graphed = graphed
        self._release: Callable[[], object] | None = None  # gives the graph cache back

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits.

        The prompt is bound by arithmetic, not by kernel launches: the model's own code reads it, into the buffers.
        Its graph cache has the size that the run has announced for its texts, where it has announced one.
        """
        n = prompt.shape[1]
        self._take(n, max(n, self._graphed.longest) if self._graphed.longest else n + SPARE)
        views: list = [WrittenInPlace(keys, values) for keys, values in zip(*self._buffers.first(n), strict=True)]
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        with layer_outputs(self._graphed.model, self._hidden_layers) as self.hidden:
            return self._graphed.model(input_ids=prompt, **options).logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids after `length` tokens -> (1, m, vocab) logits, as one replay.

        More tokens than the run has prepared a pass for, which a draft that waited for many rounds catches up with, are
        several replays: recording takes longer than all of them.
        """
        n, logits, states = tokens.shape[1], [], []
        most = max(self._graphed.widths) if self._graphed.longest else n
        if n <= most:
            return self._replayed(tokens, length)
        for done in range(0, n, most):
            logits.append(self._replayed(tokens[:, done : done + most], length + done))
            states.append(self.hidden)
        self.hidden = {layer: torch.cat([part[layer] for part in states], dim=1) for layer in self._hidden_layers}
        return torch.cat(logits, dim=1)

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        return self._replayed(tokens, length, (positions, mask))

    def move(self, length: int, rows: Tensor) -> None:
        move_rows(self._buffers.keys + self._buffers.values, length, rows)

    def _replayed(self, tokens: Tensor, length: int, masked: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Logits of one pass, and `hidden`: copies, since graphs that judge a draft may write to the same memory."""
        width = self._graphed.width_for(tokens.shape[1])
        self._reserve(length + width, length)
        logits, *states = self._buffers.run(tokens, length, width, masked)
        self.hidden = {layer: states[layer].clone() for layer in self._hidden_layers}
        return logits.clone()

    def _reserve(self, total: int, length: int) -> None:
        """Make room for `total` tokens, twice as many as before if the model has them; keep the first `length`."""
        old = self._buffers
        if total > old.capacity:
            self._take(total, 2 * old.capacity)
            n = min(length, old.capacity)  # what lies beyond was never written
            for before, after in zip(old.keys + old.values, self._buffers.keys + self._buffers.values, strict=True):
                after[:, :, :n] = before[:, :, :n]

    def _take(self, needed: int, wished: int) -> None:
        """Take a graph cache that is free and large enough, or a new one of the wished size, or of the model's
        positions where they are fewer. It is given back when outgrown, or when this backend is gone."""
        graphed = self._graphed
        most = graphed.most_positions + max(graphed.widths)  # a pass at the last positions is padded, too
        capacity = max(needed, min(wished, most))
        if self._release is not None:
            self._release()
        if fitting := [cache for cache in graphed.free if cache.capacity >= capacity]:
            chosen = max(fitting, key=lambda cache: len(cache.graphs))
            graphed.free.remove(chosen)
        else:
            rows = max(capacity, min(graphed.longest, most))
            chosen = GraphCache(graphed, -(-rows // BUCKET) * BUCKET)
        self._buffers, self._release = chosen, weakref.finalize(self, graphed.free.append, chosen)
