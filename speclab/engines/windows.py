"""Layers with sliding windows: what a token reads there, and how such layers are rolled back.

Buffers hold the whole text for these layers, too: memory beyond the window is the price of a rollback that is always
exact. The library's own cache drops what leaves a window; here it keeps that until it is cropped.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from speclab.models.family import NoFastBackend, cached_layers


class Window(NamedTuple):
    """size: tokens that a layer with a window reads, the last one included. everywhere: whether all layers have one."""

    size: int
    everywhere: bool


def window_of(model: PreTrainedModel) -> Window | None:
    """Of its layers with a sliding window; None where no layer has one. Raises NoFastBackend where they differ, or are
    no windows that move with every token."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if "chunked_attention" in kinds:
        raise NoFastBackend("some of its layers read chunks of the text")
    sizes = [getattr(layer, "sliding_window", None) for layer in cached_layers(model)]
    different = sorted({size for size in sizes if size})
    if len(different) > 1:
        raise NoFastBackend(f"its layers have windows of {' and '.join(map(str, different))} tokens")
    return Window(different[0], all(sizes)) if different else None


def with_window(mask: Tensor, size: int) -> Tensor:
    """The mask of layers with a window over buffers that hold the whole text, (texts, 1, m, total): of the rows that a
    token reads, the last `size` stay, its own included, also where other rows stand between them."""
    reads = mask == 0
    n_behind = reads.sum(-1, keepdim=True) - reads.cumsum(-1)  # of what a token reads, behind this row
    return mask.masked_fill(n_behind >= size, torch.finfo(mask.dtype).min)


def masks(mask: Tensor, window: Window | None, n_held: int | None = None) -> Any:
    """What the model takes as its attention mask: by the kinds of its layers, where it has several. n_held: rows that
    layers with windows hold, the last ones (default: all)."""
    if window is None:
        return mask
    windowed = with_window(mask, window.size)
    if n_held is not None:  # a copy, since some kernels of CUDA want a mask that begins at a round address
        windowed = windowed[..., -n_held:].clone(memory_format=torch.contiguous_format)
    return windowed if window.everywhere else {"full_attention": mask, "sliding_attention": windowed}


def _update(layer: Any, update: Callable, key_states: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Give attention the window of a layer and this pass, or all that it holds (transformers 5.17 always gives all)."""
    keys, values = update(key_states, *rest, **options)
    if layer.reads_all:
        return layer.keys, layer.values
    n_read = layer.sliding_window - 1 + key_states.shape[-2]
    return keys[:, :, -n_read:], values[:, :, -n_read:]


def keep_what_leaves(cache: Cache) -> None:
    """Let layers with sliding windows keep what leaves these until it is cropped."""
    cache.activate_past_recording()
    for layer in sliding(cache):
        layer.update, layer.reads_all = functools.partial(_update, layer, layer.update), False


def sliding(cache: Cache) -> list[Any]:
    return [layer for layer in cache.layers if getattr(layer, "is_sliding", False)]


@contextlib.contextmanager
def reading_all_rows(cache: Cache) -> Iterator[list[Any]]:
    """Inside, a pass reads all rows that layers with windows hold; gives these layers. A pass needs it in which other
    tokens stand between those that a token reads: its window reaches further back."""
    layers = sliding(cache)
    for layer in layers:
        layer.reads_all = True
    try:
        yield layers
    finally:
        for layer in layers:
            layer.reads_all = False
