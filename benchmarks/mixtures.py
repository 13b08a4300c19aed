"""A lab model whose MLPs are mixtures of experts, with the text it has without them. No download.

Every MLP becomes E copies of itself under a random router that sends each token to K of them, with weights that sum to
1: whatever it chooses, the layer says what the one MLP says. A pass over one token reads K copies. A pass over m tokens
reads the union of what they chose, up to E copies, and that is what verification costs more here than with one MLP.

K copies do the work of K MLPs for one result, so a pass over one token costs more than that of lab:SIZE, too. Compare
its passes over several tokens with its own pass over one.
"""

import copy
from typing import NamedTuple

import torch
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from speclab.models.padded.padding import check_memory

# Entries of the config that stay.
SAME = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
SAME += ["num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_parameters"]
SAME += ["tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"]


class Experts(NamedTuple):
    """Copies of each MLP, and how many of them a token uses."""

    n: int
    n_used: int


def count_added(model: PreTrainedModel, experts: Experts) -> int:
    """Return the number of added parameters: further copies of all MLPs, and the routers."""
    config = model.config
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_hidden_layers * ((experts.n - 1) * mlp + experts.n * config.hidden_size)


@torch.no_grad()
def with_experts(model: PreTrainedModel, experts: Experts, seed: int = 0) -> PreTrainedModel:
    """Return the same model with mixtures of experts, ready to decode. The weights move: `model` cannot be used
    afterwards.

    Raises EnvironmentProblem where memory does not hold the copies.
    """
    check_memory(f"e{experts.n}k{experts.n_used}", count_added(model, experts), model.device, model.dtype)
    config = MixtralConfig(
        **{name: getattr(model.config, name) for name in SAME},
        num_local_experts=experts.n,
        num_experts_per_tok=experts.n_used,
        sliding_window=None,
        dtype=model.dtype,
    )
    config._attn_implementation = model.config._attn_implementation
    with torch.device("meta"):
        mixed = MixtralForCausalLM(config)
    generator = torch.Generator(model.device).manual_seed(seed)
    for layer, own in zip(mixed.model.layers, model.model.layers, strict=True):
        for name in ("self_attn", "input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).load_state_dict(getattr(own, name).state_dict(), assign=True)
        gate_up = torch.cat([own.mlp.gate_proj.weight, own.mlp.up_proj.weight])
        router = torch.empty(experts.n, config.hidden_size, device=model.device, dtype=model.dtype)
        router.normal_(0.0, config.hidden_size**-0.5, generator=generator)
        copies = {
            "gate.weight": router,
            "experts.gate_up_proj": gate_up.repeat(experts.n, 1, 1),
            "experts.down_proj": own.mlp.down_proj.weight.repeat(experts.n, 1, 1),
        }
        layer.mlp.load_state_dict(copies, assign=True)
        del own.mlp  # of a large model only one layer is there twice
    for name in ("embed_tokens", "norm"):
        getattr(mixed.model, name).load_state_dict(getattr(model.model, name).state_dict(), assign=True)
    mixed.lm_head.load_state_dict(model.lm_head.state_dict(), assign=True)
    mixed.tie_weights()
    mixed.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)
    mixed.generation_config = copy.deepcopy(model.generation_config)
    return mixed.requires_grad_(False).eval()
