"""Which gear runs a model: the library's eager forward, or the flat one of speclab/flat.py. Both arms get the same.

No gear wins everywhere, so `auto` builds the fast one, checks it against the model's own logits, and times both for a
moment at the widths that decoding uses. A model that cannot be flattened runs eagerly, and the reason is said.
"""

import statistics
import time

import torch
from transformers import PreTrainedModel

from speclab.cached_model import CachedModel
from speclab.flat import CannotFlatten, FlatModel
from speclab.timing import synchronize

ENGINES = ("auto", "fast", "eager")
WIDTHS = (1, 5)  # a decode step, and the verification of four drafted tokens
CONTEXT = 64
PASSES = 12  # of each gear at each width


def choose(model: PreTrainedModel, wish: str) -> tuple[FlatModel | None, str]:
    """The flat model to decode with, or None for the eager gear; and why, in a few words."""
    if wish == "eager":
        return None, "asked for"
    try:
        flat = FlatModel(model)
    except CannotFlatten as problem:
        return None, f"no fast engine for {model.config.model_type}: {problem}"
    if wish == "fast":
        return flat, "asked for"
    narrow, wide = race(model, flat)
    words = f"{narrow:.2f}x the eager engine's speed at 1 token, {wide:.2f}x at {WIDTHS[1]}"
    return (flat, words) if narrow * wide > 1 else (None, f"the fast engine was no faster: {words}")


def race(model: PreTrainedModel, flat: FlatModel, widths: tuple[int, ...] = WIDTHS) -> list[float]:
    """How many times faster the fast gear is, at each width: medians of passes that take turns."""
    gears = [CachedModel(model, flat=choice) for choice in (None, flat)]
    room = min(CONTEXT, (gears[0].max_length or CONTEXT) // 2)
    for gear in gears:
        gear.start(torch.zeros(1, room, dtype=torch.long, device=model.device), rolls_back=True)
    ratios = []
    for width in widths:
        ids = torch.zeros(1, width, dtype=torch.long, device=model.device)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(PASSES):
            for gear, found in zip(gears, times, strict=True):
                synchronize(model.device)
                start = time.perf_counter()
                gear.feed(ids)
                synchronize(model.device)
                found.append(time.perf_counter() - start)
                gear.rollback(room)
        ratios.append(statistics.median(times[0]) / statistics.median(times[1]))
    return ratios
