"""Waiting for the device, and for the garbage collector."""

import gc

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


def test_what_was_there_before_is_not_looked_at():
    """A collection inside sees new objects alone, and garbage among them; afterwards everything again."""
    old = [[i] for i in range(1000)]
    with clock.short_collections():
        assert gc.get_freeze_count() > 1000
        n_before = len(gc.get_objects())
        new = [[i] for i in range(500)]
        assert 500 < len(gc.get_objects()) - n_before < 700
        circle: list = []
        circle.append(circle)
        del circle
        assert gc.collect() > 0
        with clock.short_collections():  # a loop inside another
            pass
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > 1500
    assert len(old) + len(new) == 1500


def test_an_error_inside_lets_the_collector_see_everything_again():
    with pytest.raises(KeyError), clock.short_collections():
        raise KeyError
    assert gc.get_freeze_count() == 0
