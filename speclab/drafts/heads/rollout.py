"""Finds out what a head would propose after every position of a known text: teacher forcing, one pass for each depth or
for all.

The chains read the text's own tokens, so what a chain says at depth j is what the head says there where all its tokens
before were accepted. The head is trained on this, its acceptance is scored and forecast from it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from speclab.drafts.heads.parts import rotations
from speclab.engines.eager import layer_outputs


@torch.no_grad()
def target_pass(target: PreTrainedModel, rows: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Run the target over (batch, n) ids -> the layers' outputs side by side (batch, n, layers * hidden), logits
    (batch, n, vocab)."""
    with layer_outputs(target, layers) as hidden:
        logits = target(input_ids=rows, use_cache=False).logits
    return torch.cat([hidden[layer] for layer in layers], dim=-1), logits


def rollout(
    head: Any, hidden: Tensor, tokens: Tensor, depth: int, starts: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return the chains from every position: element j holds the positions t of its rows, and logits of token t + 2 +
    j.

    head: a FeatureHead. hidden: (batch, n, layers * target_hidden). tokens: (batch, n); a chain reads the text's own
    tokens, not what the head would have drawn. starts: (batch, chains) positions from which chains go (default: all
    that have a token for every depth); the logits are those of the chains alone.
    """
    n, n_rows = tokens.shape[1] - 1 - depth, tokens.shape[0]  # positions that have a token for every depth
    states, block = head.fuse(hidden[:, :n]), head.config.block
    cos, sin = (part[0] for part in rotations(block, torch.arange(n + depth, device=tokens.device)))
    residual, queries, *pair = head.project(states, tokens[:, 1 : n + 1], (cos[None, :n], sin[None, :n]))
    first_keys, first_values = (_for_queries(part, queries) for part in pair)
    attended = scaled_dot_product_attention(queries, first_keys, first_values, is_causal=True)
    states = head.finish(residual, attended)
    text = torch.arange(n, device=tokens.device)
    if starts is None:
        positions = text.expand(n_rows, n)
    else:
        positions = starts
        states = states.gather(1, starts[..., None].expand(-1, -1, states.shape[-1]))
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
