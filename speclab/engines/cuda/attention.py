"""Attention of few tokens on a GPU.

With grouped queries each key-value head is read once: the queries that share it become further rows of it. (The library
would write a copy of keys and values for each of them.) A pass over few tokens then has few rows for each head, and the
library's fused kernel, which gives a head's rows to one processor of many, takes about as long for one token as for
five. Two products with a softmax between them are three kernels, each of which is spread over more of the GPU: half of
the time on an H200 (results/gpu-preflight.md). Which of the two ways is faster is measured when a model is loaded.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

UNKNOWN = ("softcap", "position_bias", "s_aux")  # that a model may ask of attention, beside what it gets here


class Attend(Protocol):
    """Computes attention: (texts, kv heads, n, width) queries, (texts, kv heads, rows, width) keys and values,
    mask (texts or 1, 1, n, rows), factor of the scores -> (texts, kv heads, n, width)"""

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        """See above."""


def fused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Run the library's kernel."""
    return nn.functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)


def shares(scores: Tensor, mask: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Return the weight of each row of the text for each query: the softmax of scaled and masked scores, rounded."""
    return (scores * scale + mask).softmax(-1).to(dtype)


class TwoProducts:
    """Computes attention of one text as two products with a softmax between them. For several texts it calls the
    library's kernel, since their keys would have to be copied. Scores are float32, as in the library's kernel.

    shares: the function of that name, maybe compiled.
    """

    def __init__(self, shares: Callable[..., Tensor] = shares):
        self.shares = shares

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        """See Attend."""
        if len(queries) > 1:
            return fused(queries, keys, values, mask, scale)
        scores = product(queries[0], keys[0].transpose(1, 2))
        scale = queries.shape[-1] ** -0.5 if scale is None else scale
        return torch.bmm(self.shares(scores, mask[0], scale, values.dtype), values[0])[None]


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of matrices, (n, a, b) by (n, b, c), in float32 or what is wider. A GPU sums products of
    bfloat16 in float32, so there the sums are not rounded."""
    if torch.promote_types(left.dtype, torch.float32) == left.dtype:
        return torch.bmm(left, right)
    if left.device.type == "cuda":
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def asks_library(model: PreTrainedModel) -> bool:
    """Tell whether a model calls the library's scaled dot-product attention, so that another function can stand in."""
    return model.config._attn_implementation == "sdpa"


class GroupedAttention:
    """Scaled dot-product attention in which the queries of a group are rows of their key-value head."""

    NAME = "speclab_grouped"

    def __init__(self, attend: Attend = fused) -> None:
        self.attend = attend
        # By a mask's id and the size of a group: that mask, kept so that its id stays its own, and what is made of it
        # once for all layers of a pass, (1, 1, group x m, rows).
        self.masks: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> "GroupedAttention | None":
        """For a model whose own attention is the same function; None for others."""
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 0)
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls() if asks_library(model) and kv_heads != heads else None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """(1, heads, m, width) queries, (1, kv heads, rows, width) keys and values -> (1, m, heads, width), no weights

        The library's interface; heads of a group follow one another.
        """
        batch, heads, m, width = query.shape
        group = heads // key.shape[1]
        if unknown := [name for name in UNKNOWN if kwargs.get(name) is not None]:
            raise NotImplementedError(f"attention with {unknown[0]}")
        if (key_of_mask := (id(attention_mask), group)) not in self.masks:
            self.masks[key_of_mask] = attention_mask, attention_mask.repeat(1, 1, group, 1)
        mask = self.masks[key_of_mask][1]
        rows = query.reshape(batch, key.shape[1], group * m, width)
        mixed = self.attend(rows, key, value, mask, scaling)
        return mixed.reshape(batch, heads, m, -1).transpose(1, 2).contiguous(), None
