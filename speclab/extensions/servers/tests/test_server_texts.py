"""Two servers' texts: a difference is a tie where the plain server's own log-probabilities say so, and nowhere else."""

import pytest

from speclab.extensions.servers.ask import texts
from speclab.extensions.servers.ask.texts import SAME, TIED, UNEXPLAINED, UNJUDGED, Step, verdict

STEPS = [Step("The ", {"The ": -0.1}), Step("cat", {"cat": -0.7, "dog": -0.8, "c": -5.0}), Step(" sat", {" sat": -0.2})]


@pytest.mark.parametrize(
    ("other", "gap", "expected"),
    [
        ("The dog ran", 0.1, TIED),
        ("The dog ran", texts.TIE + 0.01, UNEXPLAINED),
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
