"""Attention of few tokens on a GPU: with grouped queries each key-value head is read once.

The queries that share a head become further rows of it. The library would write a copy of keys and values for each of
them.
"""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

UNKNOWN = ("softcap", "position_bias", "s_aux")  # that a model may ask of attention, beside what it gets here


class GroupedAttention:
    """Scaled dot-product attention in which the queries of a group are rows of their key-value head."""

    NAME = "speclab_grouped"

    def __init__(self) -> None:
        # By a mask's id and the size of a group: that mask, kept so that its id stays its own, and what is made of it
        # once for all layers of a pass, (1, 1, group x m, rows).
        self.masks: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> "GroupedAttention | None":
        """For a model whose own attention is the same function; None for others."""
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 0)
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls() if model.config._attn_implementation == "sdpa" and kv_heads != heads else None

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
        mixed = nn.functional.scaled_dot_product_attention(rows, key, value, mask, scale=scaling)
        return mixed.reshape(batch, heads, m, -1).transpose(1, 2).contiguous(), None
