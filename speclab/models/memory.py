"""The bytes that a pass reads, counted from the model, and the memory that is free."""

import os
import re
from pathlib import Path
from typing import Any

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

    def several(entries: dict[str, Any]) -> bool:
        counts = (v for k, v in entries.items() if "experts" in str(k) and "_per_" not in k and isinstance(v, int))
        return any(n > 1 for n in counts) or any(several(v) for v in entries.values() if isinstance(v, dict))

    return several(model.config.get_text_config().to_dict())


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
