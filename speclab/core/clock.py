"""Waiting for the device, without which no clock says anything about it."""

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything queued so far; a CPU has nothing queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
