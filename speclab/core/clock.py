"""Clocks that wait for the device."""

import time

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything queued so far; a CPU has nothing queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Stopwatch:
    """Adds up seconds under names. `lap(name)` books the time since the last lap (or the start) under `name`."""

    def __init__(self, device: torch.device, running: bool = True):
        self.device, self.running = device, running
        self.laps: dict[str, float] = {}
        self._last = self._now()

    def lap(self, name: str) -> None:
        if self.running:
            now = self._now()
            self.laps[name] = self.laps.get(name, 0.0) + now - self._last
            self._last = now

    def _now(self) -> float:
        if self.running:
            synchronize(self.device)
        return time.perf_counter()
