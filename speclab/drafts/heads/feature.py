"""A draft of one decoder layer that reads the target's hidden states (EAGLE-3, arXiv 2503.01840).

At position t it gets what the target computed there (the outputs of a low, a middle and a high layer, fused into one
state) and the token after it, t + 1, and predicts token t + 2. Deeper positions, for which the target has computed
nothing yet, get the head's own output at the position before in the place of the fused state.

Names of modules and options are those of the `speculators` checkpoint format (eagle3), in which heads are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from speclab.drafts.heads.parts import DecoderLayer, Norm, Rotation, appended, rotations
from speclab.engines.eager import layer_outputs
from speclab.engines.parts import Parts, activation_of, layer_parts, pair, rotary_of


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
        self.layers: Any = nn.ModuleList([Layer(block)])
        self.norm = Norm(block.hidden_size, block.rms_norm_eps)
        self.lm_head = nn.Linear(block.hidden_size, config.draft_vocab, bias=False)

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
        layer = self.layers[0]
        normed = layer.hidden_norm(states)
        x = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], dim=-1)  # (batch, n, 2 * hidden)
        residual = normed if self.config.norm_before_residual else states
        return residual, *layer.self_attn.heads(x, rotation)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the states one position on, (batch, n, hidden). attended: (batch, heads, n, head size)"""
        x = self.layers[0].finish(residual, attended)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits for the states that `finish` gives, (batch, n, hidden) -> (batch, n, draft_vocab)."""
        return self.lm_head(states if self.config.norm_output else self.norm(states))

    def step(
        self, states: Tensor, tokens: Tensor, rotation: Rotation, length: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run a pass: states (1, m, hidden) from position `length` on, the token after each, (1, m), and the rotations
        of their positions.  -> what comes out at the last one, (1, 1, hidden), and its logits, (1, draft_vocab)

        keys, values: (rows, key heads, head size) each; m rows from `length` on are written, and all up to them read.
        """
        residual, queries, *own = self.project(states, tokens, rotation)
        all_keys, all_values = appended((keys, values), own, length)
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


@torch.no_grad()
def target_pass(target: PreTrainedModel, rows: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Run the target: (batch, n) ids -> layers' outputs side by side (batch, n, layers * hidden), (batch, n, vocab)."""
    with layer_outputs(target, layers) as hidden:
        logits = target(input_ids=rows, use_cache=False).logits
    return torch.cat([hidden[layer] for layer in layers], dim=-1), logits


def rollout(
    head: FeatureHead, hidden: Tensor, tokens: Tensor, depth: int, starts: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Find out what a head would propose after every position of a known text (teacher forcing): it is trained on this,
    and its acceptance is forecast from it.  -> by depth j the positions t of the chains, and logits of token t + 2 + j

    hidden: (batch, n, layers * target_hidden). tokens: (batch, n); a chain reads the text's own tokens, not what the
    head would have drawn. starts: (batch, chains) positions where chains begin; None: all with a token for each depth.
    """
    n, n_rows = tokens.shape[1] - 1 - depth, tokens.shape[0]  # positions that have a token for every depth
    states, block = head.fuse(hidden[:, :n]), head.config.block
    cos, sin = (part[0] for part in rotations(block, torch.arange(n + depth, device=tokens.device)))
    residual, queries, *pair = head.project(states, tokens[:, 1 : n + 1], (cos[None, :n], sin[None, :n]))
    first_keys, first_values = (_for_queries(part, queries) for part in pair)
    attended = scaled_dot_product_attention(queries, first_keys, first_values, is_causal=True)
    states = head.finish(residual, attended)
    text = torch.arange(n, device=tokens.device)
    positions = text.expand(n_rows, n) if starts is None else starts
    states = states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))
    outputs = [(positions, head.logits(states))]
    visible = (text <= positions[..., None]).unsqueeze(1)  # (batch, 1, chains, n) what a chain sees of the text
    mask = torch.zeros_like(visible, dtype=queries.dtype).masked_fill(~visible, float("-inf"))
    precise = torch.promote_types(queries.dtype, torch.float32)
    keys, values = [], []  # of the chains' own positions
    for step in range(1, depth):
        rotation = cos[positions + step], sin[positions + step]
        residual, queries, *pair = head.project(states, tokens.gather(1, positions + step + 1), rotation)
        key, value = (_for_queries(part, queries) for part in pair)
        keys.append(key)
        values.append(value)
        scale = block.head_dim**-0.5
        text_scores = queries @ first_keys.transpose(-1, -2) * scale + mask  # (batch, heads, chains, n)
        chain_scores = [(queries * key).sum(-1, keepdim=True) * scale for key in keys]
        weights = torch.cat([text_scores, *chain_scores], dim=-1).softmax(-1, dtype=precise).to(value.dtype)
        attended = weights[..., :n] @ first_values
        for i, value in enumerate(values):
            attended = attended + weights[..., n + i : n + i + 1] * value
        states = head.finish(residual, attended)
        outputs.append((positions, head.logits(states)))
    return outputs


def _for_queries(part: Tensor, queries: Tensor) -> Tensor:
    """Repeat keys or values, (batch, key heads, n, size), for each query head."""
    return part.repeat_interleave(queries.shape[1] // part.shape[1], dim=1)


def parts_of_head(head: FeatureHead) -> Parts:
    """Return what the engine `c` has to know of a head; fusing what the target gave is not among it. Raises
    NoFastBackend for an activation that pass.c does not know."""
    layer, block = head.layers[0], head.config.block
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
        "activation": activation_of(block.hidden_act),
        "attention_scale": attention.head_size**-0.5,
        "states": pair(layer.hidden_norm),
        "beside": True,
        "start_normed": head.config.norm_before_residual,
        **rotary_of(LlamaRotaryEmbedding(block), [""]),
    }
