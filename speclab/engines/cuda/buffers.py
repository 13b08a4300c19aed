"""Keys and values of one text in buffers that are allocated once: a pass writes its rows in place, nothing is copied.

Rolling back is free: rows after the text's length are never read, and the next pass overwrites them.
"""

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from speclab.engines.eager import layer_outputs, move_rows
from speclab.models.family import NoFastBackend, cached_layers, context_length, family_of

SPARE = 512  # tokens that new buffers can take after a prompt before they have to grow
WIDEST = 64  # passes up to this width take their mask from a table


def kv_shapes(model: PreTrainedModel) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """What each layer keeps of a token: (kv heads, head width) of its keys and of its values."""
    if why := family_of(model).why_eager:
        raise NoFastBackend(why)
    layers = cached_layers(model)
    kinds = (DynamicLayer, DynamicSlidingWindowLayer)
    if not layers or any(type(layer) not in kinds or layer.keys is None for layer in layers):
        raise NoFastBackend("not all of its layers keep plain keys and values")
    pairs = ((layer.keys.shape, layer.values.shape) for layer in layers)
    return [((keys[1], keys[3]), (values[1], values[3])) for keys, values in pairs]


class WrittenInPlace(CacheLayerMixin):
    """One layer's keys and values as views of a buffer: a pass writes its own rows, the last ones, and reads all.

    keys, values: (1, kv heads, tokens before + tokens of this pass, head width)
    """

    is_sliding = False

    keys: Tensor
    values: Tensor

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
        return 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def lazy_initialization(self, *args) -> None:
        """Nothing to do."""


class Buffers:
    """Keys and values of one text, allocated once: (1, kv heads, capacity, head width) each, a pair for every layer.

    places: (1, capacity), the positions of their rows.
    """

    def __init__(self, model: PreTrainedModel, shapes: list, capacity: int):
        self.capacity, self.dtype, self.device = capacity, model.dtype, model.device
        self.places = torch.arange(capacity, device=self.device)[None]
        self._keys, self._values = (
            [torch.zeros(capacity, n_heads, width, dtype=self.dtype, device=self.device) for n_heads, width in side]
            for side in zip(*shapes, strict=True)
        )
        self._n_rows = 0  # of the views that were asked for last
        self._first: tuple[list[Tensor], list[Tensor]] = ([], [])
        # Rows stand first in memory: the first ones of any number are one piece.
        self.keys, self.values = ([rows.transpose(0, 1)[None] for rows in side] for side in (self._keys, self._values))
        self._masks = causal_mask(WIDEST, capacity, 2 * capacity + WIDEST, self.dtype, self.device)

    def mask(self, width: int, length: int, n_rows: int) -> Tensor:
        """(1, 1, width, n_rows): of a pass after `length` tokens that reads the first `n_rows` rows."""
        if width > WIDEST:
            return causal_mask(width, length, n_rows, self.dtype, self.device)
        # Row i reads column j while j <= length + i: the table of a full buffer, moved to the left.
        start = self.capacity - length
        return self._masks[:, :, :width, start : start + n_rows]

    def first(self, n_rows: int) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the first rows: keys, values."""
        return [keys[:, :, :n_rows] for keys in self.keys], [values[:, :, :n_rows] for values in self.values]

    def rows(self, n_rows: int) -> tuple[list[Tensor], list[Tensor]]:
        """The first rows as they stand in memory, (n_rows, kv heads, head width): keys, values."""
        if n_rows != self._n_rows:
            self._n_rows = n_rows
            self._first = [t[:n_rows] for t in self._keys], [t[:n_rows] for t in self._values]
        return self._first

    def copy_from(self, other: "Buffers", n_rows: int) -> None:
        """Take over the first rows of smaller buffers."""
        for old, new in zip(other.keys + other.values, self.keys + self.values, strict=True):
            new[:, :, :n_rows] = old[:, :, :n_rows]


def causal_mask(width: int, length: int, n_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1, 1, width, n_rows): a pass after `length` tokens, of which each reads what stands before it and itself"""
    mask = torch.full((width, n_rows), torch.finfo(dtype).min, dtype=dtype, device=device)
    return mask.triu_(length + 1)[None, None]


def padded_mask(positions: Tensor, mask: Tensor, width: int, n_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions (1, m) and mask (1, 1, m, total) for a pass over `width` tokens; nothing reads the padding.

    n_rows: columns of the mask (default: all that the padded pass writes or reads).
    """
    extra = width - positions.shape[1]
    columns = extra if n_rows is None else n_rows - mask.shape[-1]
    lowest = torch.finfo(mask.dtype).min
    return nn.functional.pad(positions, (0, extra)), nn.functional.pad(mask, (0, columns, 0, extra), value=lowest)


class BufferedBackend:
    """One decoding over buffers that are written in place. What a pass runs is said by its subclasses."""

    n_replays = n_single = 0

    def __init__(self, model: PreTrainedModel, hidden_layers: Iterable[int] = ()):
        self._model, self._hidden_layers = model, hidden_layers
        self.hidden: dict[int, Tensor] = {}
        self._most_positions = context_length(model) or sys.maxsize

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits.

        The prompt is bound by arithmetic, not by kernel launches: the model's own code reads it, into the buffers.
        """
        n = prompt.shape[1]
        self._buffers = self._new_buffers(self._rows(n, self._wished(n)))
        views: list = [WrittenInPlace(keys, values) for keys, values in zip(*self._buffers.first(n), strict=True)]
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
            return self._model(input_ids=prompt, **options).logits

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """As `forward`: what stands behind the text is overwritten anyway."""
        return self.forward(tokens, length)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        raise NotImplementedError

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """As `forward`, at positions (1, m) and with a mask (1, 1, m, length + m)."""
        raise NotImplementedError

    def forward_first(self, tokens: Tensor, length: int, n_layers: int) -> Tensor:
        """The first `n_layers` layers alone: (1, m) ids after `length` tokens -> their outputs (1, m, hidden)."""
        raise NotImplementedError

    def forward_rest(self, states: Tensor, length: int, n_layers: int) -> Tensor:
        """All layers but those: what they gave (1, m, hidden), after `length` tokens -> (1, m, vocab) logits."""
        raise NotImplementedError

    def keep(self, length: int, rows: Tensor) -> None:
        """Of the tokens behind `length`, those of the last pass, move these (n,) to the front, and their hidden states
        with them."""
        move_rows(self._buffers.keys + self._buffers.values, length, rows)
        self.hidden = {layer: states[:, rows] for layer, states in self.hidden.items()}

    def crop(self, n_tokens: int, length: int) -> None:
        """Nothing to do: rows after the length are never read."""

    def _new_buffers(self, capacity: int) -> Buffers:
        raise NotImplementedError

    def _wished(self, n: int) -> int:
        """Rows of the buffers for a prompt of `n` tokens."""
        return n + SPARE

    def _rows(self, needed: int, wished: int) -> int:
        """Of new buffers: `wished`, or the model's positions where they are fewer, and never less than `needed`."""
        return max(needed, min(wished, self._most_positions))

    def _reserve(self, total: int, length: int) -> None:
        """Make room for `total` tokens, twice as many as before if the model has them; keep the first `length`."""
        old = self._buffers
        if total > old.capacity:
            self._buffers = self._new_buffers(self._rows(total, 2 * old.capacity))
            self._buffers.copy_from(old, min(length, old.capacity))  # what lies beyond was never written
