"""A head for a padded target (`lab:SIZE`): as it was trained, or as wide as the target, which real heads are.

speclab/models/padding.py says how the target is padded. Its first dimensions hold what the lab's target computes and
the others are zero, so a head as it was trained only has to read those first ones. A head that is padded too proposes
the same tokens at the price of a head of that width, by the same rules as the target: what is added reads random
numbers and is multiplied with zeros, and norms are scaled.
"""

import copy

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.models.padding import SPREAD, fill_norm


def read_wider(weight: Tensor, n_layers: int, width: int) -> Tensor:
    """`fc` for wider states: (hidden, layers * own width) -> (hidden, layers * width).

    The columns for the added dimensions are 0, as those of the states are.
    """
    parts = weight.unflatten(1, (n_layers, -1))  # (hidden, layers, own width)
    return torch.nn.functional.pad(parts, (0, width - parts.shape[2])).flatten(1)


def can_be_padded(config: HeadConfig) -> bool:
    """Whether it is a head like the lab's own."""
    return not (config.norm_before_fc or config.fc_norm) and config.block.model_type == "llama"


@torch.no_grad()
def padded_head(small: FeatureHead, target: PreTrainedConfig) -> FeatureHead:
    """`small`, whose target was padded to the config `target`, as wide as that.

    small: reads states of its own width; a Llama layer without biases and without further norms.
    """
    config, block = small.config, copy.deepcopy(small.config.block)
    d, wide = block.hidden_size, target.hidden_size
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
        setattr(block, key, getattr(target, key))
    block.intermediate_size = max(block.intermediate_size, target.intermediate_size)
    block.rms_norm_eps = block.rms_norm_eps * d / wide
    weights = small.fc.weight
    head = FeatureHead(HeadConfig(block, config.layers, wide, config.draft_vocab)).to(weights.device, weights.dtype)
    generator = torch.Generator(weights.device).manual_seed(0)
    for matrix in (weight for weight in head.parameters() if weight.ndim == 2):
        matrix.normal_(0.0, SPREAD, generator=generator)
    layer, own = head.layer, small.layer
    # Here the stream is written: nothing reaches the added dimensions.
    head.embed_tokens.weight.zero_()[:, :d].copy_(small.embed_tokens.weight)
    head.fc.weight.zero_()[:d].copy_(read_wider(small.fc.weight, len(config.layers), wide))
    for into, lab in ((layer.mlp.gate_proj, own.mlp.gate_proj), (layer.mlp.up_proj, own.mlp.up_proj)):
        into.weight[: lab.out_features, :d].copy_(lab.weight)
    layer.mlp.down_proj.weight.zero_()[:d, : own.mlp.down_proj.in_features].copy_(own.mlp.down_proj.weight)
    head.lm_head.weight[:, :d].copy_(small.lm_head.weight)

    heads, size, n_kv = small.config.block.num_attention_heads, block.head_dim, small.config.block.num_key_value_heads
    kv_heads, n_group = block.num_key_value_heads, heads // n_kv
    # Query head i reads key-value head i // group; the token's half of the input comes first, then the state's.
    q = layer.self_attn.q_proj.weight.view(kv_heads, -1, size, 2, wide)
    q[:n_kv, :n_group, ..., :d].copy_(own.self_attn.q_proj.weight.view(n_kv, n_group, size, 2, d))
    for into, lab in ((layer.self_attn.k_proj, own.self_attn.k_proj), (layer.self_attn.v_proj, own.self_attn.v_proj)):
        into.weight.view(kv_heads, size, 2, wide)[:n_kv, ..., :d].copy_(lab.weight.view(n_kv, size, 2, d))
    o = layer.self_attn.o_proj.weight.zero_().view(wide, kv_heads, -1, size)
    o[:d, :n_kv, :n_group].copy_(own.self_attn.o_proj.weight.view(d, n_kv, n_group, size))
    for norm, trained in (
        (layer.input_layernorm, own.input_layernorm),
        (layer.hidden_norm, own.hidden_norm),
        (layer.post_attention_layernorm, own.post_attention_layernorm),
        (head.norm, small.norm),
    ):
        fill_norm(norm.weight, trained.weight)
    return head.eval().requires_grad_(False)
