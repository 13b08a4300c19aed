"""Measures how long a call takes, and how fast the machine reads memory."""

from collections.abc import Callable

import torch

from speclab.core.clock import mark, seconds_between, synchronize
from speclab.models.memory import free_memory

LARGE, COLUMNS = 2**28, 2048  # bytes of the block that is read, more than caches hold, and its width


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, by the device's own clock where it has one."""
    synchronize(device)
    start = mark(device)
    call()
    return seconds_between(start, mark(device))


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
    """Return the size of the block that is read and copied: a quarter of the free memory at most."""
    free, usual = free_memory(device), 2**30 if device.type == "cuda" else LARGE
    return usual if free is None else min(usual, free // 4)
