"""`lab:SIZE`: a lab model that writes its usual text, at the cost of a model of any size. No download.

A model of 8 billion parameters needs a download; measuring its cost does not. A trained lab model is padded to the
shape of a larger one: more heads, a wider MLP and residual stream, more layers. What is added never reaches the output,
so text and acceptance are the lab's; every added weight is stored, read and multiplied, so the time is the larger
model's. Four rules keep the function, with d the lab's width and D the padded one:

- The stream's first d dimensions are the lab's, the others stay exactly zero: nothing ever writes to them.
- A mean square over D dimensions of which D - d are zero is d/D of the lab's, so each RMSNorm divides by too little;
  its weights times sqrt(d/D) and its epsilon times d/D undo that.
- What added heads and MLP units compute meets zero columns of o_proj and down_proj.
- Added layers have nothing but zeros there. They follow the lab's, so layer i of the padded model is the lab's layer i.

`lab:SIZE:vROWS` pads the output layer, too: lab:8b:v128256 has as many rows as Llama 3 has ids. The lab cuts logits at
the tokenizer's ids; in the library's own loop the others cannot win: in the first d dimensions each added row is the
mean of the lab's rows, so its logit is the mean of the lab's.

Everywhere else are seeded random numbers. At 8 billion a third of the weights are zeros; they cost what others cost.
Wider sums are taken in another order: float32 logits differ by some 1e-5. In bfloat16 the two round differently, as any
two machines may, and sqrt(d/D) is a rounding more unless it is a power of two (it is at 1024 and 4096 wide): a long
greedy text may part from the lab's where two tokens are nearly equal. Compare padded with padded, not with the lab's.
"""

import copy
import math

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from speclab.models.memory import USABLE, free_memory
from speclab.models.padded.sizes import PREFIX, SIZES, Size
from speclab.system.errors import EnvironmentProblem, UsageProblem

SPREAD = 0.02  # standard deviation of random weights; what Llama is initialised with


def count_parameters(config: LlamaConfig, **shape: int) -> int:
    """Return the number of parameters of a Llama of this config without biases, tied ones once; `shape` replaces
    entries of it."""
    entry = {**vars(config), **shape}
    d, n_heads = entry["hidden_size"], entry["num_attention_heads"] + entry["num_key_value_heads"]
    per_layer = 2 * d * n_heads * config.head_dim + 3 * d * entry["intermediate_size"] + 2 * d
    return (
        entry["num_hidden_layers"] * per_layer + d + entry["vocab_size"] * d * (1 if config.tie_word_embeddings else 2)
    )


def shape_for(size: Size, lab: LlamaConfig, role: str) -> dict[str, int]:
    """Return the config entries of a padded model, within 5 % of its size: its width and depth, and MLPs of what is
    left. More rows in the output layer take the place of layers."""
    _, *shapes = SIZES[size.name]
    width, n_layers = shapes[role == "draft"]
    rows = size.vocab_size or lab.vocab_size
    heads = width // lab.head_dim
    # Four query heads to a key-value head, as large models have it, where the lab's own find place in that.
    least = max(lab.num_key_value_heads, heads / 4)
    kv_heads = next(n for n in range(1, heads + 1) if heads % n == 0 and n >= least)
    shape = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    n, none = size.n_parameters, {"num_hidden_layers": 0, "intermediate_size": 0}
    outside, usual = (count_parameters(lab, **shape | none, vocab_size=one) for one in (rows, lab.vocab_size))
    n_layers = 2 * round(n_layers * (n - outside) / (n - usual) / 2)
    if rows < lab.vocab_size or n_layers < lab.num_hidden_layers:
        raise UsageProblem(
            f"{PREFIX}{size.name} with {rows} rows is too small for the lab's {role}, which has {lab.vocab_size} ids "
            f"and {lab.num_hidden_layers} layers; use a larger one, for example lab:200m"
        )
    shape |= {"num_hidden_layers": n_layers, "intermediate_size": 0, "vocab_size": rows}
    units = (n - count_parameters(lab, **shape)) / (3 * width * n_layers)
    shape["intermediate_size"] = max(lab.intermediate_size, round(units / 64) * 64)
    return shape


def padded(
    small: PreTrainedModel, size: Size, device: torch.device, dtype: torch.dtype, copies: int = 1, role: str = "target"
) -> PreTrainedModel:
    """Pad `small` to a size, ready to decode: it writes the same text at the cost of the larger model. Refuses a size
    that memory does not hold. copies: how often the weights will lie in memory; 2 if they will be packed for the CPU
    beside the originals. role: target or draft."""
    shape = shape_for(size, small.config, role)
    check_memory(f"{PREFIX}{size.name}", count_parameters(small.config, **shape), device, dtype, copies)
    return pad_to(small, shape, device, dtype)


