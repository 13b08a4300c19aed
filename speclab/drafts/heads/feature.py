"""A draft of one decoder layer that reads the target's hidden states (EAGLE-3, arXiv 2503.01840).

At position t it gets what the target computed there (the outputs of a low, a middle and a high layer, fused into one
state) and the token after it, t + 1, and predicts token t + 2. Deeper positions, for which the target has computed
nothing yet, get the head's own output at the position before in the place of the fused state.

Names of modules and options are those of the `speculators` checkpoint format (eagle3), in which heads are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from speclab.drafts.heads.parts import DecoderLayer, Norm, Rotation
from speclab.drafts.heads.rollout import rollout
from speclab.engines.parts import ACTIVATIONS, Parts, layer_parts, pair, rotary_of


@dataclass(frozen=True)
class HeadConfig:
    """The settings of a head."""

    block: Any  # LlamaConfig or Qwen3Config: the sizes of its decoder layer, its vocabulary, rotary positions
    layers: tuple[int, ...]  # decoder layers of the target whose outputs it reads, from 0
    target_hidden: int  # width of the target's hidden states
    draft_vocab: int  # ids that it can propose
    norm_before_fc: bool = False  # a norm over what it reads, of all layers together
    fc_norm: bool = False  # and of each
    norm_before_residual: bool = False  # the residual stream starts after the norm of the state
    norm_output: bool = False  # what it feeds back went through its last norm


class Layer(DecoderLayer):
    """The one decoder layer; its attention reads the token's embedding and the state, in this order."""

    def __init__(self, block: Any):
        super().__init__(block, 2 * block.hidden_size)
        self.hidden_norm = Norm(block.hidden_size, block.rms_norm_eps)


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
        return cast(Layer, self.layers[0])

    def fuse(self, hidden: Tensor) -> Tensor:
        """Fuse the target's outputs (batch, n, layers * target_hidden) into states (batch, n, hidden)."""
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, hidden.chunk(len(self.fc_norm), dim=-1), strict=True)
            hidden = torch.cat([norm(part) for norm, part in parts], dim=-1)
        return self.fc(hidden)

    def project(self, states: Tensor, tokens: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project states (batch, n, hidden) and the token after each, (batch, n).  -> the residual stream, the same
        shape; queries, keys, values (batch, heads, n, head size), turned to the states' positions"""
        layer, attention = self.layer, self.layer.self_attn
        normed = layer.hidden_norm(states)
        x = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], dim=-1)  # (batch, n, 2 * hidden)
        residual = normed if self.config.norm_before_residual else states
        return residual, *attention.heads(x, rotation)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the states one position on, (batch, n, hidden). attended: (batch, heads, n, head size)"""
        x = self.layer.finish(residual, attended)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits for the states that `finish` gives, (batch, n, hidden) -> (batch, n, draft_vocab)."""
        return self.lm_head(states if self.config.norm_output else self.norm(states))

    def step(
        self, states: Tensor, tokens: Tensor, rotation: Rotation, length: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run a pass: states (1, m, hidden) from position `length` on, the token after each, (1, m), and the rotations
        of their positions.  -> what comes out at the last one, (1, 1, hidden), and its logits, (1, draft_vocab)

        keys, values: (rows, key heads, head size) each; the pass writes m rows from `length` on, and reads all up to
        them.
        """
        end = length + tokens.shape[1]
        residual, queries, *written = self.project(states, tokens, rotation)
        for rows, of_states in zip((keys, values), written, strict=True):
            rows[length:end] = of_states[0].transpose(0, 1)
        all_keys, all_values = (rows[:end].transpose(0, 1)[None] for rows in (keys, values))
        shared = queries.shape[1] != keys.shape[1]
        attended = scaled_dot_product_attention(queries[:, :, -1:], all_keys, all_values, enable_gqa=shared)
        output = self.finish(residual[:, -1:], attended)
        return output, self.logits(output)[:, 0]

    def chains(self, hidden: Tensor, tokens: Tensor, depth: int) -> Iterator[Tensor]:
        """Return the logits by depth j, at most `depth` of them: (batch, n - 1 - depth, draft vocabulary). Row t
        predicts token t + 2 + j in a round whose last committed token is t + 1.

        hidden: (batch, n, layers * target_hidden). tokens: (batch, n), a known text.
        """
        yield from (logits for _, logits in rollout(self, hidden, tokens, depth))


def parts_of_head(head: FeatureHead) -> Parts:
    """Return what the engine `c` has to know of a head; fusing what the target gave is not among it."""
    layer, block = head.layer, head.config.block
    attention = layer.self_attn
    return {
        "layer": [layer_parts(layer) | {"rotary": 1}],
        "embeddings": head.embed_tokens.weight,
        "head": pair(head.lm_head),
        "last": pair(head.norm),
        "heads": attention.n_queries,
        "kv_heads": attention.n_keys,
        "head_size": attention.head_size,
        "epsilon": block.rms_norm_eps,
        "activation": ACTIVATIONS[block.hidden_act],
        "attention_scale": attention.head_size**-0.5,
        "states": pair(layer.hidden_norm),
        "beside": True,
        "start_normed": head.config.norm_before_residual,
        **rotary_of(LlamaRotaryEmbedding(block), [""]),
    }
