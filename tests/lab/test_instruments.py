"""The clocks on the phases of a round, against a clock that only moves when told to."""

import functools
from types import SimpleNamespace

import pytest
import torch

from speclab.core import clock as clock_module
from speclab.core.drafter import Drafter
from speclab.core.rounds import Round
from speclab.lab.instruments import LoopFunctions, with_phases

CPU, MPS, CUDA = torch.device("cpu"), torch.device("mps"), torch.device("cuda")


def target_on(device: torch.device, **methods) -> SimpleNamespace:
    """What the clock asks of a target."""
    unused = dict.fromkeys(("verify", "forward", "commit", "crop"), lambda *_: None)
    return SimpleNamespace(device=device, n_replays=0, **{"keeps": min} | unused | methods)


class FakeClock:
    """`now` is the time; work that is queued on the device is done, and takes its time, when it is waited for."""

    now, queued = 100.0, 0.0

    def __init__(self, monkeypatch):
        monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(clock_module, "synchronize", lambda device: self.work(self.queued, -self.queued)())

    def work(self, seconds: float, queued: float = 0.0):
        """A function that takes `seconds` and leaves so many on the device."""

        def function(*_):
            self.now += seconds
            self.queued += queued

        return function


def test_every_part_of_a_round_counts_for_its_phase(monkeypatch):
    """draft: propose; verify: the target's pass; rollback: both caches; what is left is the host's. Calls of one phase
    add up, and work on the device counts for the phase that queued it."""
    fake = FakeClock(monkeypatch)
    target = target_on(MPS, verify=fake.work(15, 5), commit=fake.work(1))
    drafter = SimpleNamespace(prefill=fake.work(1000), propose=fake.work(4, 1), observe=fake.work(2))

    def decode(target, drafter, n_rounds, accept):
        drafter.prefill()
        yield Round([1], prefill=True)
        for _ in range(n_rounds):
            drafter.propose()
            drafter.propose()
            fake.queued += 0.25  # between the phases, and so is the next line
            fake.now += 0.25
            target.verify()
            accept()
            target.commit()
            drafter.observe()
            yield Round([2, 3])

    first, *rounds = with_phases(LoopFunctions(decode, accept=fake.work(4)), target, drafter, 2)
    assert first.seconds == {"prefill": 1000}
    assert [round_.seconds for round_ in rounds] == [
        {"draft": 10, "verify": 20, "accept": 4, "rollback": 3, "host": 0.5}
    ] * 2


def test_a_rule_for_the_cache_stands_in_its_own_rounds_alone():
    """Another rule must not go on in the next decoding with the same target."""
    target = target_on(CPU, keeps=max)
    seen = []

    def decode(target, drafter, accept):
        for _ in range(2):
            seen.append(target.keeps)
            yield Round([2, 3])

    functions = LoopFunctions(decode, keeps=min)
    for rounds in (functions.rounds, functools.partial(with_phases, functions)):
        assert len(list(rounds(target, Drafter()))) == 2
        assert target.keeps is max
    assert seen == [min] * 4


class FakeEvent:
    """What torch.cuda.Event is to the clock: it is recorded in the queue, and whoever reads it waits."""

    now, n_waits, n_read = 0.0, 0, 0  # now: milliseconds of the device
    at: float | None = None

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.now

    def synchronize(self) -> None:
        FakeEvent.n_waits += 1

    def elapsed_time(self, end: "FakeEvent") -> float:
        FakeEvent.n_read += 1
        return end.at - self.at


def test_events_of_a_round_are_read_after_it(monkeypatch):
    """Inside a round nothing waits; the times are the device's."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "n_waits", 0)

    def work(milliseconds: float):
        def function(*_):
            FakeEvent.now += milliseconds

        return function

    def decode(target, drafter, accept):
        for _ in range(3):
            drafter.propose()
            target.verify()
            accept()
            assert FakeEvent.n_waits == n_waits
            yield Round([2, 3])

    target = target_on(CUDA, verify=work(20))
    drafter = SimpleNamespace(propose=work(10), observe=work(2))
    rounds = with_phases(LoopFunctions(decode, accept=work(4)), target, drafter)
    for _ in range(3):
        n_waits, n_read = FakeEvent.n_waits, FakeEvent.n_read
        seconds = next(rounds).seconds
        assert FakeEvent.n_read == n_read, "a caller that times rounds would count the reading"
        assert seconds == pytest.approx({"draft": 0.01, "verify": 0.02, "accept": 0.004, "rollback": 0, "host": 0})
    assert FakeEvent.n_waits > 0
