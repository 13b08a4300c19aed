"""What a model is made of, read from the library's modules: what pass.c has to know of it.

Families differ in a few parts, and most share names for them. A family that is not in `FAMILIES` runs eagerly. Whether
the parts were read rightly is not believed: the logits are held against the library's own (models/engine_choice.py).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from speclab.engines.eager import decoder_layers
from speclab.models.family import NoFastBackend

LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2")
FAMILIES = (*LIKE_LLAMA, "gpt2", "gpt_neox")
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2}
Linear = tuple[Tensor, Tensor | None]
"""A matrix (rows, columns), and a bias (rows,)."""
NormOf = tuple[Tensor, Tensor | None] | None
"""The factors of a norm, and what it adds; None where there is no norm."""


@dataclass
class LayerParts:
    """One layer, with the names of pass.c. rotary: the number of its table of angles, None for none."""

    qkv: Linear | None  # matrices are None once they are packed
    out: Linear | None
    up: Linear | None  # with a gate: its rows and those of the other factor lie in two halves
    down: Linear | None
    before_attention: NormOf = None
    after_attention: NormOf = None
    before_mlp: NormOf = None
    after_mlp: NormOf = None
    queries: NormOf = None
    keys: NormOf = None
    rotary: int | None = None
    window: int = 0


@dataclass
class Parts:
    """A model, with the names of pass.c. angles: each takes (n,) positions and gives cosines and sines, (n, turned / 2)
    each."""

    layers: list[LayerParts]
    embeddings: Tensor
    head: Linear
    last: NormOf
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    epsilon: float
    activation: int
    attention_scale: float
    angles: list[Callable[[Tensor], tuple[Tensor, Tensor]]] = field(default_factory=list)
    places: Tensor | None = None
    states: NormOf = None
    centred: bool = False
    whole_norms: bool = False
    gated: bool = True
    parallel: bool = False
    beside: bool = False
    start_normed: bool = False
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0


def linear(*modules: Any) -> Linear:
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

    def norm(module: nn.Module | None) -> NormOf:
        return None if module is None else (module.weight + more, getattr(module, "bias", None))

    rotary, angles = getattr(base, "rotary_emb", None), []
    kinds = getattr(config, "layer_types", None) or [""] * len(layers)
    if rotary is not None:
        by_kind = "layer_type" in inspect.signature(rotary.forward).parameters
        named = sorted(set(kinds)) if by_kind else [""]

        def angles_of(name: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
            def at(positions: Tensor) -> tuple[Tensor, Tensor]:
                pair = rotary(table.weight[:1, :1], positions[None], *([name] if by_kind else []))
                return tuple(part[0, :, : part.shape[-1] // 2].float().contiguous() for part in pair)  # type: ignore[return-value]

            return at

        angles = [angles_of(name) for name in named]
    caches = DynamicCache(config=config).layers or [None] * len(layers)
    made = []
    for i, (layer, attention) in enumerate(zip(layers, attentions, strict=True)):
        part = _layer(layer, attention, norm, heads)
        if angles and getattr(attention, "use_rope", True):
            part.rotary = named.index(kinds[i]) if by_kind else 0
        part.window = getattr(caches[min(i, len(caches) - 1)], "sliding_window", None) or 0
        made.append(part)
    output = model.get_output_embeddings()
    gated = kind in LIKE_LLAMA
    return Parts(
        layers=made,
        embeddings=table.weight,
        head=linear(output),
        last=norm(last),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=size,
        mlp=len(made[0].up[0]) // (2 if gated else 1),
        epsilon=_first(last, "variance_epsilon", "eps"),
        activation=ACTIVATIONS[name],
        attention_scale=_first(first, "scaling") or size**-0.5,
        angles=angles,
        places=base.wpe.weight if kind == "gpt2" else None,
        centred=isinstance(last, nn.LayerNorm),
        whole_norms=query_norm is not None and query_norm.weight.numel() != size,
        gated=gated,
        parallel=bool(getattr(config, "use_parallel_residual", False)),
        attention_cap=getattr(first, "attn_logit_softcapping", None) or 0.0,
        logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
        embedding_scale=float(getattr(table, "embed_scale", 1.0)),
    )


def _layer(layer: Any, attention: Any, norm: Callable[[Any], NormOf], heads: int) -> LayerParts:
    """Read one decoder layer, by the names of its parts."""
    mlp = layer.mlp
    fused = _first(attention, "qkv_proj", "c_attn", "query_key_value")
    qkv = linear(fused) if fused is not None else linear(attention.q_proj, attention.k_proj, attention.v_proj)
    if hasattr(attention, "query_key_value"):  # query, key and value of each head in turn: all queries come first
        qkv = tuple(  # type: ignore[assignment]
            part if part is None else part.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2) for part in qkv
        )
    if hasattr(mlp, "gate_proj"):
        up = linear(mlp.gate_proj, mlp.up_proj)
    else:
        up = linear(_first(mlp, "gate_up_proj", "c_fc", "dense_h_to_4h"))
    part = LayerParts(
        qkv=qkv,
        out=linear(_first(attention, "o_proj", "c_proj", "dense")),
        up=up,
        down=linear(_first(mlp, "down_proj", "c_proj", "dense_4h_to_h")),
        before_attention=norm(_first(layer, "input_layernorm", "ln_1")),
        queries=norm(getattr(attention, "q_norm", None)),
        keys=norm(getattr(attention, "k_norm", None)),
    )
    middle = norm(_first(layer, "post_attention_layernorm", "ln_2"))
    if hasattr(layer, "post_feedforward_layernorm"):  # norms behind attention and MLP
        part.after_attention, part.after_mlp = middle, norm(layer.post_feedforward_layernorm)
        part.before_mlp = norm(getattr(layer, "pre_feedforward_layernorm", None))
    else:
        part.before_mlp = middle
    return part
