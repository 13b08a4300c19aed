"""`lab:SIZE`: a lab model that writes its usual text, at the cost of a larger model. No download.

A trained lab model is padded to the shape of a larger one: more heads, a wider MLP and residual stream, more layers.
What is added never reaches the output, so text and acceptance are the lab's; every added weight is stored, read and
multiplied, so the time is the larger model's. Four rules, with d the lab's width and D the padded one:

- The stream's first d dimensions are the lab's, the others stay exactly zero: nothing ever writes to them.
- A mean square over D dimensions of which D - d are zero is d/D of the lab's, so each RMSNorm divides by too little;
  its weights times sqrt(d/D) and its epsilon times d/D undo that.
- What added heads and MLP units compute meets zero columns of o_proj and down_proj.
- Added layers have nothing but zeros there. They follow the lab's, so layer i of the padded model is the lab's layer i.

lab:8b:v128256 has more rows in the output layer, too. The lab cuts logits at the tokenizer's ids; in the library's own
loop the others cannot win: an added row is the mean of the lab's in its first d dimensions, and so is its logit.

Everywhere else are seeded random numbers. At 8 billion a third of the weights are zeros; they cost what others cost.
Wider sums are taken in another order: float32 logits differ by some 1e-5, and in bfloat16 a long greedy text may part
from the lab's where two tokens are nearly equal. Compare padded with padded, not with the lab's.
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from speclab.models.memory import USABLE, free_memory
from speclab.system.errors import EnvironmentProblem, UsageProblem

SPREAD = 0.02  # standard deviation of random weights; what Llama is initialised with
PREFIX = "lab:"


class Shape(NamedTuple):
    """The shape of a padded model; a head is 64 wide, as the lab's are."""

    width: int
    kv_heads: int
    units: int  # of the MLP
    layers: int


# Millions of parameters, and the shape of a target and of a draft, within 5 % of that. Width and depth grow with the
# cube root of the size and meet Llama 3's: 2048 wide at 1b, 4096 at 8b. A padded model is never shallower than its lab
# model, so small targets are deep. A draft, whose lab model has one layer, is the shallower of the two at equal size:
# on a GPU its layers, one after the other, are what a pass costs. The first two are sizes of drafts alone. Four query
# heads share a key-value head, as in large models, where the lab's own heads find place in that.
SIZES: dict[str, tuple[int, Shape | None, Shape]] = {
    "5m": (5, None, Shape(384, 6, 1344, 2)),
    "10m": (10, None, Shape(384, 6, 1472, 4)),
    "20m": (20, Shape(384, 6, 896, 12), Shape(512, 4, 1536, 6)),
    "50m": (50, Shape(512, 4, 1792, 14), Shape(768, 4, 2816, 6)),
    "100m": (100, Shape(768, 4, 2880, 12), Shape(896, 7, 2752, 10)),
    "200m": (200, Shape(1024, 4, 3776, 14), Shape(1280, 5, 4096, 10)),
    "800m": (800, shape := Shape(1792, 7, 5888, 20), shape),
    "1b": (1_000, shape := Shape(2048, 8, 7296, 18), shape),
    "2b": (2_000, shape := Shape(2560, 10, 8704, 24), shape),
    "8b": (8_000, shape := Shape(4096, 16, 14656, 36), shape),
    "800m:v128256": (800, shape := Shape(1792, 7, 6080, 14), shape),
    "8b:v128256": (8_000, shape := Shape(4096, 16, 14464, 34), shape),
}
OWN = {"target": "10 M", "draft": "1.6 M"}  # parameters of the lab's pair, which is padded


def millions_of(name: str) -> int:
    """Return the millions of parameters that a name such as lab:200m asks for. Raises UsageProblem for no size."""
    if (size := SIZES.get(name.removeprefix(PREFIX))) is None:
        raise UsageProblem(f"{name} is not a size; give lab: and one of {', '.join(SIZES)}, for example lab:200m")
    return size[0]


def rows_of(name: str) -> int:
    """Return the rows of the output layer, 0 where they are the lab's."""
    return int(name.partition(":v")[2] or 0)


