"""A model in the next wider float type, with room for the wider weights of one layer at a time.

The copy has modules of its own and shares the weights of the model. A layer's weights become wider when the layer is
called, and are the model's own again after it. Only the embeddings and the output layer stay wider.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from speclab.models.memory import USABLE, free_memory
from speclab.models.outside.placement import why_eager


def in_higher_precision(model: PreTrainedModel) -> PreTrainedModel | None:
    """Return a model that computes in float64 where this one does in float32, in float32 where it does in bfloat16 or
    float16; None where its device or its weights have no such precision, or memory has no room.

    The weights of the model must stay as they are while the copy is used. A pass of it raises RuntimeError where a
    kernel has no such precision, or a layer's weights are used outside of it.
    """
    wider = torch.float64 if model.dtype in (torch.float32, torch.float64) else torch.float32
    if why_eager(model) or model.dtype == torch.float64 or (wider == torch.float64 and model.device.type == "mps"):
        return None
    layers, free = list(_layers(model)), free_memory(model.device)
    of_layers = {id(p) for layer in layers for p in layer.parameters()}
    n_others = sum(p.numel() for p in model.parameters() if id(p) not in of_layers)
    n_largest = max((sum(p.numel() for p in layer.parameters()) for layer in layers), default=0)
    if free is not None and (n_largest + n_others) * wider.itemsize > USABLE * free:
        return None
    shared: dict[int, Any] = {id(p): nn.Parameter(p.data, requires_grad=False) for p in model.parameters()}
    copied = copy.deepcopy(model, shared)
    of_layers = set()
    for layer in _layers(copied):
        of_layers |= {id(p) for p in layer.parameters()}
        _Widening(layer, wider)
    for tensor in (*(p for p in copied.parameters() if id(p) not in of_layers), *copied.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(wider)
    with contextlib.suppress(AttributeError, ValueError):  # the fast kernels for experts have no float64
        copied.set_experts_implementation("eager")
    return copied


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that stand in lists. Lists inside of them are parts of them."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)


class _Widening:
    """Gives a module wider weights while it is called."""

    def __init__(self, module: nn.Module, dtype: torch.dtype):
        self._own = {p: p.data for p in module.parameters() if p.is_floating_point()}
        self._dtype = dtype
        module.register_forward_pre_hook(self._widen)
        module.register_forward_hook(self._narrow, always_call=True)

    def _widen(self, module: nn.Module, args: Any) -> None:
        for parameter, own in self._own.items():
            parameter.data = own.to(self._dtype)

    def _narrow(self, module: nn.Module, args: Any, output: Any) -> None:
        for parameter, own in self._own.items():
            parameter.data = own
