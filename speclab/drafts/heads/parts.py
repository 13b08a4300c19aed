"""Parts that heads of all kinds are made of, with the names that they have in checkpoints."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, rotate_half
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of positions, (1, n, head size) each."""


class Norm(nn.RMSNorm):
    """Takes input of a lower precision than its weights, as autocast gives it."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape"""
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """The projections of a layer, from inputs of this width; Qwen3's also normalise each query and key."""

    def __init__(self, block: Any, width: int):
        super().__init__()
        bias, size = block.attention_bias, block.head_dim
        queries, keys = block.num_attention_heads * size, block.num_key_value_heads * size
        self.head_size = size
        self.q_proj = nn.Linear(width, queries, bias=bias)
        self.k_proj = nn.Linear(width, keys, bias=bias)
        self.v_proj = nn.Linear(width, keys, bias=bias)
        self.o_proj = nn.Linear(queries, block.hidden_size, bias=bias)
        norms = block.model_type == "qwen3"
        self.q_norm, self.k_norm = (Norm(size, block.rms_norm_eps) if norms else nn.Identity() for _ in range(2))

    def queries(self, x: Tensor, rotation: Rotation) -> Tensor:
        """(batch, n, width) -> (batch, heads, n, head size), turned to their positions"""
        return rotated(self.q_norm(self._heads(self.q_proj(x))), rotation)

    def keys_and_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """(batch, n, width) -> (batch, key heads, n, head size) each, the keys turned to their positions"""
        return rotated(self.k_norm(self._heads(self.k_proj(x))), rotation), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


def mlp(block: Any) -> nn.Module:
    """The gated MLP of a layer."""
    return (Qwen3MLP if block.model_type == "qwen3" else LlamaMLP)(block)


def finish(layer: Any, residual: Tensor, attended: Tensor) -> Tensor:
    """What follows attention in a layer: (batch, n, hidden) and (batch, heads, n, head size) -> (batch, n, hidden)"""
    x = residual + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def rotations(block: Any, positions: Tensor) -> Rotation:
    """(n,) positions -> their cosines and sines, (1, n, head size) each, float32"""
    rotary = LlamaRotaryEmbedding(block).to(positions.device)
    return rotary(torch.empty(0, device=positions.device), positions[None])


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """(batch, heads, n, head size) -> the same, each row turned to its position"""
    cos, sin = (part.to(x.dtype)[:, None] for part in rotation)
    return x * cos + rotate_half(x) * sin
