"""Layers with sliding windows: what a token reads there, in caches that hold the whole text."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

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


def masks(mask: Tensor, window: Window | None) -> Any:
    """Return what the model takes as its attention mask, (texts, 1, m, rows): by the kinds of its layers, where it has
    several. Of the rows that a token reads, the last ones stay that fit a window, its own included, also where other
    rows stand between them."""
    if window is None:
        return mask
    reads = mask == 0
    n_behind = reads.sum(-1, keepdim=True) - reads.cumsum(-1)  # of what a token reads, behind this row
    windowed = mask.masked_fill(n_behind >= window.size, torch.finfo(mask.dtype).min)
    return windowed if window.everywhere else {"full_attention": mask, "sliding_attention": windowed}
