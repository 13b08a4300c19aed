"""What a model is made of, read from the library's modules: what pass.c has to know of it.

Families differ in a few parts, and most share names for them. A family that is not in `FAMILIES` runs eagerly. Whether
the parts were read rightly is not believed: the logits are held against the library's own (models/engine_choice.py).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from speclab.engines.eager import decoder_layers
from speclab.models.family import NoFastBackend

LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2")
FAMILIES = (*LIKE_LLAMA, "gpt2", "gpt_neox")
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2}
ATTENTION = ("self_attn", "attn", "attention")
QKV = ("qkv_proj", "c_attn", "query_key_value")
MATRICES = {
    "out": ("o_proj", "c_proj", "dense"),
    "up": ("gate_up_proj", "c_fc", "dense_h_to_4h"),
    "down": ("down_proj", "c_proj", "dense_4h_to_h"),
}
Parts = dict[str, Any]
"""A model by the names of pass.c: numbers, tensors, matrices with a bias and norms with a shift (pairs, of which the
second may be None). What is not there, or None, is 0 or missing. `layer` is a list with the same of each layer."""


def linear(*modules: Any) -> tuple[Tensor, Tensor | None]:
    """Return the rows of several layers below each other. The library's Conv1D has its matrix turned."""
    weights = [m.weight.T if type(m).__name__ == "Conv1D" else m.weight for m in modules]
    whole = weights[0] if len(weights) == 1 else torch.cat(weights)
    if all(m.bias is None for m in modules):
        return whole, None
    pairs = zip(weights, modules, strict=True)
    return whole, torch.cat([weight.new_zeros(len(weight)) if m.bias is None else m.bias for weight, m in pairs])


def _first(module: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


def rotary_of(rotary: Any, names: list[str]) -> Parts:
    """Read tables of the library's rotary embedding, which has several where its layers differ: their names, or ""."""
    before = [f"{name}_" if hasattr(rotary, f"{name}_inv_freq") else "" for name in names]
    return {
        "frequencies": torch.stack([getattr(rotary, f"{name}inv_freq").float() for name in before]),
        "factors": torch.tensor([float(getattr(rotary, f"{name}attention_scaling")) for name in before]),
    }


@torch.no_grad()
def parts_of(model: PreTrainedModel) -> Parts:
    """Read the parts of a model. Raises NoFastBackend for a family, or an activation, that pass.c does not know."""
    config, kind = model.config, model.config.model_type
    if kind not in FAMILIES:
        raise NoFastBackend(f"the engine c does not know {kind}")
    name = _first(config, "hidden_activation", "hidden_act", "activation_function")
    if name not in ACTIVATIONS:
        raise NoFastBackend(f"the engine c does not know the activation {name}")
    base, layers, more = model.base_model, decoder_layers(model), float(kind.startswith("gemma"))
    table, first, heads = model.get_input_embeddings(), _first(layers[0], *ATTENTION), config.num_attention_heads
    size = _first(first, "head_dim", "head_size") or config.hidden_size // heads
    last = _first(base, "norm", "ln_f", "final_layer_norm")
    query_norm, gated = getattr(first, "q_norm", None), kind in LIKE_LLAMA
    kinds = getattr(config, "layer_types", None) or [""] * len(layers)
    names, rotary = sorted(set(kinds)), getattr(base, "rotary_emb", None)
    caches = DynamicCache(config=config).layers or [None] * len(layers)

    def norm(module: Any) -> tuple | None:
        return None if module is None else (module.weight + more, getattr(module, "bias", None))

    def layer_of(i: int, layer: Any) -> Parts:
        attention, mlp = _first(layer, *ATTENTION), layer.mlp
        fused = _first(attention, *QKV)
        qkv = linear(fused) if fused is not None else linear(attention.q_proj, attention.k_proj, attention.v_proj)
        if kind == "gpt_neox":  # query, key and value of each head in turn: all queries come first
            qkv = tuple(p if p is None else p.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2) for p in qkv)
        both = (mlp.gate_proj, mlp.up_proj) if hasattr(mlp, "gate_proj") else (_first(mlp, *MATRICES["up"]),)
        middle = norm(_first(layer, "post_attention_layernorm", "ln_2"))
        behind = hasattr(layer, "post_feedforward_layernorm")  # norms behind attention and MLP
        return {
            "qkv": qkv,
            "out": linear(_first(attention, *MATRICES["out"])),
            "up": linear(*both),
            "down": linear(_first(mlp, *MATRICES["down"])),
            "before_attention": norm(_first(layer, "input_layernorm", "ln_1")),
            "after_attention": middle if behind else None,
            "before_mlp": norm(getattr(layer, "pre_feedforward_layernorm", None)) if behind else middle,
            "after_mlp": norm(getattr(layer, "post_feedforward_layernorm", None)),
            "queries": norm(getattr(attention, "q_norm", None)),
            "keys": norm(getattr(attention, "k_norm", None)),
            "rotary": 1 + names.index(kinds[i]) if rotary is not None and getattr(attention, "use_rope", True) else 0,
            "window": getattr(caches[min(i, len(caches) - 1)], "sliding_window", None),
        }

    return {
        "layer": [layer_of(i, layer) for i, layer in enumerate(layers)],
        "embeddings": table.weight,
        "head": linear(model.get_output_embeddings()),
        "last": norm(last),
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_size": size,
        "epsilon": _first(last, "variance_epsilon", "eps"),
        "activation": ACTIVATIONS[name],
        "attention_scale": _first(first, "scaling") or size**-0.5,
        "places": base.wpe.weight if kind == "gpt2" else None,
        "centred": isinstance(last, nn.LayerNorm),
        "whole_norms": query_norm is not None and query_norm.weight.numel() != size,
        "gated": gated,
        "parallel": getattr(config, "use_parallel_residual", False),
        "attention_cap": getattr(first, "attn_logit_softcapping", None),
        "logit_cap": getattr(config, "final_logit_softcapping", None),
        "embedding_scale": float(getattr(table, "embed_scale", 1.0)),
        **(rotary_of(rotary, names) if rotary is not None else {}),
    }
