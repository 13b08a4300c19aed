"""Servers with a fault each, as users meet them: the command names the fault, and shows no number that is not true.

The servers are simulated, and their clock is planted: each event carries the seconds at which it comes.
"""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from speclab.extensions.servers import client
from speclab.extensions.servers.client import Stream
from speclab.extensions.servers.diagnose import (
    BUSY,
    DAMAGED,
    DEFAULTS,
    FOREIGN,
    LITTLE,
    LOAD,
    SAMPLES,
    STATES,
    TOO_LONG,
)  # fmt: skip
from speclab.extensions.servers.tests.simulated import Simulated, usual_text

STEP = 0.02  # seconds of a plain token
SOUND = (0.7, 0.7, 0.7, 0.7)
ROUND = 1.5  # plain tokens
PINGS = b": ping\r\n\r\nevent: x\r\n"


class Timed(Stream):
    """Its clock is what the events say."""

    def __init__(self, url, n_tokens):
        self.now = 0.0
        super().__init__(url, n_tokens, clock=lambda: self.now)

    def _line(self, line):
        if at := re.search(rb'"at": ([\d.e-]+)', line):
            self.now = float(at[1])
        super()._line(line)


@pytest.fixture
def servers(monkeypatch):
    """Make two servers, which are sound until a row damages them: fake speculates, plain does not."""
    monkeypatch.setattr(client, "Stream", Timed)
    made = []

    def make(engine="vllm"):
        fake, plain = Simulated(engine, SOUND, seed=5), Simulated(engine)
        made.extend([fake.__enter__(), plain.__enter__()])
        fake.pace = lambda text, number: 0.1 + ROUND * STEP * number
        plain.pace = lambda text, number: 0.1 + STEP * number
        return SimpleNamespace(fake=fake, plain=plain)

    yield make
    for one in made:
        one.__exit__()


def alter(both, server="fake", **values):
    """Set what a server does."""
    for name, value in values.items():
        setattr(getattr(both, server), name, value)


def slow_texts(fast, slow):
    """Rounds that are dear on some texts and cheap on others."""
    return lambda text, number: 0.1 + STEP * number * (fast if len(text) % 2 else slow)


def default_penalty(both, sent):
    """A penalty of the server's own default changes the text, where a request does not unset it."""

    def text_of(prompt, n):
        unset = not sent or both.fake.asked[-1].get("repetition_penalty") != 1.0
        return usual_text(prompt + "!" * unset, n)

    both.fake.text_of = text_of


def samples(both):
    count = iter(range(10**6))
    both.fake.text_of = lambda prompt, n: usual_text(prompt + "!" * (next(count) % 97), n)


def hide(both, usage="end", on_both=False):
    """Neither server speculates, as far as anybody can tell, and tokens come before the first text."""
    alter(both, rates=(), pace=both.plain.pace, hidden=0.5, usage=usage)
    both.plain.hidden = 0.5 * on_both


def end_token(both):
    hide(both)
    alter(both, hidden=0.0, end_token=True)
    both.plain.text_of = lambda prompt, n: usual_text(prompt, n)[:-1]


def later(both):
    usual = both.fake.pace
    both.fake.pace = lambda text, number: 3.0 + usual(text, number)


def near_tie(both):
    tied = lambda prompt, n: [*usual_text(prompt, 9), *usual_text(prompt, n)[10:n], "7 "]  # noqa: E731
    alter(both, sampled=(SOUND, tied))
    both.plain.top = lambda place, token: {token: -0.7, f"{int(token) + 1} ": -0.8}


def counting(generated, rounds):
    names, lines = ("drafts", "draft_tokens", "accepted_tokens"), []
    for engine, n_tokens, values in zip("01", generated, rounds, strict=True):
        lines.append(f'vllm:generation_tokens_total{{engine="{engine}"}} {n_tokens}\n')
        for name, value in zip(names, values, strict=True):
            lines.append(f'vllm:spec_decode_num_{name}_total{{engine="{engine}"}} {value}\n')
    return "".join(lines)


def events(*data):
    return b"".join(b"data: " + one + b"\n\n" for one in data)


PAGE = counting((100, 1000), ((20, 80, 60), (400, 1600, 600)))
RESTARTED = counting((2000, 200), ((500, 2000, 1400), (50, 200, 110)))  # the sums of both engines go on
HUGE = "vllm:inter_token_latency_seconds_count 1e308\nvllm:inter_token_latency_seconds_sum 1e308\n"
FINE, USELESS = ["nothing is wrong"], (0.005, 0.0, 0.0, 0.0)
TOO_HIGH = events(b'{"choices": [{"text": "x"}]}', b'{"usage": {"completion_tokens": 9999}}', b"[DONE]")
WHOLE = b'{\n"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 8}}'


class Row(NamedTuple):
    """One fault. says, hides: what the screen has, or has not; low, high: between which the speedup is shown."""

    damage: Callable = lambda both: None
    says: list[str] = FINE
    hides: list[str] = []  # noqa: RUF012
    engine: str = "vllm"
    code: int = 0
    between: tuple[float, float] | None = None
    words: list[str] | dict[str, str] = []  # noqa: RUF012 - more flags, or the pages of two


PAYS, OTHER, EVEN = (1.7, 2.1), "other", (0.95, 1.05)


def answer(status, data):
    return lambda both: alter(both, answer=(status, data))


def rates(*values):
    return lambda both: alter(both, rates=values)