def shape_of(name: str, role: str) -> Shape:
    """Return the shape of a padded target or draft. Raises UsageProblem where the lab's own is larger."""
    millions_of(name)
    _, target, draft = SIZES[name.removeprefix(PREFIX)]
    if (shape := draft if role == "draft" else target) is None:
        raise UsageProblem(f"{name} is too small for the lab's {role}; use a larger one, for example lab:200m")
    return shape


def describe_padding(name: str, role: str = "target") -> str:
    """Return the remark that belongs next to every time of a padded model. name: lab:SIZE; role: target or draft"""
    size, rows = name.split(":")[1].upper(), rows_of(name)
    said = f"padded: the text of the lab's {role} of {OWN[role]} parameters at the price of {size}"
    return said + f", {rows} rows in the output layer" * bool(rows)


def padded(
    small: PreTrainedModel, name: str, device: torch.device, dtype: torch.dtype, role: str = "target"
) -> PreTrainedModel:
    """Pad `small`, the lab's target or draft, to the size of the name, or refuse it where memory has no room for it."""
    shape, free, needed = shape_of(name, role), free_memory(device), millions_of(name) * 10**6 * dtype.itemsize
    if free is not None and needed > USABLE * free:
        what = f"{name} needs {needed / 1e9:.1f} GB, and of the {free / 1e9:.1f} GB free on {device.type}"
        raise EnvironmentProblem(
            f"{what} a tenth stays free; use a smaller one" + ", or --dtype bfloat16" * (dtype.itemsize > 2)
        )
    return pad_to(small, shape, device, dtype, rows_of(name) or small.config.vocab_size)


def config_of(lab: LlamaConfig, shape: Shape, dtype: torch.dtype, n_rows: int) -> LlamaConfig:
    config = copy.deepcopy(lab)
    config.hidden_size, config.num_key_value_heads, config.intermediate_size, config.num_hidden_layers = shape
    config.num_attention_heads = shape.width // lab.head_dim
    config.head_dim = lab.head_dim  # fixes the softmax scale and the rotary frequencies
    config.rms_norm_eps = lab.rms_norm_eps * lab.hidden_size / config.hidden_size
    config.vocab_size, config.dtype = n_rows, dtype
    return config


@torch.no_grad()
def pad_to(
    small: PreTrainedModel, shape: Shape, device: torch.device, dtype: torch.dtype, n_rows: int
) -> PreTrainedModel:
    """Build `small`, a Llama without biases, in the given shape and with so many rows in the output layer, in place on
    the device: weights exist once, in `dtype` only."""
    lab, config = small.config, config_of(small.config, shape, dtype, n_rows)
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
    for name, weight in layer.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            weight.zero_()
        elif "norm" in name:
            weight.fill_(1.0)
        else:
            _fill_random(weight, generator)


def _place_layer(layer: torch.nn.Module, small: torch.nn.Module, config: LlamaConfig, lab: LlamaConfig) -> None:
    """Copy the lab's layer into a corner of the larger one."""
    d, head_dim, attention = lab.hidden_size, lab.head_dim, layer.self_attn
    n_kv, kv_heads = lab.num_key_value_heads, config.num_key_value_heads
    n_group = lab.num_attention_heads // n_kv

    # Query head i reads key-value head i // group, so the lab's query heads come first in the group of their own one.
    q = attention.q_proj.weight.view(kv_heads, -1, head_dim, config.hidden_size)
    q[:n_kv, :n_group, :, :d].copy_(small.self_attn.q_proj.weight.view(n_kv, n_group, head_dim, d))
    o = attention.o_proj.weight.view(config.hidden_size, kv_heads, -1, head_dim)
    o[:d, :n_kv, :n_group].copy_(small.self_attn.o_proj.weight.view(d, n_kv, n_group, head_dim))
    for name, own in small.named_parameters():
        weight = layer.get_parameter(name)
        if "norm" in name:
            fill_norm(weight, own)
        elif "q_proj" not in name and "o_proj" not in name:
            weight[: own.shape[0], : own.shape[1]].copy_(own)


def fill_norm(weight: Tensor, small: Tensor) -> None:
    """Fill the weights of a norm, (D,), from the lab's, (d,). Added dimensions are zero, whatever their weight."""
    scale = math.sqrt(small.numel() / weight.numel())
    weight.fill_(scale)
    weight[: small.numel()].copy_(small.cpu().double() * scale)
