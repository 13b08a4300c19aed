"""speclab/timing.py against a clock that only moves when told to. Nothing here measures real time."""

from types import SimpleNamespace

import pytest
import torch

from speclab import timing
from speclab.timing import Stopwatch

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
def clock(monkeypatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=fake.perf_counter))
    monkeypatch.setattr(timing, "synchronize", fake.synchronize)
    return fake


def test_lap_books_the_time_since_the_last_lap(clock):
    watch = Stopwatch(CPU)
    clock.now += 3
    watch.lap("prefill")
    clock.now += 5
    watch.lap("decode")
    assert watch.laps == {"prefill": 3, "decode": 5}


def test_laps_of_one_name_add_up_to_the_whole_time(clock):
    watch, start = Stopwatch(CPU), clock.now
    for seconds in (1, 2, 4, 8):
        clock.now += seconds
        watch.lap("draft")
        clock.now += 10 * seconds
        watch.lap("verify")
    assert watch.laps == {"draft": 15, "verify": 150}
    assert sum(watch.laps.values()) == clock.now - start


def test_every_reading_of_the_clock_waits_for_the_device_first(clock):
    watch = Stopwatch(CPU)
    watch.lap("draft")
    watch.lap("verify")
    assert clock.events == ["wait", "read"] * 3


def test_work_still_queued_on_the_device_counts_for_the_lap_that_queued_it(clock):
    clock.device_works_for = 7  # queued before the watch starts: nobody's
    watch = Stopwatch(CPU)
    clock.device_works_for = 2
    watch.lap("draft")
    clock.now += 1
    watch.lap("verify")
    assert watch.laps == {"draft": 2, "verify": 1}


def test_stopped_watch_neither_waits_nor_books(clock):
    watch = Stopwatch(CPU, running=False)
    clock.now += 3
    watch.lap("decode")
    assert watch.laps == {}
    assert "wait" not in clock.events


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_synchronize_waits_for_the_device_it_is_given(monkeypatch, kind):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(f"cuda {device.index}"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("mps"))
    timing.synchronize(torch.device("cuda", 1) if kind == "cuda" else torch.device(kind))
    assert waits == {"cpu": [], "cuda": ["cuda 1"], "mps": ["mps"]}[kind]