def check_memory(name: str, n_parameters: int, device: torch.device, dtype: torch.dtype, copies: int = 1) -> None:
    """Refuse weights that do not fit, before the machine starts swapping or is killed for it."""
    free, needed = free_memory(device), n_parameters * dtype.itemsize * copies
    if free is None or needed <= USABLE * free:
        return
    weights = f"{needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')} ({copies} x the weights)"
    raise EnvironmentProblem(
        f"{name} needs {weights}, and of the {free / 1e9:.1f} GB free on {device.type} a tenth stays free; "
        f"use a smaller one, --dtype bfloat16, or --engine eager, which holds them once"
    )


@torch.no_grad()
def pad_to(small: PreTrainedModel, shape: dict[str, int], device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Build `small` in the given shape in place on the device: weights exist once, in `dtype` only."""
    lab = small.config
    if lab.model_type != "llama" or lab.attention_bias or lab.mlp_bias:
        raise ValueError("only a Llama without biases can be padded")
    config = copy.deepcopy(lab)
    config.update(shape)
    config.head_dim = lab.head_dim  # fixes the softmax scale and the rotary frequencies
    config.rms_norm_eps = lab.rms_norm_eps * lab.hidden_size / config.hidden_size
    config.dtype = dtype

    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device=device)
    model.tie_weights()  # to_empty gave either end a tensor of its own
    model.model.rotary_emb = copy.deepcopy(small.model.rotary_emb).to(device)  # buffers, which to_empty left empty too
    model.generation_config = copy.deepcopy(small.generation_config)

    generator = torch.Generator(device).manual_seed(0)
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    if head is not embedding:
        _fill_random(head, generator)
        head[: lab.vocab_size, : lab.hidden_size].copy_(small.lm_head.weight)
    embedding.zero_()  # here the stream starts: zero in the added dimensions
    embedding[: lab.vocab_size, : lab.hidden_size].copy_(small.model.embed_tokens.weight)
    added = head[lab.vocab_size :]  # ids that no text has
    _fill_random(added, generator)
    added[:, : lab.hidden_size].copy_(small.lm_head.weight.double().mean(0))
    fill_norm(model.model.norm.weight, small.model.norm.weight)
    for i, layer in enumerate(model.model.layers):
        _fill_layer(layer, generator)
        if i < lab.num_hidden_layers:
            _place_layer(layer, small.model.layers[i], config, lab)
    return model.eval()


def _fill_random(weight: Tensor, generator: torch.Generator) -> None:
    """Fill a weight with random numbers that bfloat16 holds exactly, as it does those of most published models."""
    weight.normal_(0.0, SPREAD, generator=generator)
    weight.copy_(weight.bfloat16())


def _fill_layer(layer: torch.nn.Module, generator: torch.Generator) -> None:
    """Fill a layer that computes something and adds nothing. zero_() writes the zeros: pages that were never written
    would be one page of zeros mapped many times, read from the CPU's cache, and those weights would be free."""
    attention, mlp = layer.self_attn, layer.mlp
    for into in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
        _fill_random(into.weight, generator)
    for out in (attention.o_proj, mlp.down_proj):
        out.weight.zero_()
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.fill_(1.0)


def _place_layer(layer: torch.nn.Module, small: torch.nn.Module, config: LlamaConfig, lab: LlamaConfig) -> None:
    """Copy the lab's layer into a corner of the larger one."""
    d, units, head_dim = lab.hidden_size, lab.intermediate_size, lab.head_dim
    attention, mlp = layer.self_attn, layer.mlp
    n_kv, kv_heads = lab.num_key_value_heads, config.num_key_value_heads
    n_group = lab.num_attention_heads // n_kv

    # Query head i reads key-value head i // group, so the lab's query heads come first in the group of their own one.
    q = attention.q_proj.weight.view(kv_heads, -1, head_dim, config.hidden_size)
    q[:n_kv, :n_group, :, :d].copy_(small.self_attn.q_proj.weight.view(n_kv, n_group, head_dim, d))
    o = attention.o_proj.weight.view(config.hidden_size, kv_heads, -1, head_dim)
    o[:d, :n_kv, :n_group].copy_(small.self_attn.o_proj.weight.view(d, n_kv, n_group, head_dim))
    for name in ("k_proj", "v_proj"):
        getattr(attention, name).weight[: n_kv * head_dim, :d].copy_(getattr(small.self_attn, name).weight)
    for name in ("gate_proj", "up_proj"):
        getattr(mlp, name).weight[:units, :d].copy_(getattr(small.mlp, name).weight)
    mlp.down_proj.weight[:d, :units].copy_(small.mlp.down_proj.weight)
    for name in ("input_layernorm", "post_attention_layernorm"):
        fill_norm(getattr(layer, name).weight, getattr(small, name).weight)


def fill_norm(weight: Tensor, small: Tensor) -> None:
    """Fill the weights of a norm, (D,), from the lab's, (d,). Added dimensions are zero before and after, whatever
    their weight."""
    scale = math.sqrt(small.numel() / weight.numel())
    weight.fill_(scale)
    weight[: small.numel()].copy_(small.cpu().double() * scale)
