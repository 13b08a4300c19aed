"""A draft of one decoder layer that reads the target's hidden states (EAGLE-3, arXiv 2503.01840).

At position t it gets what the target computed there (the outputs of a low, a middle and a high layer, fused into one
state) and the token after it, t + 1, and predicts token t + 2. Deeper positions, for which the target has computed
nothing yet, get the head's own output at the position before in the place of the fused state.

Names of modules and options are those of the `speculators` checkpoint format (eagle3), in which heads are kept.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, rotate_half
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP


@dataclass(frozen=True)
class HeadConfig:
    """What a head is.

    block: sizes of its decoder layer, its vocabulary, rotary positions.
    layers: decoder layers of the target whose outputs it reads, from 0.
    target_hidden: width of the target's hidden states.
    draft_vocab: ids that it can propose.
    norm_before_fc, fc_norm: a norm over what it reads, of all layers together or of each.
    norm_before_residual: the residual stream starts after the norm of the state.
    norm_output: what it feeds back went through its last norm.
    """

    block: Any  # LlamaConfig or Qwen3Config
    layers: tuple[int, ...]
    target_hidden: int
    draft_vocab: int
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


class Norm(nn.RMSNorm):
    """Takes input of a lower precision than its weights, as autocast gives it."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape"""
        return rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Joined:
    """Linear layers of one input as one product: a small product takes as long as a large one."""

    def __init__(self, *layers: nn.Linear):
        self.layers = layers
        self.weight: Tensor | None = None  # of all, once they are frozen

    def freeze(self) -> None:
        """Put their weights side by side for good; each layer's own becomes a part of that."""
        with torch.no_grad():
            self.weight = torch.cat([layer.weight for layer in self.layers])
            parts = self.weight.split([layer.out_features for layer in self.layers])
            for layer, part in zip(self.layers, parts, strict=True):
                layer.weight = nn.Parameter(part, requires_grad=False)

    def __call__(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., all widths), one layer's after the other's"""
        weight = torch.cat([layer.weight for layer in self.layers]) if self.weight is None else self.weight
        biases = tuple(layer.bias for layer in self.layers)
        return linear(x, weight, None if biases[0] is None else torch.cat(biases))


class Attention(nn.Module):
    """The projections of the one layer; they read the token's embedding and the state, in this order."""

    def __init__(self, block: Any):
        super().__init__()
        bias, size = block.attention_bias, block.head_dim
        queries, keys = block.num_attention_heads * size, block.num_key_value_heads * size
        self.q_proj = nn.Linear(2 * block.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(2 * block.hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(2 * block.hidden_size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, block.hidden_size, bias=bias)
        self.qkv = Joined(self.q_proj, self.k_proj, self.v_proj)
        norms = block.model_type == "qwen3"
        self.q_norm, self.k_norm = (Norm(size, block.rms_norm_eps) if norms else nn.Identity() for _ in range(2))


class Layer(nn.Module):
    """The parts of the one decoder layer."""

    def __init__(self, block: Any):
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            Norm(block.hidden_size, block.rms_norm_eps) for _ in range(3)
        )
        self.self_attn = Attention(block)
        self.mlp = (Qwen3MLP if block.model_type == "qwen3" else LlamaMLP)(block)
        self.gate_up = Joined(self.mlp.gate_proj, self.mlp.up_proj)


class FeatureHead(nn.Module):
    """The weights, and the steps of a pass: `fuse`, `project`, attention by the caller, `finish`, `logits`."""

    def __init__(self, config: HeadConfig):
        super().__init__()
        block, n_layers = config.block, len(config.layers)
        self.config = config
        self.embed_tokens = nn.Embedding(block.vocab_size, block.hidden_size)
        self.input_norm = Norm(n_layers * config.target_hidden, block.rms_norm_eps) if config.norm_before_fc else None
        each = [Norm(config.target_hidden, block.rms_norm_eps) for _ in config.layers]
        self.fc_norm = nn.ModuleList(each) if config.fc_norm else None
        self.fc = nn.Linear(n_layers * config.target_hidden, block.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(block)])
        self.norm = Norm(block.hidden_size, block.rms_norm_eps)
        self.lm_head = nn.Linear(block.hidden_size, config.draft_vocab, bias=False)

    @property
    def layer(self) -> Layer:
        """The one decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        return layer

    def freeze(self) -> "FeatureHead":
        """Ready to decode: the weights will not change any more."""
        self.layer.self_attn.qkv.freeze()
        self.layer.gate_up.freeze()
        return self.eval()

    def fuse(self, hidden: Tensor) -> Tensor:
        """(batch, n, layers * target_hidden) of the target -> states (batch, n, hidden)"""
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, hidden.chunk(len(self.fc_norm), dim=-1), strict=True)
            hidden = torch.cat([norm(part) for norm, part in parts], dim=-1)
        return self.fc(hidden)

    def project(
        self, states: Tensor, tokens: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States (batch, n, hidden) and the token after each (batch, n).  -> the residual stream, the same shape;
        queries, keys, values (batch, heads, n, head size)

        rotation: cosines and sines of the states' positions, (1, n, head size) each.
        """
        layer, attention = self.layer, self.layer.self_attn
        normed = layer.hidden_norm(states)
        x = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], dim=-1)  # (batch, n, 2 * hidden)
        n, n_keys = self.config.block.num_attention_heads, self.config.block.num_key_value_heads
        heads = attention.qkv(x).unflatten(-1, (-1, self.config.block.head_dim)).transpose(1, 2)
        queries_keys, values = heads.split([n + n_keys, n_keys], dim=1)
        if isinstance(attention.q_norm, Norm):
            queries, keys = queries_keys.split([n, n_keys], dim=1)
            queries_keys = torch.cat([attention.q_norm(queries), attention.k_norm(keys)], dim=1)
        cos, sin = (part.to(x.dtype)[:, None] for part in rotation)
        queries_keys = queries_keys * cos + rotate_half(queries_keys) * sin
        queries, keys = queries_keys.split([n, n_keys], dim=1)
        residual = normed if self.config.norm_before_residual else states
        return residual, queries, keys, values

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """(batch, n, hidden) and the attention's output (batch, heads, n, head size) -> states one position on"""
        layer = self.layer
        x = residual + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        gate, up = layer.gate_up(layer.post_attention_layernorm(x)).chunk(2, dim=-1)
        x = x + layer.mlp.down_proj(layer.mlp.act_fn(gate) * up)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, states: Tensor) -> Tensor:
        """What `finish` gives, (batch, n, hidden) -> (batch, n, draft_vocab)"""
        return self.lm_head(states if self.config.norm_output else self.norm(states))


def rotations(block: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) positions -> their cosines and sines, (1, n, head size) each, float32"""
    rotary = LlamaRotaryEmbedding(block).to(positions.device)
    return rotary(torch.empty(0, device=positions.device), positions[None])
