"""Fewer and better kernels for a model's own forward pass on a GPU; what the model computes stays as it is.

RMS norms, gated MLPs and rotary embeddings consist of many small kernels. `torch.compile` makes one or two of each. A
compiled function serves all layers, since weights are arguments to it, and all widths but one: it is compiled for a
single token, then for any number of them. (Compiled for each width it takes seconds a width.)

Products of the same input are joined: queries, keys and values are one product, and so are an MLP's two. One large
matrix is read faster than several small ones, for which a GPU has to start and to finish each time.

Attention of few tokens with grouped queries reads each key-value head once: the queries that share a head become
further rows of it. The library would write a copy of keys and values for each of them.
"""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from speclab.system.errors import first_line
from speclab.system.terminal import note

ROTARY = "apply_rotary_pos_emb"  # a function beside the model's classes
MLP_WEIGHTS = ("gate_proj", "up_proj", "down_proj")
ATTENTION_WEIGHTS = ("q_proj", "k_proj", "v_proj")
MOST_SHAPES = 64  # that one function may be compiled for; past torch's own limit of 8 it would be slow without a word
Parts = dict[Any, Callable]  # a class, or ROTARY -> the compiled function
Compiler = Callable[[Callable], Callable]


@functools.cache
def usable_compiler(device: torch.device) -> Compiler | None:
    """torch.compile, or None, with a note, where it does not work: it needs Triton and a C compiler."""
    try:
        torch.compile(lambda x: x * x + 1)(torch.ones(8, device=device))
    except Exception as error:  # a compiler may raise any exception
        note(f"without compiled parts of the model, which is slower: {type(error).__name__}: {first_line(error)}")
        return None
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)
    return torch.compile


def compiled_parts(model: PreTrainedModel, compiler: Compiler) -> Parts:
    """Compile each kind of norm and of gated MLP, and the rotary embedding, of this model."""
    parts: Parts = {type(m): compiler(type(m).forward) for m in model.modules() if _is_norm(m) or _is_mlp(m)}
    rotary = getattr(sys.modules[type(model).__module__], ROTARY, None)
    return parts | ({ROTARY: compiler(rotary)} if rotary else {})


