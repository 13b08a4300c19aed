"""Wrong answers by program: a few for each exercise are made, caught and explained; the page says what came out."""

import ast
import os
import re

import pytest

from speclab.extensions.learner import checklist, wrong_answers
from speclab.extensions.learner.mutations import mutants, sample

EXERCISES = checklist.exercises()
SOURCE = '''
def f(a: int, b: int) -> int:
    """Text."""
    total = 0
    for i in range(a):
        if i < b:
            total += i - 1
    return total


class C:
    def g(self, xs: list[int], n: int) -> list[int]:
        return xs[:n]
'''


def test_every_mutant_is_another_program():
    found = mutants(SOURCE)
    assert {"f", "C.g"} == {mutant.function for mutant in found}
    forms = {ast.dump(ast.parse(mutant.source)) for mutant in found}
    assert len(forms) == len(found)
    assert ast.dump(ast.parse(SOURCE)) not in forms
    assert len({mutant.name for mutant in found}) == len(found)


def test_the_usual_mistakes_are_among_them():
    assert {
        "if i < b: -> if i <= b:",
        "if i < b: -> if not i < b:",
        "total += i - 1 -> total += i + 1",
        "total += i - 1 -> total -= i - 1",
        "total += i - 1 -> pass",
        "for i in range(a): -> for i in range(b):",
        "for i in range(a): -> for i in range(a + 1):",
        "total = 0 -> total = 1",
        "return xs[:n] -> return xs[:n - 1]",
        "return xs[:n] -> return xs",
    } <= {mutant.change for mutant in mutants(SOURCE)}


def test_a_sample_is_seeded_and_spread():
    found = mutants(SOURCE)
    assert sample(found, 9, seed=1) == sample(found, 9, seed=1)
    assert sample(found, 9, seed=1) != sample(found, 9, seed=2)
    assert {mutant.function for mutant in sample(found, 9, seed=1)} == {"f", "C.g"}
    assert sample(found, 999, seed=1) == found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="every answer runs in a copy of the process")
@pytest.mark.parametrize(
    "exercise",
    [pytest.param(e, marks=[] if e.number % 3 == 0 else pytest.mark.full) for e in EXERCISES],
    ids=lambda exercise: exercise.stem,
)
def test_the_checks_notice_a_few_of_each(exercise):
    """Three of every exercise; those that are no mistake are known as such."""
    wrong_answers._warm(exercise)
    outcomes = list(wrong_answers.run_all(exercise, wrong_answers.answers_of(exercise, 3, seed=11), jobs=1))
    assert len(outcomes) == 3
    assert wrong_answers.survivors(exercise, outcomes)[1] == []
    assert any(outcome.in_words for outcome in outcomes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="every answer runs in a copy of the process")
def test_the_solution_itself_is_no_wrong_answer():
    exercise = EXERCISES[3]
    mutant = wrong_answers.Mutant("crop", "none", "none", exercise.path("solutions").read_text("utf-8"))
    wrong_answers._warm(exercise)
    (outcome,) = wrong_answers.run_all(exercise, [mutant], jobs=1)
    assert not outcome.caught
    assert wrong_answers.survivors(exercise, [outcome]) == ({}, ["crop: none"])


def test_what_is_listed_as_no_mistake_can_still_be_made():
    """A name that no change has any more would hide nothing, and says so here."""
    for exercise in EXERCISES:
        names = {mutant.name for mutant in mutants(exercise.path("solutions").read_text("utf-8"))}
        assert wrong_answers.equivalents().get(exercise.stem[:4], {}).keys() <= names, exercise.stem


def test_an_exception_is_no_words():
    for message in (
        "IndexError: list index out of range",
        "still running after 4 s: a loop?",
        "drafted [7]: 1 is kept",
    ):
        outcome = wrong_answers.Outcome(mutants(SOURCE)[0], [message])
        assert outcome.caught
        assert outcome.in_words == message.startswith("drafted")


def test_the_page_names_every_exercise_and_misses_nothing():
    text = wrong_answers.PAGE.read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| \d+\. ", line)]
    assert [cells[0].strip() for cells in rows] == [f"{e.number}. {e.title}" for e in EXERCISES]
    for cells in rows:
        made, caught, _, _, fine, missed = (int(cell) for cell in cells[1:])
        assert made >= 30
        assert caught + fine == made
        assert missed == 0
