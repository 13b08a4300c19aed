"""A watch for calls that would wait for a GPU, on tensors that are on a CPU."""

from collections import Counter

from torch.overrides import TorchFunctionMode

# Copies to the host, shapes that depend on values, and copies of host values that wait for the queue.
BLOCKING = {
    *("tolist", "item", "cpu", "numpy", "nonzero", "masked_select", "unique", "new_tensor"),
    *("__bool__", "__int__", "__float__", "__index__"),
}


class Watch(TorchFunctionMode):
    """Counts blocking calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in BLOCKING:
            self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))