class Joined:
    """Makes the products of one input with several matrices as one product with all their rows. The weights become
    views of one matrix, and the model's own passes read them there, so they are held once. linears: of the same input
    width, type and device, all with a bias or all without."""

    def __init__(self, linears: list[nn.Linear]):
        self.linears, self.sizes = linears, [linear.out_features for linear in linears]
        self.weight = _as_views([linear.weight for linear in linears], self.sizes)
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = _as_views(biases, self.sizes) if biases else None
        self._given: Tensor | None = None
        self._made: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, linears: list[Any]) -> "Joined | None":
        """Join these modules; None where they cannot be joined, or are fewer than two."""
        if len(linears) < 2 or any(type(one) is not nn.Linear for one in linears):
            return None
        kinds = {(one.in_features, one.weight.dtype, one.weight.device, one.bias is None) for one in linears}
        return cls(linears) if len(kinds) == 1 else None

    def whole(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def product(self, index: int, x: Tensor) -> Tensor:
        """Return the product with one of the matrices; those with the others are kept until they are asked for."""
        if x is not self._given:
            self._given, self._made = x, self.whole(x).split(self.sizes, dim=-1)
        return self._made[index]

    def forget(self) -> None:
        self._given, self._made = None, ()


def _as_views(parameters: list[Any], sizes: list[int]) -> Tensor:
    """Give parameters a common matrix, or vector, of which each is the rows after those before it."""
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, rows in zip(parameters, whole.split(sizes), strict=True):
        parameter.data = rows
    return whole


def gated(module: Any, both: Tensor) -> Tensor:
    """Finish an MLP behind its first two products: (..., 2 x intermediate) -> (..., hidden)"""
    gate, up = both.chunk(2, dim=-1)
    return module.down_proj(module.act_fn(gate) * up)


class Joins:
    """Joins the products of a model: those of its attention, and of MLPs that are what `gated` computes."""

    def __init__(self, model: PreTrainedModel, compiler: Compiler):
        self.attention: list[Joined] = []
        self.mlps: list[tuple[nn.Module, Callable]] = []
        finish = compiler(gated)
        for module in model.modules():
            names = MLP_WEIGHTS[:2] if _is_mlp(module) and _is_usual(module) else ATTENTION_WEIGHTS
            if (joined := Joined.of([getattr(module, name, None) for name in names])) is None:
                continue
            if names == ATTENTION_WEIGHTS:
                self.attention.append(joined)
            else:
                self.mlps.append((module, lambda x, mlp=module, joined=joined: finish(mlp, joined.whole(x))))
        if model.device.type == "cuda":
            torch.cuda.empty_cache()  # the places of the single matrices, which are too small for joined ones

    def changes(self) -> Iterator[tuple[nn.Module, Callable]]:
        for joined in self.attention:
            for i, linear in enumerate(joined.linears):
                yield linear, functools.partial(joined.product, i)
        yield from self.mlps

    def forget(self) -> None:
        for joined in self.attention:
            joined.forget()


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
        return cls() if model.config._attn_implementation == "sdpa" and kv_heads != heads else None

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
        """(1, heads, m, width) queries, (1, kv heads, rows, width) keys and values -> (1, m, heads, width), no weights.
        The library's interface; heads of a group follow one another."""
        batch, heads, m, width = query.shape
        group = heads // key.shape[1]
        if (key_of_mask := (id(attention_mask), group)) not in self.masks:
            self.masks[key_of_mask] = attention_mask, attention_mask.repeat(1, 1, group, 1)
        mask = self.masks[key_of_mask][1]
        rows = query.reshape(batch, key.shape[1], group * m, width)
        mixed = nn.functional.scaled_dot_product_attention(rows, key, value, mask, scale=scaling)
        return mixed.reshape(batch, heads, m, -1).transpose(1, 2).contiguous(), None


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm")


def _is_mlp(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in MLP_WEIGHTS)


def _is_usual(module: nn.Module) -> bool:
    """Tell whether an MLP has the parts of `gated` and no others, which its own forward might use between them."""
    return {name for name, _ in module.named_children()} == {*MLP_WEIGHTS, "act_fn"}


class Kernels:
    """The functions that passes of a model run in the place of its own, compiled where there is a `compiler`."""

    def __init__(self, model: PreTrainedModel, compiler: Compiler | None = None):
        self.model = model
        self.parts = compiled_parts(model, compiler) if compiler else {}
        self.joins = Joins(model, compiler or (lambda function: function))
        self.attention = GroupedAttention.of(model)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Inside, passes of the model with a mask (1, 1, m, rows) use them."""
        with contextlib.ExitStack() as stack:
            # Functions are compiled in the first pass. The compiler's advice to make products of float32 in
            # TensorFloat32, and about its own softmax, is no help to a reader.
            stack.enter_context(warnings.catch_warnings())
            for message in ("TensorFloat32 tensor cores", "\\nOnline softmax is disabled"):
                warnings.filterwarnings("ignore", message=message)
            for module, forward in self.joins.changes():
                stack.enter_context(_changed(module, "forward", forward))
            for module in self.model.modules():
                if type(module) in self.parts and "forward" not in vars(module):
                    bound = functools.partial(self.parts[type(module)], module)
                    stack.enter_context(_changed(module, "forward", bound))
            if ROTARY in self.parts:
                owner = sys.modules[type(self.model).__module__]
                stack.enter_context(_changed(owner, ROTARY, self.parts[ROTARY]))
            if self.attention is not None:
                AttentionInterface.register(self.attention.NAME, self.attention)
                config = self.model.config.get_text_config()
                stack.enter_context(_changed(config, "_attn_implementation", self.attention.NAME))
            try:
                yield
            finally:  # what they keep lies in the memory of a recording
                self.joins.forget()
                if self.attention is not None:
                    self.attention.masks.clear()


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
