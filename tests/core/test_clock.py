"""Waiting for the device."""

import pytest
import torch

from speclab.core import clock


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_synchronize_waits_for_the_device_it_is_given(monkeypatch, kind):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(f"cuda {device.index}"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("mps"))
    clock.synchronize(torch.device("cuda", 1) if kind == "cuda" else torch.device(kind))
    assert waits == {"cpu": [], "cuda": ["cuda 1"], "mps": ["mps"]}[kind]
