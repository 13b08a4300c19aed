"""Reads `--device-map`: which device holds which part of the target. Nothing heavy is imported."""

import json
from pathlib import Path
from typing import Any

from speclab.system import files
from speclab.system.errors import UsageProblem

MOST = 2**20  # bytes of a file of devices
PLANS = ("auto", "balanced", "sequential")  # words of the library
DeviceMap = str | dict[str, int | str]


def read_device_map(text: str) -> DeviceMap:
    """Read the value of `--device-map`: one of PLANS, or a JSON file with the device of each module.
    Raises UsageProblem for anything else."""
    if text in PLANS:
        return text
    advice = f'give {", ".join(PLANS)}, or a JSON file such as {{"model.layers.0": 0, "model.layers.1": "cpu"}}'
    try:
        found = json.loads(files.read_bytes(Path(text), MOST).decode())
    except (OSError, ValueError, RecursionError):
        raise UsageProblem(f"the device map {text} is no plan and no JSON file; {advice}") from None
    if not isinstance(found, dict) or not found:
        raise UsageProblem(f"the device map {text} holds no devices of modules; {advice}")
    for module, device in found.items():
        if not _is_device(device):
            raise UsageProblem(
                f"in the device map {text}, {module} is put on {device!r}; a device is 0, 1 …, cpu or disk"
            )
    return found


def _is_device(device: Any) -> bool:
    if isinstance(device, str):
        return device in ("cpu", "disk")
    return isinstance(device, int) and not isinstance(device, bool) and device >= 0
