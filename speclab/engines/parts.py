"""What a model is made of, read from the library's modules: what pass.c has to know of it.

Families differ in a few parts, and most share names for them. A family that is not in `FAMILIES` runs eagerly. What is
read here may be wrong, so the logits are compared with the library's own (models/setup.py).
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from speclab.engines.eager import decoder_layers
from speclab.models.family import NoFastBackend, cached_layers

LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2")
FAMILIES = (*LIKE_LLAMA, "gpt2", "gpt_neox")
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2}
# By the names of pass.c, where families have the parts of a layer; those with a space between are one below another.
LAYER = {
    "before_attention": ("input_layernorm", "ln_1"),
    "qkv": ("self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.qkv_proj", "attn.c_attn"),
    "queries": ("self_attn.q_norm",),
    "keys": ("self_attn.k_norm",),
    "out": ("self_attn.o_proj", "attn.c_proj", "attention.dense"),
    "after_attention": ("post_attention_layernorm",),
    "before_mlp": ("pre_feedforward_layernorm", "ln_2"),
    "gate": ("mlp.gate_proj",),
    "up": ("mlp.up_proj", "mlp.c_fc", "mlp.dense_h_to_4h"),
    "down": ("mlp.down_proj", "mlp.c_proj", "mlp.dense_4h_to_h"),
    "after_mlp": ("post_feedforward_layernorm",),
}
Pair = tuple[Tensor, Tensor | None]  # a matrix and its bias, or the gains and shifts of a norm
Parts = dict[str, Any]
"""A model by the names of pass.c: numbers, tensors, pairs; `layer` lists its layers. What is None is 0 or missing."""


def find(module: Any, *paths: str) -> Any:
    """Return the first of these parts, or parts of parts, that a module has; None where it has none."""
    found = (functools.reduce(lambda x, name: getattr(x, name, None), path.split("."), module) for path in paths)
    return next((part for part in found if part is not None), None)


def pair(*modules: Any) -> Pair:
    """Return weight and bias of several modules below each other. The library's Conv1D has its matrix turned."""
    weights = [m.weight.T if type(m).__name__ == "Conv1D" else m.weight for m in modules]
    biases = [getattr(m, "bias", None) for m in modules]
    whole = weights[0] if len(weights) == 1 else torch.cat(weights)
    if biases.count(None) == len(biases):
        return whole, None
    return whole, torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])


def layer_parts(layer: Any, more: float = 0.0) -> Parts:
    """Read the parts of a layer. more: what its family adds to the gains of norms."""
    parts: Parts = {}
    for name, places in LAYER.items():
        found = ([find(layer, path) for path in place.split()] for place in places)
        weighed = (modules for modules in found if all(find(m, "weight") is not None for m in modules))
        parts[name] = next((pair(*modules) for modules in weighed), None)
        if parts[name] and parts[name][0].ndim == 1:
            parts[name] = parts[name][0] + more, parts[name][1]
    if not parts["after_mlp"]:  # the norm that is called post_attention_layernorm is then the one before the MLP
        parts |= {"before_mlp": parts["before_mlp"] or parts["after_attention"], "after_attention": None}
    if (both := find(layer, "mlp.gate_up_proj.weight")) is not None:  # Phi-3
        parts["gate"], parts["up"] = ((half, None) for half in both.chunk(2))
    if (fused := find(layer, "attention.query_key_value")) is not None:  # GPT-NeoX: head by head its query, key, value
        each = (-1, 3, layer.attention.head_size)
        turned = (p if p is None else p.unflatten(0, each).transpose(0, 1).flatten(0, 2) for p in pair(fused))
        parts["qkv"] = tuple(turned)
    return parts


def rotary_of(rotary: Any, names: list[str]) -> Parts:
    """Read tables of the library's rotary embedding, which has several where its layers differ: their names, or ""."""
    before = [f"{name}_" if hasattr(rotary, f"{name}_inv_freq") else "" for name in names]
    frequencies = torch.stack([getattr(rotary, f"{name}inv_freq").float() for name in before])
    factors = torch.tensor([float(getattr(rotary, f"{name}attention_scaling")) for name in before])
    sizes = {"rotaries": len(names), "turned": 2 * frequencies.shape[1]}
    return {"frequencies": frequencies, "factors": factors, **sizes}


def activation_of(name: str) -> int:
    """Return its number in pass.c. Raises NoFastBackend for one that it does not know."""
    if name not in ACTIVATIONS:
        raise NoFastBackend(f"the engine c does not know the activation {name}")
    return ACTIVATIONS[name]


@torch.no_grad()
def parts_of(model: PreTrainedModel) -> Parts:
    """Read the parts of a model. Raises NoFastBackend for a family, or an activation, that pass.c does not know."""
    config, base, family = model.config, model.base_model, model.config.model_type
    if family not in FAMILIES:
        raise NoFastBackend(f"the engine c does not know {family}")
    activation = activation_of(find(config, "hidden_activation", "hidden_act", "activation_function"))
    layers, table, rotary = decoder_layers(model), model.get_input_embeddings(), getattr(base, "rotary_emb", None)
    attention, last = find(layers[0], "self_attn", "attn", "attention"), find(base, "norm", "ln_f", "final_layer_norm")
    heads, size = config.num_attention_heads, find(attention, "head_dim", "head_size")
    query_norm, more = find(attention, "q_norm.weight"), float(family.startswith("gemma"))
    kinds = getattr(config, "layer_types", None) or [""] * len(layers)
    names = sorted(set(kinds))
    parts = rotary_of(rotary, names) if rotary is not None else {}
    parts |= {
        "embeddings": table.weight,
        "head": pair(model.get_output_embeddings()),
        "last": (last.weight + more, getattr(last, "bias", None)),
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_size": size,
        "epsilon": find(last, "variance_epsilon", "eps"),
        "activation": activation,
        "attention_scale": find(attention, "scaling") or size**-0.5,
        "places": find(base, "wpe.weight"),
        "centred": isinstance(last, nn.LayerNorm),
        "whole_norms": query_norm is not None and len(query_norm) != size,
        "parallel": getattr(config, "use_parallel_residual", False),
        "attention_cap": find(attention, "attn_logit_softcapping"),
        "logit_cap": find(config, "final_logit_softcapping"),
        "embedding_scale": float(getattr(table, "embed_scale", 1.0)),
        "layer": [layer_parts(layer, more) for layer in layers],
    }
    for of_layer, layer, kind, cache in zip(parts["layer"], layers, kinds, cached_layers(model), strict=True):
        turned = rotary is not None and find(layer, "self_attn.use_rope") != 0
        of_layer["rotary"] = 1 + names.index(kind) if turned else 0
        of_layer["window"] = getattr(cache, "sliding_window", None)
    return parts
