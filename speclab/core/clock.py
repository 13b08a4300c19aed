"""The time that work takes on a device, which may do it after the call; and what disturbs it: Python's garbage
collector, which pauses here, and other work on the machine."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from speclab.system import startup

SHARE = 0.5  # of the cores in use by other work, from which on times may be rough


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything queued so far; a CPU has nothing queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def mark(device: torch.device) -> Any:
    """Mark a moment in the work of the device: on CUDA an event is queued, and nothing waits; elsewhere all does."""
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    synchronize(device)
    return time.perf_counter()


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds from one `mark` to a later one; on CUDA this waits until the device has passed both."""
    if isinstance(start, float | int):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, by the device's own clock where it has one."""
    synchronize(device)
    start = mark(device)
    call()
    return seconds_between(start, mark(device))


@contextlib.contextmanager
def old_objects_frozen() -> Iterator[None]:
    """Keep Python's garbage collector from checking objects that exist already, as libraries and models: that takes as
    long as decoding a short text, and would fall into the times. The outermost call unfreezes them."""
    is_first = gc.get_freeze_count() == 0
    gc.collect(1)  # what has just become garbage would stay in memory
    gc.freeze()
    try:
        yield
    finally:
        if is_first:
            gc.unfreeze()


def busy() -> str | None:
    """Return one line about the load average; None where it is low or not known."""
    n_cores = os.cpu_count() or 1
    if startup.LOAD is None or SHARE * n_cores >= startup.LOAD:
        return None
    return f"other work uses this machine: {what_load_means(startup.LOAD, n_cores)}"


def what_load_means(load: float, n_cores: int) -> str:
    rough = "so times and speedups may be rough, and where passes wait for cores, a draft may gain more"
    return f"load average {load:.1f} on {n_cores} cores, {rough}"