ROWS = {
    "a sound draft model": Row(hides=["not clear", "cause "], between=PAYS),
    "a sound draft on a server without counters": Row(engine=OTHER, between=PAYS),
    "a draft model with noise": Row(rates(*USELESS), [DAMAGED, FOREIGN], [STATES, "--kind"], words=["--kind", "model"]),
    "a head of other layers": Row(rates(0.04, 0.0, 0.0, 0.0), [STATES, DAMAGED], ["--kind"], words=["--kind", "head"]),
    "a lookup that finds nothing true": Row(
        rates(*USELESS), [LITTLE], [DAMAGED, STATES, FOREIGN], words=["--kind", "lookup"]
    ),
    "a draft of an unknown kind": Row(rates(*USELESS), [DAMAGED, STATES, "--kind model|head|lookup"]),
    "k = 12": Row(
        lambda both: alter(both, rates=(0.8, 0.7, 0.6, *[0.4] * 9), pace=slow_texts(1.3, 3.8)),
        ["not clear", TOO_LONG, "more prompts", "k = 3"],
        FINE,
    ),
    "a default penalty, which a request unsets": Row(
        lambda both: default_penalty(both, sent=True), [*FINE, "12 of 12"], between=PAYS
    ),
    "a default penalty that no request unsets": Row(
        lambda both: default_penalty(both, sent=False), [DEFAULTS, "the text is wrong", "sampling default"], code=1
    ),
    "a temperature that no request unsets": Row(samples, ["the text is wrong", SAMPLES], code=1),
    "five other clients": Row(
        lambda both: alter(both, running=5, busy=70, pace=slow_texts(1.3, 4.5)),
        [LOAD, BUSY, "others asked", "tok/rnd"],
        FINE,
    ),
    "no usage, one event a round": Row(
        lambda both: (alter(both, usage="none"), alter(both, "plain", usage="none")),
        ["events are no tokens", "12 of 12"],
        engine=OTHER,
        between=(1.6, 2.1),
    ),
    "usage halved on one server": Row(
        lambda both: alter(both, usage="half"), ["counts wrongly", "12 of 12"], engine=OTHER, between=(1.6, 2.1)
    ),
    "usage halved where ids are sent": Row(
        lambda both: alter(both, usage="half"), hides=["counts wrongly"], between=PAYS
    ),
    "usage too high": Row(answer(200, TOO_HIGH), ["sent", "were asked for"], code=3),
    "a slow first token": Row(later, between=PAYS),
    "pings and lines of another end": Row(
        lambda both: (alter(both, pings=PINGS), alter(both, "plain", pings=PINGS)), between=PAYS
    ),
    "counters that are late": Row(lambda both: alter(both, late=5), hides=["others asked"], between=PAYS),
    "status 429": Row(
        answer(429, b'{"error": {"message": "Rate limit reached."}}'), ["429: Rate limit reached; try again"], code=3
    ),
    "status 500": Row(answer(500, b"oops"), ["answers 500", "try again"], code=3),
    "an end in the middle": Row(answer(200, events(b'{"choices": [{"text": "x"}]}')), ["in the middle"], code=3),
    "a page of HTML": Row(
        answer(200, b"<!doctype html>\n<html><body>Welcome</body></html>"),
        ["a page of HTML"],
        ["in the middle"],
        code=3,
    ),
    "an answer that is not streamed": Row(answer(200, WHOLE), ["as a whole", "stream"], ["in the middle"], code=3),
    "tokens before the first text": Row(hide, ["were seen to arrive"], engine=OTHER, between=EVEN),
    "tokens before the first text, on both": Row(
        lambda both: hide(both, on_both=True), ["were seen to arrive"], engine=OTHER, between=EVEN
    ),
    "empty events with a usage that grows": Row(
        lambda both: hide(both, "each"), [], ["were seen"], OTHER, between=(0.99, 1.01)
    ),
    "an end token without text": Row(end_token, [], ["were seen"], OTHER, between=(0.99, 1.01)),
    "two engines, one of them started anew": Row(
        says=["went back"], code=3, words={"--before": PAGE, "--after": RESTARTED}
    ),
    "counters without a limit": Row(says=["no amount"], code=3, words={"--before": PAGE, "--after": PAGE + HUGE}),
    "garbage at a temperature of .05": Row(
        lambda both: alter(both, sampled=((0.0,) * 4, lambda prompt, n: usual_text(prompt + "!", n))),
        ["sampling is broken", "keeps none of", "rule out"],
        code=1,
    ),
    "a near tie at a temperature of .05": Row(near_tie, hides=["sampling"], between=PAYS),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_fault_is_named(row, servers, command, tmp_path):
    both = servers(row.engine)
    row.damage(both)
    words = ["--url", both.fake.url, "--plain-url", both.plain.url, "--max-new-tokens", 48, *row.words]
    if isinstance(row.words, dict):
        words = []
        for flag, page in row.words.items():
            (tmp_path / flag).write_text(page)
            words += [flag, tmp_path / flag]
    found, out, err = command(*words)
    text = " ".join((out + err).split())
    assert found == row.code, text
    assert [one for one in row.says if one not in text] == [], out + err
    assert [one for one in row.hides if one in text] == [], out + err
    assert len(out.splitlines()) <= 25
    assert "inf" not in text.split()
    if row.between:
        speedup = float(re.search(r"^all .*?([\d.]+)x", out, re.MULTILINE)[1])
        assert row.between[0] <= speedup <= row.between[1], out
