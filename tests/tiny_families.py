"""A tiny random-weight model of a family of the installed transformers.

A configuration class names its sizes; most families use the same few names. `tiny` takes the class's own defaults,
makes everything that is named here small, and keeps one layer of every kind that the family mixes.
"""

import dataclasses

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SPREAD = 0.15  # standard deviation of the weights of encoder-decoders
VOCAB = 64
CONTEXT = 512
# The value that a field with one of these names gets.
_SIZES = {
    "vocab_size decoder_vocab_size": VOCAB,
    "max_position_embeddings n_positions context_length": CONTEXT,
    "hidden_size n_embd d_model lru_width attention_hidden_size": 32,
    "intermediate_size intermediate_size_mlp n_inner ffn_hidden_size decoder_ffn_dim encoder_ffn_dim "
    "moe_intermediate_size shared_expert_intermediate_size": 48,
    "num_attention_heads n_head num_heads decoder_attention_heads encoder_attention_heads n_mamba_heads "
    "linear_num_value_heads num_experts n_routed_experts num_local_experts": 4,
    "num_key_value_heads num_kv_heads num_experts_per_tok encoder_layers linear_num_key_heads type_vocab_size": 2,
    "n_group topk_group n_shared_experts first_k_dense_replace num_nextn_predict_layers num_mtp_layers mamba_n_groups "
    "n_groups": 1,
    "head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim index_head_dim linear_key_head_dim linear_value_head_dim "
    "query_pre_attn_scalar mamba_d_state mamba_d_head mamba_n_heads state_size time_step_rank mamba_dt_rank": 8,
    "kv_lora_rank q_lora_rank o_lora_rank mamba_chunk_size chunk_size index_topk": 16,
    "index_n_heads": 16,  # with few heads many scores are exactly 0, and which of them are read is left open
    # Shorter than the texts, so that tokens leave the window.
    "sliding_window attention_window_size attention_chunk_size": 8,
    # Much larger than usual, so that the text depends on what was said before.
    "initializer_range init_std initializer_factor": 0.3,
    "bos_token_id eos_token_id pad_token_id decoder_start_token_id": 0,
    "tie_word_embeddings use_mamba_kernels": False,  # tied rows make a random model repeat its last token
}
_TINY = {name: size for names, size in _SIZES.items() for name in names.split()}
_LAYERS = ("num_hidden_layers", "n_layer", "decoder_layers")
_EVEN_IF_NONE = ("head_dim", "num_key_value_heads")  # some families cannot do without, though the default is None
# Fields that need other values, by the type of the configuration they stand in.
_OVERRIDES: dict[str, dict] = {
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    "mamba2": {"num_heads": 8},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny(family: str, seed: int = 0) -> PreTrainedModel:
    """A float32 model of the family in evaluation mode; its weights depend on `seed` alone."""
    config = tiny_config(CONFIG_MAPPING[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                nn.init.normal_(module.weight[module.padding_idx])  # zeros there would make all experts equally good
    return model


def drawn(model: PreTrainedModel, spread: float) -> PreTrainedModel:
    """The model with new weights in evaluation mode: normal numbers, those of linear layers with this deviation."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=spread)
    return model.eval()


def tiny_config(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    """The default configuration, in which every field with a known name is made tiny."""
    default = config_class()
    names = [field.name for field in dataclasses.fields(config_class)]
    values = {name: vars(default).get(default.attribute_map.get(name, name)) for name in names}
    fields = tiny_layers(values)
    for name, value in values.items():
        if isinstance(value, PreTrainedConfig):
            fields[name] = tiny_config(type(value))
        elif name in _TINY and (value is not None or name in _EVEN_IF_NONE):
            fields[name] = _TINY[name]
    if values.get("num_key_value_heads") == values.get("num_attention_heads", -1):
        fields["num_key_value_heads"] = fields["num_attention_heads"]  # some families demand it
    return config_class(**fields | _OVERRIDES.get(config_class.model_type, {}))


def tiny_layers(values: dict) -> dict:
    """One layer of every kind, at least two layers, in the order of the family."""
    name = next((name for name in _LAYERS if isinstance(values.get(name), int)), None)
    if name is None:
        return {}
    lists = {key: list(v) for key, v in values.items() if isinstance(v, (list, tuple)) and len(v) == values[name]}
    first: dict[tuple, int] = {}  # the first layer of every kind
    for i in range(values[name]):
        first.setdefault(tuple(v[i] for v in lists.values() if isinstance(v[i], str)), i)
    chosen = (list(first.values()) * 2)[: max(2, len(first))]
    return {name: len(chosen)} | {key: [v[i] for i in chosen] for key, v in lists.items()}
