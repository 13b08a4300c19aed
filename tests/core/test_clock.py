"""Waiting for the device, and for the garbage collector."""

import contextlib
import gc
import weakref

import pytest
import torch

from speclab.core import clock


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_synchronize_waits_for_the_device_it_is_given(monkeypatch, kind):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(f"cuda {device.index}"))
    clock.synchronize(torch.device("cuda", 1) if kind == "cuda" else torch.device(kind))
    assert waits == ["cuda 1"] * (kind == "cuda")


def test_what_was_there_before_is_not_looked_at_until_the_end():
    """A collection inside sees new objects alone, and garbage among them; afterwards, also after an error, all."""

    def seen(wanted) -> bool:
        return any(one is wanted for one in gc.get_objects())

    class Circle:
        pass

    old = [Circle()]
    with contextlib.suppress(KeyError), clock.old_objects_frozen():
        new, circle = [Circle()], Circle()
        assert not seen(old)
        assert seen(new)
        circle.itself, gone = circle, weakref.ref(circle)
        del circle
        gc.collect()
        assert gone() is None
        with clock.old_objects_frozen():  # a loop inside another, which leaves what it did not freeze
            pass
        assert not seen(old)
        raise KeyError
    assert gc.get_freeze_count() == 0
    assert seen(old)
    assert seen(new)
