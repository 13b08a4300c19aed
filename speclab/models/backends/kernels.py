"""Fewer and better kernels for a model's own forward pass on a GPU; the model itself stays as it is.

RMS norms, gated MLPs and rotary embeddings consist of many small kernels. `torch.compile` makes one or two of each. A
compiled function serves all layers, since weights are arguments to it, and all widths but one: it is compiled for a
single token, then for any number of them. (Compiled for each width it takes seconds a width.)

Attention with grouped queries reads each key-value head once: the queries that share it become further rows of it. The
library would write a copy of keys and values for each of them.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from speclab.system.errors import first_line
from speclab.system.terminal import note

ROTARY = "apply_rotary_pos_emb"  # a function beside the model's classes
UNKNOWN = ("softcap", "position_bias", "s_aux")  # that a model may ask of attention, beside what it gets here
MLP_WEIGHTS = ("gate_proj", "up_proj", "down_proj")
MOST_SHAPES = 64  # that one function may be compiled for; past torch's own limit of 8 it would be slow without a word
Parts = dict[Any, Callable]  # a class, or ROTARY -> the compiled function


def compiled_parts(model: PreTrainedModel, compiler: Callable[[Callable], Callable] | None = None) -> Parts:
    """What of this model can be compiled; nothing, with a note, where there is no working compiler."""
    if compiler is None:
        if not _can_compile(model.device):
            return {}
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)
        compiler = torch.compile
    parts: Parts = {type(m): compiler(type(m).forward) for m in model.modules() if _is_norm(m) or _is_mlp(m)}
    rotary = getattr(sys.modules[type(model).__module__], ROTARY, None)
    return parts | ({ROTARY: compiler(rotary)} if rotary else {})


@functools.cache
def _can_compile(device: torch.device) -> bool:
    """Whether torch.compile works here: it needs Triton and a C compiler."""
    try:
        torch.compile(lambda x: x * x + 1)(torch.ones(8, device=device))
    except Exception as error:  # a compiler may raise any exception
        note(f"without compiled parts of the model, which is slower: {type(error).__name__}: {first_line(error)}")
        return False
    return True


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm")


def _is_mlp(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in MLP_WEIGHTS)


class GroupedAttention:
    """Scaled dot-product attention in which the queries of a group are rows of their key-value head."""

    NAME = "speclab_grouped"

    def __init__(self) -> None:
        # By a mask's id and the size of a group: that mask, kept so that its id stays its own, and what is made of it
        # once for all layers of a pass, (1, 1, group x m, rows).
        self.masks: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, model: PreTrainedModel) -> "GroupedAttention | None":
        """For a model whose own attention is the same function; None for others."""
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 0)
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        if model.config._attn_implementation != "sdpa" or kv_heads == heads:
            return None
        return cls()

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """(1, heads, m, width) queries, (1, kv heads, rows, width) keys and values -> (1, m, heads, width), no weights

        The library's interface; heads of a group follow one another.
        """
        batch, heads, m, width = query.shape
        group = heads // key.shape[1]
        if unknown := [name for name in UNKNOWN if kwargs.get(name) is not None]:
            raise NotImplementedError(f"attention with {unknown[0]}")
        if (key_of_mask := (id(attention_mask), group)) not in self.masks:
            self.masks[key_of_mask] = attention_mask, attention_mask.repeat(1, 1, group, 1)
        mask = self.masks[key_of_mask][1]
        rows = query.reshape(batch, key.shape[1], group * m, width)
        mixed = nn.functional.scaled_dot_product_attention(rows, key, value, mask, scale=scaling)
        return mixed.reshape(batch, heads, m, -1).transpose(1, 2).contiguous(), None


@contextlib.contextmanager
def with_kernels(model: PreTrainedModel, attention: GroupedAttention | None, parts: Parts) -> Iterator[None]:
    """Inside, passes of `model` with a mask (1, 1, m, rows) use the kernels of this file."""
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if type(module) in parts and "forward" not in vars(module):
                bound = functools.partial(parts[type(module)], module)
                stack.enter_context(_changed(module, "forward", bound))
        if ROTARY in parts:
            stack.enter_context(_changed(sys.modules[type(model).__module__], ROTARY, parts[ROTARY]))
        if attention is not None:
            AttentionInterface.register(attention.NAME, attention)
            stack.enter_context(_changed(model.config.get_text_config(), "_attn_implementation", attention.NAME))
        try:
            yield
        finally:
            if attention is not None:
                attention.masks.clear()  # those of a recording lie in the memory of the graphs


@contextlib.contextmanager
def _changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has another value."""
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own or name not in vars(owner):  # a property keeps its value elsewhere
            setattr(owner, name, before)
        else:
            delattr(owner, name)
