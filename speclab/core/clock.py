"""Clocks that know what a device has done, without which no time says anything about it; and what else would be in a
time."""

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything queued so far; a CPU has nothing queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def mark(device: torch.device) -> Any:
    """A moment in the work of the device. On CUDA an event is queued and nothing waits; elsewhere everything does."""
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    synchronize(device)
    return time.perf_counter()


def seconds_between(start: Any, end: Any) -> float:
    """From one `mark` to a later one; on CUDA this waits until the device has passed both."""
    if isinstance(start, float | int):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1e3


@contextlib.contextmanager
def short_collections() -> Iterator[None]:
    """Inside, Python's garbage collector leaves alone what is there already: the libraries, the models, their graphs.

    To look at all of that takes 0.2 to 0.4 s, as long as a short text takes to decode. It is done when enough new
    objects have been kept, so it would fall into the times of the loops that keep the most: lookups and `-k auto`.
    """
    if gc.get_freeze_count():  # inside another of these
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
