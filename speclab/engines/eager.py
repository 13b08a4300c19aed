"""The eager backend: the model as its library runs it, with a cache that grows. Readable, and right for every model.

Keys and values are rows, one for each token: rolling back drops the last ones. Families of models whose layers keep
something else have backends of their own (speclab/models/family.py).

The library's cache drops what leaves a sliding window. Here such layers keep the whole text, as buffers and pages do,
and masks say what a token reads: memory beyond the window is the price of a rollback that is always exact.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from speclab.models.family import NoFastBackend, cached_layers


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's decoder layers in their order; none where they are not one list. They are looked for in its text part
    first: an encoder of images may have as many layers."""
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    text_part = model.get_decoder() if isinstance(model, PreTrainedModel) else model
    modules = (module for part in (text_part, model) for module in part.modules())
    lists = (module for module in modules if isinstance(module, nn.ModuleList) and len(module) == n_layers)
    return list(next(lists, []))


@contextlib.contextmanager
def layer_outputs(model: PreTrainedModel, layers: Iterable[int]) -> Iterator[dict[int, Tensor]]:
    """While this is open, the passes of the model put the outputs of these layers here, (batch, m, hidden) each."""
    outputs: dict[int, Tensor] = {}

    def keep(layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        outputs[layer] = states.to(model.device)  # layers may lie on several devices

    modules = decoder_layers(model)
    handles = [modules[layer].register_forward_hook(functools.partial(keep, layer)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def whole_text_cache(config: PreTrainedConfig) -> DynamicCache:
    """Return an empty cache whose layers keep the keys and values of every token."""
    cache = DynamicCache(config=config)
    cache.layers = [DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer for layer in cache.layers]
    return cache


class Window(NamedTuple):
    """size: tokens that a layer with a window reads, the last one included. everywhere: whether all layers have one."""

    size: int
    everywhere: bool


def window_of(model: PreTrainedModel) -> Window | None:
    """Return the sliding window of layers, or None. Raises NoFastBackend where windows differ, or move in chunks."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if "chunked_attention" in kinds:
        raise NoFastBackend("some of its layers read chunks of the text")
    sizes = [getattr(layer, "sliding_window", None) for layer in cached_layers(model)]
    different = sorted({size for size in sizes if size})
    if len(different) > 1:
        raise NoFastBackend(f"its layers have windows of {' and '.join(map(str, different))} tokens")
    return Window(different[0], all(sizes)) if different else None


def masks(mask: Tensor, window: Window | None) -> Any:
    """Return what the model takes as its attention mask, (texts, 1, m, rows): by the kinds of its layers, where it has
    several. In a window count only the rows that a token reads, its own included, whatever stands between them."""
    if window is None:
        return mask
    reads = mask == 0
    n_behind = reads.sum(-1, keepdim=True) - reads.cumsum(-1)  # of what a token reads, behind this row
    windowed = mask.masked_fill(n_behind >= window.size, torch.finfo(mask.dtype).min)
    return windowed if window.everywhere else {"full_attention": mask, "sliding_attention": windowed}


def move_rows(tensors: Iterable[Tensor], length: int, rows: Tensor) -> None:
    """Move these rows, (n,), of (1, heads, tokens, head width) each, to the front of those behind `length`."""
    for tensor in tensors:
        tensor[:, :, length : length + len(rows)] = tensor[:, :, length + rows.to(tensor.device)]


class TextBackend:
    """What runs the passes of a model over one text. Where rows behind its end are never read, a rollback does nothing.

    n_replays: passes over accepted tokens that were read before. hidden: by layer, what was asked for of the last pass.
    """

    n_replays = 0

    def __init__(self, hidden_layers: Iterable[int] = ()):
        self._hidden_layers = hidden_layers
        self.hidden: dict[int, Tensor] = {}

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """Run a pass: (1, m) ids -> (1, m, vocab) logits. The cache already holds `length` tokens."""
        raise NotImplementedError

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """Do the same; a token has its position (1, m), and the mask (1, 1, m, length + m) says what it reads."""
        raise NotImplementedError

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """Do the same as `forward`, for tokens that will never be rolled back."""
        return self.forward(tokens, length)

    def keep(self, length: int, rows: Tensor) -> None:
        """Keep these rows, (n,), of the last pass: they and their hidden states move to the front of it."""
        self.move(length, rows)
        self.hidden = {layer: states[:, rows] for layer, states in self.hidden.items()}

    def move(self, length: int, rows: Tensor) -> None:
        """Move the keys and values of these rows behind `length` to the front of them."""
        raise NotImplementedError

    def crop(self, n_tokens: int, length: int) -> None:
        """Drop the last `n_tokens` of the `length` tokens."""


class EagerBackend(TextBackend):
    """The model as its library runs it, with a cache that grows."""

    def __init__(self, model: PreTrainedModel, hidden_layers: Iterable[int] = ()):
        super().__init__(hidden_layers)
        self._model, self._cache = model, whole_text_cache(model.config)

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits of the last one."""
        return self._read(prompt, logits_to_keep=1)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        return self._read(tokens)

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        return self._read(tokens, position_ids=positions, attention_mask=masks(mask, window_of(self._model)))

    def _read(self, tokens: Tensor, **options: Any) -> Tensor:
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
            return self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True, **options).logits

    def move(self, length: int, rows: Tensor) -> None:
        layers: list[Any] = self._cache.layers
        move_rows((part for layer in layers for part in (layer.keys, layer.values)), length, rows)

    def crop(self, n_tokens: int, length: int) -> None:
        if n_tokens:
            self._cache.crop(-n_tokens)  # the negative form is the portable one
