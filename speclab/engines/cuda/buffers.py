"""One layer of a library's cache as a view of a buffer: a pass writes its rows in place, nothing is copied."""

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from speclab.models.family import NoFastBackend, cached_layers, family_of


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
        """Rows that attention reads, and where they start."""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given

    def get_max_length(self) -> int:
        return -1  # no limit

    get_max_cache_shape = get_max_length  # its name before transformers 5.20

    def lazy_initialization(self, *args) -> None: ...
