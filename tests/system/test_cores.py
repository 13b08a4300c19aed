"""Whether the cores are free: the decision on given numbers, and the probe on clocks that a test turns."""

import itertools
import os

import pytest

from speclab.system import cores
from speclab.system.cores import Shares, Work

IDLE = Shares(threads=2, alone=0.99, together=0.98, gain=1.97, load=0.1)
BUSY = {
    "one busy loop": (IDLE._replace(alone=0.98, together=0.66, gain=1.3), "66%", "--threads 1"),
    "two busy loops": (IDLE._replace(alone=0.67, together=0.5, gain=1.5), "50%", "--threads 1"),
    "one thread beside others": (Shares(1, 0.6, 0.6, 1.0, 0.1), "60%", "stop it and run again"),
    "half a core each": (IDLE._replace(together=0.5, gain=1.0), "other work or a limit", "stop it, or use --threads 1"),
    "one core that looks like two": (IDLE._replace(gain=1.05), "only 1.05 times the work", "--threads 1"),
    "stolen by other machines": (IDLE._replace(threads=8, gain=3.1), "only 3.10 times the work", "--threads 1"),
}


@pytest.mark.parametrize(("shares", "number", "advice"), BUSY.values(), ids=BUSY)
def test_a_busy_machine_is_named_with_the_flag_to_type(shares, number, advice):
    line = cores.complaint(shares)
    assert not cores.are_free(shares)
    assert number in line
    assert advice in cores.advice(shares)
    assert "--threads" not in line, "a record repeats the line after the run, and the advice is given once"
    assert "\n" not in line + cores.advice(shares)


@pytest.mark.parametrize(
    "shares",
    [
        IDLE,
        IDLE._replace(together=0.91),
        IDLE._replace(gain=1.3),  # two threads of one physical core
        IDLE._replace(threads=1, gain=1.0),
        IDLE._replace(threads=16, gain=9.0),
        IDLE._replace(load=9.0),  # the average of a minute is no measurement of now
        IDLE._replace(load=None),
    ],
)
def test_free_cores_are_not_complained_of(shares):
    assert cores.are_free(shares)
    assert cores.complaint(shares) is None


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_probe_adds_up_its_looks(threads):
    asked = []

    def work(n: int) -> Work:
        """Every thread wants a second a look. One gets all of it, several get half each, and are half as fast."""
        asked.append(n)
        share = 1.0 if n == 1 else 0.5
        return Work(blocks=100 * share * n, got=share * n, wanted=1.0 * n)

    shares = cores.probe(threads, work)
    assert asked == ([1, threads] if threads > 1 else [1]) * cores.LOOKS
    expected = (1.0, 1.0, 1.0) if threads == 1 else (1.0, 0.5, threads / 2)
    assert shares[1:4] == pytest.approx(expected)
    assert shares.threads == threads


def test_a_system_without_a_load_average_is_probed_all_the_same(monkeypatch):
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert cores.probe(2).load is None
    assert cores.are_free(cores.probe(2))


def test_blocks_are_hashed_until_the_time_is_over():
    """A clock that moves by 0.1 s a look, and a processor that gave half of that."""
    ticks = itertools.count()
    used = iter([10.0, 10.25])
    work = cores.hashed(0.45, clock=lambda: next(ticks) * 0.1, processor=lambda: next(used))
    assert work.blocks == 4
    assert work.got == pytest.approx(0.25)
    assert work.wanted == pytest.approx(0.6)


def test_all_threads_of_a_look_count(monkeypatch):
    """Whatever they did: three threads of which each hashed two blocks."""
    monkeypatch.undo()  # the probe of all other tests is a stand-in
    monkeypatch.setattr(cores, "hashed", lambda seconds: Work(2, 0.5 * seconds, seconds))
    assert cores.together(3) == pytest.approx(Work(6, 1.5 * cores.SECONDS, 3 * cores.SECONDS))
