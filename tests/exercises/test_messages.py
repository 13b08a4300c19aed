"""What a check says about a mistake that is easily made: the right cause, and not the cause of another mistake."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from exercises import Todo
from tests.exercises.conftest import with_wrong_answer, wrong_answers
from tests.exercises.wrong_table import cases, takes_learner

FLAT = "is your text a flat list of ids?"


def said(learner: ModuleType, checks: ModuleType) -> Iterator[tuple[str, str]]:
    """(check, message) of every check that fails, and of every case of it."""
    for name, check in vars(checks).items():
        if not name.startswith("test_") or not takes_learner(check):
            continue
        for case in cases(check):
            try:
                check(learner, **case)
            except Todo:
                raise
            except (Exception, pytest.fail.Exception) as error:
                yield name, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("stem", "mistake", "check", "words", "never"),
    [
        (
            "ex02_greedy",
            "agreements after the first rejected draft count",
            "a_round_commits_what_is_accepted_and_one_more",
            "agreements after the first rejected draft",
            "rejected or not",
        ),
        (
            "ex02_greedy",
            "drafting stops at an end, the question does not",
            "end_of_text_inside_a_block",
            "you drafted fewer ids",
            "positions",
        ),
        (
            "ex04_rejection",
            "the bonus token is forgotten",
            "the_first_rejection_ends_the_round",
            "the bonus token, from the target's last row",
            "TypeError",
        ),
        ("ex04_rejection", "the bonus token is forgotten", "one_drafted_token", "return a pair", "TypeError"),
        (
            "ex04_rejection",
            "the correction comes from the target",
            "one_drafted_token",
            "position 0: p = (",
            "TypeError",
        ),
        ("ex07_ngram", "a text that is a list in a list", "a_proposal_has_the_form", FLAT, "TypeError"),
        ("ex07_ngram", "a text that is a list in a list", "the_text_is_what_was", FLAT, "a proposal is no text"),
        ("ex07_ngram", "a text that is a list in a list", "copied_text", FLAT, "TypeError"),
        ("ex07_ngram", "an empty proposal of floats", "the_labs_loop", "have the dtype torch.long", "TypeError"),
    ],
)
def test_a_message_names_the_cause(stem, mistake, check, words, never):
    """In every case of the check that fails."""
    learner = with_wrong_answer(stem, *wrong_answers(stem)[mistake])
    checks = importlib.import_module(f"tests.exercises.test_{stem}")
    found = [message for name, message in said(learner, checks) if name.startswith(f"test_{check}")]
    assert found
    for message in found:
        assert words in message
        assert never not in message
