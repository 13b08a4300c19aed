"""A draft of one decoder layer that reads the target's hidden states (EAGLE-3, arXiv 2503.01840).

At position t it gets what the target computed there (the outputs of a low, a middle and a high layer, fused) and the
token after it, t + 1, and predicts token t + 2. Deeper positions, for which the target has computed nothing yet, get the
head's own output at the position before in the place of the fused states.

Names of modules are those of the `speculators` checkpoint format (eagle3), in which heads are written and read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a head.

    layers: decoder layers of the target whose outputs it reads, from 0.
    target_hidden: width of the target's hidden states. hidden, intermediate, heads, key_heads, head_size: its own.
    vocab: ids that it reads. draft_vocab: ids that it can propose.
    norm_before_residual: whether the residual stream starts after the norm of the fused states.
    """

    layers: tuple[int, ...]
    target_hidden: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocab: int
    draft_vocab: int
    rope_theta: float = 10000.0
    eps: float = 1e-6
    norm_before_residual: bool = False


class Norm(nn.RMSNorm):
    """Takes input of a lower precision than its weights, as autocast gives it."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape"""
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """The projections of the one layer; they read the token's embedding and the state, in this order."""

    def __init__(self, shape: HeadShape):
        super().__init__()
        keys = shape.key_heads * shape.head_size
        self.q_proj = nn.Linear(2 * shape.hidden, shape.heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_size, shape.hidden, bias=False)


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, shape: HeadShape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) -> the same shape"""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The parts of the one decoder layer."""

    def __init__(self, shape: HeadShape):
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)


class FeatureHead(nn.Module):
    """The weights, and the steps of a pass: `fuse`, `project`, attention by the caller, `finish`, `logits`."""

    def __init__(self, shape: HeadShape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.fc = nn.Linear(shape.target_hidden * len(shape.layers), shape.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)

    @property
    def layer(self) -> Layer:
        """The one decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        return layer

    def fuse(self, hidden: Tensor) -> Tensor:
        """(batch, n, layers * target_hidden) of the target -> states (batch, n, hidden)"""
        return self.fc(hidden)

    def project(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States and the token after each.  -> residual (batch, n, hidden); queries, keys, values (batch, heads, n, size)

        positions: (n,) of the states; queries and keys are rotated by them.
        """
        layer, shape = self.layer, self.shape
        normed = layer.hidden_norm(states)
        x = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], dim=-1)  # (batch, n, 2 * hidden)
        attention = layer.self_attn
        queries, keys, values = (
            projection(x).unflatten(-1, (-1, shape.head_size)).transpose(1, 2)  # (batch, heads, n, size)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cos, sin = self.rotation(positions)
        residual = normed if shape.norm_before_residual else states
        return residual, rotate(queries, cos, sin), rotate(keys, cos, sin), values

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """(batch, n, hidden) and the attention's output (batch, heads, n, size) -> states one position on"""
        layer = self.layer
        x = residual + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def logits(self, states: Tensor) -> Tensor:
        """(batch, n, hidden) -> (batch, n, draft_vocab)"""
        return self.lm_head(self.norm(states))

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) -> cosines and sines, (n, head size) each"""
        size = self.shape.head_size
        powers = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
        angles = positions[:, None].float() / self.shape.rope_theta**powers  # (n, size / 2)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: (batch, heads, n, size), with cosines and sines (n, size)"""
    one, two = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-two, one], dim=-1) * sin.to(x.dtype)
