"""The limits on running code: handlers and timers are as before when a limit ends, whenever its alarm rings."""

import contextlib
import signal

import pytest

from speclab.learner import guard
from speclab.learner.guard import NeverEnds, at_most

pytestmark = pytest.mark.skipif(not guard.has_alarm(), reason="this system has no alarms")
ALARMS = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL} if guard.has_alarm() else {}


@pytest.fixture(autouse=True)
def _as_before():
    before = {number: signal.getsignal(number) for number in ALARMS}
    yield
    try:
        assert {number: signal.getsignal(number) for number in ALARMS} == before
        assert all(signal.getitimer(timer) == (0, 0) for timer in ALARMS.values())
    finally:
        for number, handler in before.items():
            signal.setitimer(ALARMS[number], 0)
            signal.signal(number, handler)


@pytest.mark.parametrize("number", list(ALARMS))
def test_an_alarm_that_rings_while_the_limit_ends_is_nobodys(number, monkeypatch):
    """It comes between the last line inside and the end of its timer."""
    honest = signal.setitimer

    def late(timer, *seconds):
        signal.raise_signal(number)
        return honest(timer, *seconds)

    with at_most(1000, 1000):
        monkeypatch.setattr(signal, "setitimer", late)
        rings_at_the_end = signal.getsignal(number)
        signal.signal(number, lambda *args: monkeypatch.undo() or rings_at_the_end(*args))


@pytest.mark.parametrize("number", list(ALARMS))
def test_an_alarm_inside_is_raised_even_where_it_is_caught(number):
    def catches() -> None:
        with contextlib.suppress(NeverEnds):
            signal.raise_signal(number)

    with pytest.raises(NeverEnds, match="1000 s"), at_most(1000, 1000):
        catches()


def test_a_limit_inside_another_gives_it_its_time_back():
    with at_most(1000, 1000):
        outer = {number: signal.getsignal(number) for number in ALARMS}
        with at_most(100, 1000):
            assert 0 < signal.getitimer(signal.ITIMER_PROF)[0] <= 101
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 101
        assert {number: signal.getsignal(number) for number in ALARMS} == outer
        for timer in ALARMS.values():
            seconds, repeat = signal.getitimer(timer)
            assert seconds > 101
            assert repeat == guard.REPEAT
