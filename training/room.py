"""How much is done at once, by the device and its free memory.

On a CPU twice as many rows take twice as long. A GPU starts some thousand kernels for a pass, which takes about as long
for one row as for thousands, so there memory is the limit.
"""

from dataclasses import dataclass

import torch

from speclab.models.memory import free_memory

SHARE = 1 / 3  # of a GPU's memory, each: rows that are kept, texts that are written side by side, everything else


@dataclass(frozen=True)
class Room:
    """The room on a device when a training begins. device: cpu, cuda or mps. free: bytes; counts on a GPU alone."""

    device: str = "cpu"
    free: int = 0

    @property
    def is_wide(self) -> bool:
        """Tell whether a pass over thousands of rows takes about as long as one over few."""
        return self.device == "cuda"

    @property
    def share(self) -> int:
        """Return the bytes of a third of it."""
        return int(SHARE * self.free)

    def fitting(self, most: int, size: int, share: float = SHARE) -> int:
        """Return how many things of `size` bytes fit into a share of it: at least one, and no more than `most`."""
        return max(1, min(most, int(share * self.free) // size))


def room_on(device: torch.device) -> Room:
    """Return the room that a device has now."""
    return Room(device.type, free_memory(device) or 0)
