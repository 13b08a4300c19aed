"""Heads of all kinds are made of these parts, which have the names of checkpoints."""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import linear, rms_norm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

Rotation = tuple[Tensor, Tensor]
"""Cosines of positions, and their sines, of which the first half has its sign changed: (1, n, head size) each."""


class Norm(nn.RMSNorm):
    """Takes input of a lower precision than its weights, as autocast gives it.

    PyTorch's norm is six kernels on a CPU. Frozen float32 weights take four:
    weight * sqrt(width) * x / hypot(length of x, sqrt(width * eps)).
    """

    eps: float

    def __init__(self, width: int, eps: float):
        super().__init__(width, eps)
        self.is_frozen = False  # the weights will not change any more

    @functools.cached_property
    def _frozen(self) -> tuple[Tensor, Tensor] | None:
        """Return sqrt(width * eps) and weight * sqrt(width); None where PyTorch's norm serves."""
        width, weight = self.normalized_shape[0], self.weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return None
        with torch.no_grad():
            return torch.tensor(math.sqrt(width * self.eps)), weight * math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., width); the shape stays."""
        if self.is_frozen and self._frozen and x.dtype == torch.float32:
            least, weight = self._frozen
            return x / torch.hypot(vector_norm(x, dim=-1, keepdim=True), least) * weight
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Product:
    """Linear layers of one input as one product: a small product takes as long as a large one.

    Once frozen, its weights lie side by side.
    """

    def __init__(self, *layers: nn.Module):
        self.layers = layers  # nn.Linear, or what else has a weight and a bias
        self.is_frozen = False  # the weights will not change any more

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """Return the weights side by side, (all widths, width), and the biases, where there are any."""
        weights, biases = zip(*((layer.weight, layer.bias) for layer in self.layers), strict=True)
        if len(weights) == 1:
            return weights[0], biases[0]
        return torch.cat(weights), None if biases[0] is None else torch.cat(biases)

    @functools.cached_property
    def _frozen(self) -> tuple[Tensor, Tensor | None]:
        """Return the weights and biases; made when they are first needed."""
        with torch.no_grad():
            return self.joined()

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: (..., width) -> (..., all widths), one layer after the other."""
        weight, bias = self._frozen if self.is_frozen else self.joined()
        return linear(x, weight, bias)


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
        self.queries_keys_values = Product(self.q_proj, self.k_proj, self.v_proj)
        self.context_product, self.out = Product(self.k_proj, self.v_proj), Product(self.o_proj)
        norms = block.model_type == "qwen3"
        self.q_norm, self.k_norm = (Norm(size, block.rms_norm_eps) if norms else nn.Identity() for _ in range(2))

    def heads(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values of (batch, n, width), (batch, heads, n, head size) each; queries and keys
        are turned to their positions."""
        n, n_keys = self.n_queries, self.n_keys
        turned, values = self._heads(self.queries_keys_values(x)).split([n + n_keys, n_keys], dim=1)
        if isinstance(self.q_norm, Norm):
            queries, keys = turned.split([n, n_keys], dim=1)
            turned = torch.cat([self.q_norm(queries), self.k_norm(keys)], dim=1)
        queries, keys = rotated(turned, rotation).split([n, n_keys], dim=1)
        return queries, keys, values

    def keys_and_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Make keys and values of (batch, n, width), (batch, key heads, n, head size) each; the keys are turned to
        their positions."""
        keys, values = self._heads(self.context_product(x)).chunk(2, dim=1)
        return rotated(self.k_norm(keys), rotation), values

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
        self.gate_up, self.down = Product(self.mlp.gate_proj, self.mlp.up_proj), Product(self.mlp.down_proj)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Do what follows attention: (batch, n, hidden) and (batch, heads, n, head size) -> (batch, n, hidden)."""
        x = residual + self.self_attn.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        return x + self.down(self.mlp.act_fn(gate) * up)


def freeze(head: Any) -> None:
    """Make a head ready to decode: from now on its weights must not change, nor move to another device."""
    parts: list[Any] = [*_products(head), *(module for module in head.modules() if isinstance(module, Norm))]
    for part in parts:
        part.is_frozen = True
    head.eval()


def _products(head: Any) -> list[Product]:
    return [part for module in head.modules() for part in vars(module).values() if isinstance(part, Product)]


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
