"""speclab/core/clock.py against a clock that only moves when told to. Nothing here measures real time."""

from types import SimpleNamespace

import pytest
import torch

from speclab.core import clock
from speclab.core.clock import Stopwatch

CPU = torch.device("cpu")


class FakeClock:
    """`now` is the time; every reading and every wait for the device is noted in `events`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.device_works_for = 0.0  # seconds of work queued on the device
        self.events: list[str] = []

    def perf_counter(self) -> float:
        self.events.append("read")
        return self.now

    def synchronize(self, device: torch.device) -> None:
        self.events.append("wait")
        self.now, self.device_works_for = self.now + self.device_works_for, 0.0


@pytest.fixture
def fake_clock(monkeypatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=fake.perf_counter))
    monkeypatch.setattr(clock, "synchronize", fake.synchronize)
    return fake


def test_lap_books_the_time_since_the_last_lap(fake_clock):
    watch = Stopwatch(CPU)
    fake_clock.now += 3
    watch.lap("prefill")
    fake_clock.now += 5
    watch.lap("decode")
    assert watch.laps == {"prefill": 3, "decode": 5}


def test_laps_of_one_name_add_up_to_the_whole_time(fake_clock):
    watch, start = Stopwatch(CPU), fake_clock.now
    for seconds in (1, 2, 4, 8):
        fake_clock.now += seconds
        watch.lap("draft")
        fake_clock.now += 10 * seconds
        watch.lap("verify")
    assert watch.laps == {"draft": 15, "verify": 150}
    assert sum(watch.laps.values()) == fake_clock.now - start


def test_every_reading_of_the_clock_waits_for_the_device_first(fake_clock):
    watch = Stopwatch(CPU)
    watch.lap("draft")
    watch.lap("verify")
    assert fake_clock.events == ["wait", "read"] * 3


def test_work_still_queued_on_the_device_counts_for_the_lap_that_queued_it(fake_clock):
    fake_clock.device_works_for = 7  # queued before the watch starts: nobody's
    watch = Stopwatch(CPU)
    fake_clock.device_works_for = 2
    watch.lap("draft")
    fake_clock.now += 1
    watch.lap("verify")
    assert watch.laps == {"draft": 2, "verify": 1}


def test_stopped_watch_neither_waits_nor_books(fake_clock):
    watch = Stopwatch(CPU, running=False)
    fake_clock.now += 3
    watch.lap("decode")
    assert watch.laps == {}
    assert "wait" not in fake_clock.events


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_synchronize_waits_for_the_device_it_is_given(monkeypatch, kind):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(f"cuda {device.index}"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("mps"))
    clock.synchronize(torch.device("cuda", 1) if kind == "cuda" else torch.device(kind))
    assert waits == {"cpu": [], "cuda": ["cuda 1"], "mps": ["mps"]}[kind]
