"""torch.compile, where a compiler is at hand."""

import shutil
from collections.abc import Callable
from typing import TypeVar

import torch
from transformers import LlamaForCausalLM

Result = TypeVar("Result")


def has_compiler() -> bool:
    """Tell whether this machine has the compiler that torch.compile needs for a CPU."""
    return bool(shutil.which("g++") or shutil.which("clang++"))


def compiled(function: Callable[..., Result], device: torch.device) -> Callable[..., Result]:
    """The same function, compiled for each shape of its arguments where a compiler is at hand; on a GPU, where a whole
    training may be over before all shapes are compiled, as it is."""
    return torch.compile(function, dynamic=False) if has_compiler() and device.type != "cuda" else function


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile each layer in place where a compiler is at hand; all layers share one compiled body per shape."""
    if has_compiler():
        torch._dynamo.config.cache_size_limit = 64
        for layer in model.model.layers:
            layer.compile(dynamic=False)
