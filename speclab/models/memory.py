"""The weights that a pass reads, the memory that is free, and how fast the machine reads it."""

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from speclab.core.clock import seconds
from speclab.models.family import family_of

LARGE, COLUMNS = 2**28, 2048  # bytes of the block that is read on a CPU, and its width
USABLE = 0.9  # of the free memory; the rest is for the cache, activations and the other model


def weights_read(model: PreTrainedModel) -> tuple[int, int]:
    """Return the weights that every pass reads, or at most for a mixture of experts.  -> how many, bytes. Shared ones
    count once. An embedding of its own is left out: a pass reads a row for each token."""
    unique = {id(p): p for p in family_of(model).weights(model)}
    with contextlib.suppress(AttributeError, NotImplementedError):  # no such methods, or no single matrix
        inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
        if outputs is None or inputs.weight is not outputs.weight:
            unique.pop(id(inputs.weight), None)
    return sum(p.numel() for p in unique.values()), sum(p.numel() * p.element_size() for p in unique.values())


def is_mixture_of_experts(model: PreTrainedModel) -> bool:
    """Tell whether the config, or a part of it, names several experts."""
    entries = json.dumps(model.config.get_text_config().to_dict(), default=str)
    return re.search(r'"(?!\w*_per_)\w*experts\w*": ([2-9]|\d\d)', entries) is not None


def why_eager(model: PreTrainedModel) -> str:
    """Return why only the eager engine runs weights like these; "" where they are plain and in one place."""
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}  # where the library spread modules
    if len(places) > 1:
        return f"its modules are on {', '.join(sorted(places))}"
    return "its weights are quantised" if getattr(model, "hf_quantizer", None) is not None else ""


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


def best(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the best time of several calls: every disturbance makes a call longer."""
    call()
    return min(seconds(call, device) for _ in range(repeats))


@torch.inference_mode()
def bandwidth(n_bytes: int, device: torch.device, dtype: torch.dtype, repeats: int = 7) -> dict[str, float]:
    """Return three measures of the bytes a second over a block of about this size."""
    block = torch.ones(max(1, n_bytes // (COLUMNS * dtype.itemsize)), COLUMNS, dtype=dtype, device=device)
    other, read = torch.empty_like(block), block.nbytes
    return {
        "copy": 2 * read / best(lambda: other.copy_(block), device, repeats),
        "matrix_vector": read / best(lambda: torch.mv(block, block[0]), device, repeats),
        "sum": read / best(lambda: block.sum(), device, repeats),
    }


def block_bytes(device: torch.device) -> int:
    """Return the size of the block that is read and copied: more than caches hold, and little of what is free."""
    usual, free = 2**30 if device.type == "cuda" else LARGE, free_memory(device)
    return usual if free is None else min(usual, free // 4)
