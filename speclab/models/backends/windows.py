"""Layers with sliding windows: what a token reads there, and how such layers are rolled back.

Buffers hold the whole text for these layers, too: memory beyond the window is the price of a rollback that is always
exact. The library's own cache drops what leaves a window; here it keeps that until it is cropped.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from speclab.models.limits import cached_layers


class NoFastBackend(Exception):
    """Why this model cannot run over buffers, in one line."""


def window_of(model: PreTrainedModel) -> int | None:
    """Tokens that its layers with a sliding window read, the token itself included; None where no layer has one.

    NoFastBackend where they differ, or are no windows that move with every token.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if "chunked_attention" in kinds:
        raise NoFastBackend("some of its layers read chunks of the text")
    layers = cached_layers(model)
    windows: set[int] = {layer.sliding_window for layer in layers if getattr(layer, "sliding_window", None)}
    if len(windows) > 1:
        raise NoFastBackend(f"its layers have windows of {' and '.join(map(str, sorted(windows)))} tokens")
    return next(iter(windows), None)


def with_window(mask: Tensor, window: int) -> Tensor:
    """The mask of layers with a sliding window over buffers that hold the whole text, (texts, 1, m, total).

    Of the rows that a token reads, the last `window` stay, its own included. They stand in the order of the text, also
    where branches of a tree stand between them.
    """
    n_from_here = (mask == 0).flip(-1).cumsum(-1).flip(-1)  # of what a token reads, in this row and behind it
    return mask.masked_fill(n_from_here > window, torch.finfo(mask.dtype).min)


def masks(model: PreTrainedModel, mask: Tensor, window: int | None, n_held: int | None = None) -> Any:
    """What the model takes as its attention mask: by the kinds of its layers, where it has several.

    n_held: rows that layers with windows hold, the last ones (default: all).
    """
    if window is None:
        return mask
    windowed = with_window(mask, window)[..., -(n_held or mask.shape[-1]) :]
    if all(getattr(layer, "is_sliding", False) for layer in DynamicCache(config=model.config).layers):
        return windowed
    return {"full_attention": mask, "sliding_attention": windowed}


class Kept:
    """The `update` of a sliding-window layer that keeps what leaves its window until it is cropped.

    whole: give attention all that the layer holds, else its window and this pass. transformers 5.17 always gives all,
    with masks for the window alone.
    """

    def __init__(self, layer: Any):
        self._layer, self._update, self.whole = layer, layer.update, False

    def __call__(self, key_states: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Append a pass's rows.  -> keys and values that it reads"""
        keys, values = self._update(key_states, *rest, **options)
        if self.whole:
            return self._layer.keys, self._layer.values
        n_read = self._layer.sliding_window - 1 + key_states.shape[-2]
        return keys[:, :, -n_read:], values[:, :, -n_read:]


def keep_what_leaves(cache: Cache) -> None:
    """From now on sliding-window layers keep what leaves the window until they are cropped."""
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()
        for layer in sliding(cache):
            layer.update = Kept(layer)


def sliding(cache: Cache) -> list[Any]:
    """Its layers with windows."""
    return [layer for layer in cache.layers if getattr(layer, "is_sliding", False)]


@contextlib.contextmanager
def whole(cache: Cache) -> Iterator[list[Any]]:
    """Inside, a pass reads all rows that layers with windows hold; gives these layers.

    A branch of a tree needs it: other branches stand between its tokens, so its window reaches further back.
    """
    layers = sliding(cache)
    for layer in layers:
        layer.update.whole = True
    try:
        yield layers
    finally:
        for layer in layers:
            layer.update.whole = False
