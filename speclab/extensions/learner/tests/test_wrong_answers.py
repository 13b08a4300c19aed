"""Wrong answers that are easy to give: each fails a check, and the first check that fails names the idea behind it."""

import re

import pytest

from speclab.extensions.learner import checks
from tests.exercises.answers import VOICES, copy_of, failures, mistaken, mistakes, with_mistakes

# An exception and a time limit say that something is wrong, and not what.
NO_WORDS = re.compile(r"\w*(Error|Exception|Iteration|Exit|Interrupt)\b|still running|\w+ returned None")
STEMS = [exercise.stem for exercise in checks.exercises() if exercise.number != 8]  # that one has its own table


@pytest.mark.parametrize("stem", STEMS)
def test_every_known_wrong_answer_fails_a_check(stem):
    """And says why in words: no bare assertion, no exception from inside the check. The words are about the code, "it
    looks as if yours ...", or about the rule, "remember: ..."."""
    assert len(mistakes(stem)) >= 2
    for answer in mistakes(stem):
        _, said = next(failures(mistaken(stem, answer), stem), ("", ""))
        assert said, f"no check notices: {answer}"
        assert not said.startswith("assert "), answer
        assert NO_WORDS.match(said) or VOICES.search(said), f"{answer}: {said}"


STATISTIC = "test_sampled_rounds_follow_the_targets_law"


@pytest.mark.parametrize(
    "mistake",
    [
        "the correction is drawn from the target's row, not from the residual",
        "u <= p / q lets a token of target probability 0 pass at u = 0",
        "the bonus token is drawn from the draft's last row",
    ],
)
def test_the_statistic_of_exercise_four_notices_by_itself(mistake):
    """The exact checks run before it and would hide that it notices nothing."""
    stem = "ex04_rejection"
    found = dict(failures(mistaken(stem, mistake), stem))
    assert found[STATISTIC].endswith(f": {mistake}")


@pytest.mark.parametrize(
    ("right", "wrong", "check"),
    [
        ("draws[:, :draft_length], draws[:, draft_length:]", "draws, draws", "test_nothing_else_is_broken"),
        ("n_accepted, n_rejected = i + 1, 0", "n_accepted = i + 1", "test_nothing_follows_an_end_of_text"),
        (
            "n_accepted, n_rejected = i + 1, 0",
            "n_accepted, n_rejected = i + 1, 0\n                else:\n                    n_rejected = 0",
            "test_nothing_follows_an_end_of_text",
        ),
    ],
    ids=["uniforms used twice", "n_rejected not reset", "n_rejected always reset"],
)
def test_a_wrong_loop_fails_its_check(right, wrong, check):
    """Exercise 8: what its checks have let pass."""
    stem = "ex08_bug_hunt"
    source = with_mistakes(stem)
    assert right in source
    assert next(failures(copy_of(stem, source.replace(right, wrong)), stem))[0] == check
