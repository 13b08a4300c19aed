"""Two servers' texts: a difference is a tie where the plain server's own log-probabilities say so, and nowhere else."""

import random

import pytest

from speclab.extensions.servers import __main__ as asks
from speclab.extensions.servers import diagnose
from speclab.extensions.servers.__main__ import SAME, TIED, UNEXPLAINED, UNJUDGED, Step, verdict

STEPS = [Step("The ", {"The ": -0.1}), Step("cat", {"cat": -0.7, "dog": -0.8, "c": -5.0}), Step(" sat", {" sat": -0.2})]


@pytest.mark.parametrize(
    ("other", "gap", "expected"),
    [
        ("The dog ran", 0.1, TIED),
        ("The dog ran", asks.TIE + 0.01, UNEXPLAINED),
        ("The cow ran", 0.0, UNEXPLAINED),  # a token that the plain server does not think of; "c" is far away
        ("The ", 0.0, UNJUDGED),  # it ended there
        ("The cat sat on", 0.0, UNJUDGED),  # asked again, the plain server writes the same
    ],
)
def test_a_difference(other, gap, expected):
    steps = [STEPS[0], Step("cat", {"cat": -0.7, "dog": -0.7 - gap, "c": -5.0}), STEPS[2]]
    assert verdict(steps, "The cat sat", other) == expected
    again = [STEPS[0], Step("cow", {"cow": -0.7, "dog": -0.7})]
    assert verdict(again, "The cat sat", "The dog ran") == UNJUDGED, "asked again, it writes a third text"


def test_what_cannot_be_read_is_not_judged():
    assert verdict([], "The cat", "The dog") == UNJUDGED
    assert verdict([Step("\ufffd", {"\ufffd": 0.0, "x": 0.0})], "\ufffd", "xy") == UNJUDGED
    assert verdict([Step("", {})], "z", "xy") == UNJUDGED


def altered(place, step):
    def text_of(prompt, n):
        start = sum(map(ord, prompt))
        return [f"{start + i + (step if i >= place else 0)} " for i in range(n)]

    return text_of


@pytest.mark.parametrize(("step", "top", "expected"), [(1, -0.2, TIED), (1, -2.0, UNEXPLAINED), (5, -0.2, UNEXPLAINED)])
def test_a_server_that_writes_another_text(fake, plain, command, step, top, expected):
    fake.text_of = altered(4, step)
    plain.top = lambda place, token: {token: -0.1, f"{int(token) + 1} ": top}
    code, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert code == (expected == UNEXPLAINED)
    assert ("the text is wrong" in out) == (expected == UNEXPLAINED)
    assert f"0 of 12 greedy texts, 12 {expected}" in out


def test_equal_texts_are_not_asked_for_again(fake, plain, command):
    code, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert code == 0
    assert "12 of 12 greedy texts" in out
    assert all(body.get("stream") for body in plain.asked), SAME


def drawn_anew(prompt, n):
    """Return other words every time, as a server does that samples."""
    return [f"{random.randrange(10**6)} " for _ in range(n)]


@pytest.mark.parametrize(
    ("text_of", "cause"),
    [
        (altered(4, 5), diagnose.LENIENT),  # alone, the first tokens are the same: drafts are at fault
        (altered(0, 5), diagnose.OTHER_TARGET),
        (drawn_anew, diagnose.SAMPLES),
    ],
)
def test_single_tokens_and_second_requests_say_why_a_text_is_wrong(fake, plain, command, text_of, cause):
    fake.text_of = text_of
    code, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert code == 1
    assert cause in " ".join(out[out.index("ANSWER") :].split())
    assert len(out.splitlines()) <= 25
    single = [body for body in plain.asked if body["max_tokens"] == 1]
    assert 0 < len(single) <= asks.PLACES * asks.MOST_PAIRS


def test_a_server_that_answers_no_single_token_leaves_that_open(fake, plain, command, monkeypatch):
    fake.text_of = altered(4, 5)
    monkeypatch.setattr(asks, "FEWEST_ALONE", 1000)
    code, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert code == 1
    assert diagnose.OTHER_TARGET in " ".join(out[out.index("ANSWER") :].split())
