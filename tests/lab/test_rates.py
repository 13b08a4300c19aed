"""The rate that a script prints, by exact counts: a clock moves where it is told to.

Times are quarters of seconds, so float64 holds them exactly and nothing here is approximate but for the last division.
"""

from types import SimpleNamespace

from speclab.cli import decoding as decoding_cli
from speclab.core.rounds import DecodeSettings, Round


class Clock:
    """It moves when it is told to."""

    def __init__(self, monkeypatch, *modules):
        self.now = 0.0
        for module in modules:
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))


ENDING = DecodeSettings(30, eos=frozenset({9}))


def text_of(clock: Clock, *seconds: float):
    """A prompt's own pass of 100 s; rounds of three tokens and of these seconds, the last of which meets an end token.

    After the end token one token more was generated, and one drafted token was accepted.
    """
    clock.now += 100
    yield Round.committing([1], 1, ENDING, prefill=True)
    for i, taken in enumerate(seconds):
        clock.now += taken
        last = i == len(seconds) - 1
        yield Round.committing([1, 9 if last else 2, 3], 4 + 3 * i, ENDING, 4, 2, 1)


def test_a_script_prints_its_exact_rate(monkeypatch):
    """Seconds in which a text is shown are nobody's; what follows an end token is not counted."""
    clock = Clock(monkeypatch, decoding_cli)
    decoded = decoding_cli._Decoded(None, None)
    for seconds in ((0.5, 0.25, 0.25), (0.5, 1.0)):
        for _ in decoded._timed(text_of(clock, *seconds)):
            clock.now += 50  # it is shown
    assert (decoded.counts.n_rounds, decoded.counts.n_emitted, decoded.counts.n_accepted) == (5, 13, 10)
    assert (decoded.n_tokens, decoded.seconds, decoded.counts.n_after_eos) == (15, 2.5, 2)
    assert decoded.speed() == (
        "\n15 tokens, 13 of them decoded after the prompts' own passes in 2.50 s: 5.2 tok/s; 2 more after an end token "
        "were dropped"
    )
