"""Which gear runs a model: the library's eager forward, or the flat one of speclab/flat.py. Both arms get the same.

No gear wins everywhere, so `auto` builds the fast one, checks it against the model's own logits, and times both for a
moment at the widths that decoding uses. A model that cannot be flattened runs eagerly, and the reason is said.
"""

import time

import torch
from transformers import PreTrainedModel

from speclab.cached_model import CachedModel
from speclab.flat import CannotFlatten, FlatModel
from speclab.timing import synchronize

ENGINES = ("auto", "fast", "eager")
NARROW, WIDE = 1, 5  # a decode step, and the verification of four drafted tokens
PADDED = 4  # oneDNN reads packed weights fastest for four rows and more
WORTH_IT = 0.93  # padding must save more than noise
CONTEXT = 64
PASSES = 12  # of each gear at each width; the fastest counts, since whatever else runs can only slow a pass down


def choose(model: PreTrainedModel, wish: str) -> tuple[FlatModel | None, str]:
    """The flat model to decode with, or None for the eager gear; and why, in a few words."""
    if wish == "eager":
        return None, "asked for"
    try:
        flat = FlatModel(model)
    except CannotFlatten as problem:
        return None, f"no fast engine for {model.config.model_type}: {problem}"
    if flat.packed:
        narrow, padded = seconds(model, [(flat, NARROW), (flat, PADDED)])
        flat.least_width = PADDED if padded < WORTH_IT * narrow else NARROW
    if wish == "fast":
        return flat, "asked for"
    eager_narrow, fast_narrow, eager_wide, fast_wide = seconds(
        model, [(None, NARROW), (flat, NARROW), (None, WIDE), (flat, WIDE)]
    )
    narrow, wide = eager_narrow / fast_narrow, eager_wide / fast_wide
    words = f"{narrow:.2f}x the eager engine's speed at {NARROW} token, {wide:.2f}x at {WIDE}"
    return (flat, words) if narrow * wide > 1 else (None, f"the fast engine was no faster: {words}")


def seconds(model: PreTrainedModel, runners: list[tuple[FlatModel | None, int]]) -> list[float]:
    """The fastest pass of each (gear, width); they take turns. None is the eager gear."""
    room = min(CONTEXT, (CachedModel(model).max_length or CONTEXT) // 2)
    prompt = torch.zeros(1, room, dtype=torch.long, device=model.device)
    gears = [CachedModel(model, flat=flat) for flat, _ in runners]
    best = [float("inf")] * len(runners)
    for gear in gears:
        gear.start(prompt, rolls_back=True)
    for _ in range(PASSES):
        for i, (gear, (_, width)) in enumerate(zip(gears, runners, strict=True)):
            synchronize(model.device)
            start = time.perf_counter()
            gear.feed(prompt[:, :width])
            synchronize(model.device)
            best[i] = min(best[i], time.perf_counter() - start)
            gear.rollback(room)
    return best
