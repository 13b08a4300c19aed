"""The bytes and operations of a pass and the memory of a run. They are counted from the model, not timed."""

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from speclab.models.family import cached_layers, family_of

USABLE = 0.9  # of the free memory; the rest is for the cache, activations and the other model


def weights_read(model: PreTrainedModel) -> tuple[int, int]:
    """Return the weights that every pass reads, or at most for a mixture of experts.  -> how many, bytes. Shared ones
    count once. An embedding of its own is left out: a pass reads a row for each token."""
    unique = {id(p): p for p in family_of(model).weights(model)}
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    if outputs is None or inputs.weight is not outputs.weight:
        unique.pop(id(inputs.weight), None)
    return sum(p.numel() for p in unique.values()), sum(p.numel() * p.element_size() for p in unique.values())


def cached_shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Return of each layer with a cache how many numbers it keeps for a token, and the width of a head."""
    pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cached_layers(model)]
    kept = [(k, v) for k, v in pairs if isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)]
    return [((keys.numel() + values.numel()) // 2, keys.shape[-1]) for keys, values in kept]


def cache_bytes(model: PreTrainedModel, n_tokens: int) -> int:
    return sum(n for n, _ in cached_shapes(model)) * n_tokens * model.dtype.itemsize


def is_mixture_of_experts(model: PreTrainedModel) -> bool:
    """Tell whether the config, or a part of it, names several experts."""

    def several(entries: dict[str, Any]) -> bool:
        counts = (v for k, v in entries.items() if "experts" in str(k) and "_per_" not in k and isinstance(v, int))
        return any(n > 1 for n in counts) or any(several(v) for v in entries.values() if isinstance(v, dict))

    return several(model.config.get_text_config().to_dict())


def round_bytes(target: PreTrainedModel, draft: PreTrainedModel | None, k: int, context: int) -> tuple[int, int]:
    """Return the number of bytes that one round reads after `context` tokens: (k draft passes, one verification)."""
    drafting = 0
    if draft is not None and k:
        drafting = k * weights_read(draft)[1] + cache_bytes(draft, sum(context + i for i in range(1, k + 1)))
    return drafting, weights_read(target)[1] + cache_bytes(target, context + k + 1)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes held so far: on the GPU, or by this process. None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if importlib.util.find_spec("resource") is None:  # on Windows
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def describe(target: PreTrainedModel, draft: PreTrainedModel | None, k: int, context: int) -> str:
    """Return the text that `--verbose` prints: bytes of a decode step and of a round, and the peak of memory."""
    drafting, verifying = round_bytes(target, draft, k, context)
    step = round_bytes(target, None, 0, context)[1]
    most, peak = "up to " * is_mixture_of_experts(target), peak_memory(target.device)
    of_round = f"\na round at k = {k} reads {_bytes(drafting)} to draft and {most}{_bytes(verifying)} to verify"
    return (
        f"a decode step reads {most}{_bytes(step)} (weights and cache after {context} tokens)"
        + of_round * bool(k)
        + ("" if peak is None else f"\nmemory at its peak: {_bytes(peak)}")
    )


def _bytes(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"


def free_memory(device: torch.device) -> int | None:
    """Return the number of bytes that a model may take; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists() and (match := re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())):
        return int(match[1]) * 1024
    try:  # a Mac: all there is, as it does not say what is free; a GPU shares it
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
