"""The weights of a model: how many a pass reads, in which form and place they lie, and the memory that is free.

A target that does not fit one GPU is spread over several and main memory, by the library's device_map. Layers on a GPU
compute there; the weights of the others are brought to a GPU in every pass. So a pass reads all weights either way.
"""

import json
import os
import re
from collections import Counter
from pathlib import Path

import torch
from transformers import PreTrainedModel

from speclab.models.family import family_of

USABLE = 0.9  # of the free memory; the rest is for the cache, activations and the other model


def weights_read(model: PreTrainedModel) -> tuple[int, int]:
    """Return the weights that every pass reads, or at most for a mixture of experts.  -> how many, bytes. Shared ones
    count once. An embedding of its own is left out: a pass reads a row for each token."""
    unique = {id(p): p for p in family_of(model).weights(model)}
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    if outputs is None or inputs.weight is not outputs.weight:
        unique.pop(id(inputs.weight), None)
    return sum(p.numel() for p in unique.values()), sum(p.numel() * p.element_size() for p in unique.values())


def is_mixture_of_experts(model: PreTrainedModel) -> bool:
    """Tell whether the config, or a part of it, names several experts."""
    entries = json.dumps(model.config.get_text_config().to_dict(), default=str)
    return re.search(r'"(?!\w*_per_)\w*experts\w*": ([2-9]|\d\d)', entries) is not None


def why_eager(model: PreTrainedModel) -> str:
    """Return what is unusual about the weights, so that only the eager engine runs the model; "" where they are plain
    and in one place."""
    places = Counter(map(str, getattr(model, "hf_device_map", {}).values()))  # of modules, where the library spread any
    if len(places) > 1:
        return "modules on " + ", ".join(f"{place}: {n}" for place, n in places.items())
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
