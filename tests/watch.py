"""A watch for calls that would wait for a GPU, on tensors that are on a CPU."""

from collections import Counter

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Copies to the host, shapes that depend on values, and copies of host values that wait for the queue.
BLOCKING = {
    *("tolist", "item", "cpu", "numpy", "nonzero", "masked_select", "unique", "new_tensor", "repeat_interleave"),
    *("__bool__", "__int__", "__float__", "__index__"),
}


class Watch(TorchFunctionMode):
    """Counts blocking calls. The processor counts as a device, whose numbers the host must not look at."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        # A tensor made of numbers right on the device is copied from memory that is not pinned.
        made_there = name == "tensor" and (kwargs or {}).get("device") is not None
        by_mask = name in ("__getitem__", "__setitem__") and _is_mask(args[1])
        if name in BLOCKING or made_there or by_mask:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def _is_mask(index: object) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)
