"""Wrong answers that looked right once: the first check that fails names the idea behind the mistake."""

import pytest

from speclab.learner import checklist
from tests.exercises.conftest import in_words, with_wrong_answer, wrong_answers
from tests.exercises.ex08_bugs import module, seeded
from tests.exercises.test_ex15_token_trees import cause_of_places
from tests.exercises.wrong_table import cases, checks_of

ZERO = "0.0 is a reading like any other"
WHOLE_ROUND = "not all or nothing"
OWN_ID = "judged by the probabilit"
STRICT = "> and not >="


def first_message(learner, stem: str) -> tuple[str, str]:
    """The first check that fails, and what it says."""
    exercise = next(exercise for exercise in checklist.exercises() if exercise.stem == stem)
    for name, check in checks_of(exercise).items():
        for case in cases(check):
            try:
                check(learner, **case)
            except (Exception, pytest.fail.Exception) as error:
                return name, in_words(error)
    return "", ""


@pytest.mark.parametrize(
    ("stem", "answer", "words"),
    [
        ("ex00_measuring", "a reading of 0.0 is taken for none", ZERO),
        ("ex00_measuring", "a prefill of no time is taken for none", ZERO),
        ("ex00_measuring", "a rate without its fraction", "// and int() cut the fraction off"),
        ("ex00_measuring", "a division by no time", "no time has passed, so there is nothing to rate"),
        ("ex01_shapes", "one row of logits, for the last token", "one row, for the last token"),
        ("ex01_shapes", "the logits have no axis of fed tokens", "one row, for the last token"),
        ("ex01_shapes", "the bonus row judges them all", "the last row, which belongs to the bonus token"),
        ("ex01_shapes", "the largest probability of each row", "the largest probability of each row"),
        ("ex01_shapes", "a softmax of probabilities", "they are probabilities already"),
        ("ex01_shapes", "is the draft the most probable id?", "asked for is its probability"),
        ("ex02_greedy", "all or nothing", WHOLE_ROUND),
        ("ex02_greedy", "all or nothing, in the round", WHOLE_ROUND),
        ("ex04_rejection", "a bound on the sum of the residual", "divide by every sum above 0"),
        (
            "ex04_rejection",
            "all or nothing: the drafts before the first rejected one are thrown away",
            "all or nothing",
        ),
        ("ex04_rejection", "all or nothing: after a rejection the round is plain decoding", "all or nothing"),
        (
            "ex04_rejection",
            "the largest probabilities of the rows are compared; a draft is judged by the probabilities of its own id",
            OWN_ID,
        ),
        (
            "ex04_rejection",
            "the target's largest probability is used; a draft is judged by the probability of its own id",
            OWN_ID,
        ),
        (
            "ex04_rejection",
            "every draft is tested with the target's last row, which is the bonus token's",
            "the target's last row, which is the bonus token's",
        ),
        ("ex04_rejection", "a softmax of probabilities: they are probabilities already", "a softmax of probabilities"),
        ("ex06_draft_length", "the longer of two equally fast lengths", STRICT),
        ("ex06_draft_length", "a draft of 8 for an alpha of 0", "no draft is ever accepted"),
    ],
)
def test_the_first_message_names_the_idea(stem, answer, words):
    _, said = first_message(with_wrong_answer(stem, *wrong_answers(stem)[answer]), stem)
    assert words in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0, 1, 2, 4, 6], "the last committed token is missing: it is row 0 and lies at place 3"),
        ([3, 4, 6], "the text before is missing, places [0, 1, 2]"),
        ([0, 1, 2, 3, 4], "token 2 of the path is missing: it is row 3, and row r lies at length + r"),
        ([0, 1, 2, 3, 4, 5, 6], "place 5 holds no token of the path: row r lies at length + r, token i is row i + 1"),
        ([0, 1, 2, 3, 6, 4], "every place stays once, in the order of the text"),
    ],
)
def test_a_wrong_order_of_the_cache_gets_its_cause(given, words):
    """Exercise 15, for answers that are none of the well-known mistakes: 3 tokens in the cache, path [0, 2]."""
    assert cause_of_places([0, 2], 3, given) == words


@pytest.mark.parametrize(
    ("right", "wrong", "check", "words"),
    [
        (
            "draws[:, :draft_length], draws[:, draft_length:]",
            "draws, draws",
            "test_nothing_else_is_broken",
            "have drawn the draft already",
        ),
        ("n_accepted, n_rejected = i + 1, 0", "n_accepted = i + 1", "test_nothing_follows_an_end_of_text", "neither"),
        (
            "n_accepted, n_rejected = i + 1, 0",
            "n_accepted, n_rejected = i + 1, 0\n                else:\n                    n_rejected = 0",
            "test_nothing_follows_an_end_of_text",
            "the end of text is the correction here",
        ),
    ],
    ids=["uniforms used twice", "n_rejected not reset", "n_rejected always reset"],
)
def test_a_wrong_loop_is_named(right, wrong, check, words):
    """Exercise 8: what its checks have let pass."""
    source = seeded(())
    assert right in source
    name, said = first_message(module(source.replace(right, wrong)), "ex08_bug_hunt")
    assert (name, words in said) == (check, True), said
