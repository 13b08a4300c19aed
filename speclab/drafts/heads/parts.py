"""Heads of all kinds are made of these parts, which have the names of checkpoints."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

Rotation = tuple[Tensor, Tensor]
"""Cosines of positions, and their sines, of which the first half has its sign changed: (1, n, head size) each."""


class Norm(nn.RMSNorm):
    """Takes input of a lower precision than its weights, as autocast gives it."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """The projections of a layer, from inputs of this width; Qwen3's also normalise each query and key."""

    def __init__(self, block: Any, width: int):
        super().__init__()
        bias, size = block.attention_bias, block.head_dim
        self.n_queries, self.n_keys, self.head_size = block.num_attention_heads, block.num_key_value_heads, size
        self.q_proj = nn.Linear(width, self.n_queries * size, bias=bias)
        self.k_proj = nn.Linear(width, self.n_keys * size, bias=bias)
        self.v_proj = nn.Linear(width, self.n_keys * size, bias=bias)
        self.o_proj = nn.Linear(self.n_queries * size, block.hidden_size, bias=bias)
        norms = block.model_type == "qwen3"
        self.q_norm, self.k_norm = (Norm(size, block.rms_norm_eps) if norms else nn.Identity() for _ in range(2))

    def heads(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of (batch, n, width), (batch, heads, n, head size) each, turned."""
        queries = rotated(self.q_norm(self._heads(self.q_proj(x))), rotation)
        return queries, *self.keys_and_values(x, rotation)

    def keys_and_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Return keys, turned to their positions, and values, (batch, key heads, n, head size) each."""
        return rotated(self.k_norm(self._heads(self.k_proj(x))), rotation), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """A decoder layer, as heads of all kinds have it. width: the width of the attention's input."""

    def __init__(self, block: Any, width: int):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (
            Norm(block.hidden_size, block.rms_norm_eps) for _ in range(2)
        )
        self.self_attn = Attention(block, width)
        self.mlp = (Qwen3MLP if block.model_type == "qwen3" else LlamaMLP)(block)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Do what follows attention: (batch, n, hidden) and (batch, heads, n, head size) -> (batch, n, hidden)."""
        x = residual + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.post_attention_layernorm(x))


def appended(buffers: Sequence[Tensor], new: Sequence[Tensor], start: int) -> list[Tensor]:
    """Write keys and values of n positions, (1, heads, n, size) each, into buffers, (rows, heads, size), from row
    `start` on.  -> all up to them, (1, heads, start + n, size) each"""
    end = start + new[0].shape[2]
    for rows, part in zip(buffers, new, strict=True):
        rows[start:end] = part[0].transpose(0, 1)
    return [rows[:end].transpose(0, 1)[None] for rows in buffers]


def rotations(block: Any, positions: Tensor) -> Rotation:
    """Return the rotations of (n,) positions, float32."""
    rotary = LlamaRotaryEmbedding(block).to(positions.device)
    cos, sin = rotary(torch.empty(0, device=positions.device), positions[None])
    first, second = sin.chunk(2, dim=-1)
    return cos, torch.cat([-first, second], dim=-1)


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn each row of (batch, heads, n, head size) to its position."""
    cos, sin = (part.to(x.dtype).unsqueeze(1) for part in rotation)
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
