"""What a model is made of, read from the library's modules: what pass.c has to know of it.

Families differ in a few parts, and most share names for them. A family that is not in `FAMILIES` runs eagerly. Whether
the parts were read rightly is not believed: the logits are held against the library's own (models/engine_choice.py).
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from speclab.engines.eager import decoder_layers
from speclab.models.family import NoFastBackend

LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2")
FAMILIES = (*LIKE_LLAMA, "gpt2", "gpt_neox")
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2}
Parts = dict[str, Any]
"""A model by the names of pass.c: numbers, tensors, matrices with a bias and norms with a shift (pairs, of which the
second may be None). What is not there, or None, is 0 or missing. `layer` is a list with the same of each layer, and
with `rotary`, the number of its table of angles. `angles`: each takes (n,) positions and gives cosines and sines,
(n, turned / 2) each."""


def linear(*modules: Any) -> tuple[Tensor, Tensor | None]:
    """Return the rows of several layers below each other. The library's Conv1D has its matrix turned."""
    weights = [m.weight.T if type(m).__name__ == "Conv1D" else m.weight for m in modules]
    biases = [m.bias for m in modules]
    whole = weights[0] if len(weights) == 1 else torch.cat(weights)
    if all(bias is None for bias in biases):
        return whole, None
    zeros = (weight.new_zeros(len(weight)) for weight in weights)
    return whole, torch.cat([z if b is None else b for z, b in zip(zeros, biases, strict=True)])


def _first(module: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


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
    attentions = [_first(layer, "self_attn", "attn", "attention") for layer in layers]
    table, first = model.get_input_embeddings(), attentions[0]
    heads = config.num_attention_heads
    size = _first(first, "head_dim", "head_size") or config.hidden_size // heads
    last = _first(base, "norm", "ln_f", "final_layer_norm")
    query_norm = getattr(first, "q_norm", None)

    def norm(module: nn.Module | None) -> tuple | None:
        return None if module is None else (module.weight + more, getattr(module, "bias", None))

    rotary, angles = getattr(base, "rotary_emb", None), []
    kinds = getattr(config, "layer_types", None) or [""] * len(layers)
    by_kind = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
    named = sorted(set(kinds)) if by_kind else [""]

    def angles_of(name: str) -> Callable[[Tensor], tuple]:
        def at(positions: Tensor) -> tuple:
            pair = rotary(table.weight[:1, :1], positions[None], *([name] if by_kind else []))
            return tuple(part[0, :, : part.shape[-1] // 2].float().contiguous() for part in pair)

        return at

    if rotary is not None:
        angles = [angles_of(name) for name in named]
    caches = DynamicCache(config=config).layers or [None] * len(layers)
    made = []
    for i, (layer, attention) in enumerate(zip(layers, attentions, strict=True)):
        made.append(layer_parts(layer, attention, norm, heads))
        if angles and getattr(attention, "use_rope", True):
            made[i]["rotary"] = named.index(kinds[i]) if by_kind else 0
        made[i]["window"] = getattr(caches[min(i, len(caches) - 1)], "sliding_window", None)
    gated = kind in LIKE_LLAMA
    return {
        "layer": made,
        "embeddings": table.weight,
        "head": linear(model.get_output_embeddings()),
        "last": norm(last),
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_size": size,
        "mlp": len(made[0]["up"][0]) // (2 if gated else 1),
        "epsilon": _first(last, "variance_epsilon", "eps"),
        "activation": ACTIVATIONS[name],
        "attention_scale": _first(first, "scaling") or size**-0.5,
        "angles": angles,
        "places": base.wpe.weight if kind == "gpt2" else None,
        "centred": isinstance(last, nn.LayerNorm),
        "whole_norms": query_norm is not None and query_norm.weight.numel() != size,
        "gated": gated,
        "parallel": getattr(config, "use_parallel_residual", False),
        "attention_cap": getattr(first, "attn_logit_softcapping", None),
        "logit_cap": getattr(config, "final_logit_softcapping", None),
        "embedding_scale": float(getattr(table, "embed_scale", 1.0)),
    }


def layer_parts(layer: Any, attention: Any, norm: Callable[[Any], tuple | None], heads: int) -> Parts:
    """Read one decoder layer, by the names of its parts."""
    mlp = layer.mlp
    fused = _first(attention, "qkv_proj", "c_attn", "query_key_value")
    qkv = linear(fused) if fused is not None else linear(attention.q_proj, attention.k_proj, attention.v_proj)
    if hasattr(attention, "query_key_value"):  # query, key and value of each head in turn: all queries come first
        qkv = tuple(None if p is None else p.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2) for p in qkv)
    both = (mlp.gate_proj, mlp.up_proj) if hasattr(mlp, "gate_proj") else ()
    middle = norm(_first(layer, "post_attention_layernorm", "ln_2"))
    behind = hasattr(layer, "post_feedforward_layernorm")  # norms behind attention and MLP
    return {
        "qkv": qkv,
        "out": linear(_first(attention, "o_proj", "c_proj", "dense")),
        "up": linear(*(both or [_first(mlp, "gate_up_proj", "c_fc", "dense_h_to_4h")])),
        "down": linear(_first(mlp, "down_proj", "c_proj", "dense_4h_to_h")),
        "before_attention": norm(_first(layer, "input_layernorm", "ln_1")),
        "after_attention": middle if behind else None,
        "before_mlp": norm(getattr(layer, "pre_feedforward_layernorm", None)) if behind else middle,
        "after_mlp": norm(layer.post_feedforward_layernorm) if behind else None,
        "queries": norm(getattr(attention, "q_norm", None)),
        "keys": norm(getattr(attention, "k_norm", None)),
    }
