"""Every known wrong answer against every check of its exercise: which check notices what.

    python -m tests.exercises.wrong_table        # Markdown, a table per exercise; a few seconds

Exercise 8 seeds its bugs in another way and has a table of its own (tests/exercises/ex08_bugs.py).
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from speclab.learner import checklist
from speclab.learner.guard import NeverEnds, at_most
from speclab.present.tables import table
from speclab.system.errors import reports_problems
from tests.exercises.conftest import in_words, with_wrong_answer, wrong_answers


def checks_of(exercise: checklist.Exercise) -> dict[str, Callable]:
    """Name -> check, in the order of the file."""
    file = vars(importlib.import_module(f"tests.exercises.test_{exercise.stem}"))
    return {name: check for name, check in file.items() if name.startswith("test_") and takes_learner(check)}


def takes_learner(function: Callable) -> bool:
    """A check's first argument is the module under test."""
    return next(iter(inspect.signature(function).parameters), None) == "learner"


def cases(function: Callable) -> list[dict]:
    """The arguments beside `learner` that a check is run with, one dict for every case."""
    marks = [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    if not marks:
        return [{}]
    ((names, values),) = marks
    return [{names: v} if isinstance(names, str) else dict(zip(names, v, strict=True)) for v in values]


def message(function: Callable, learner: ModuleType) -> str | None:
    """What a check says of a module under test; None where it passes in every case."""
    for case in cases(function):
        try:
            with at_most(1, 5):
                function(learner, **case)
        except NeverEnds:
            return "still running: a loop without an end?"
        except (Exception, pytest.fail.Exception) as error:
            return in_words(error)
    return None


def messages(exercise: checklist.Exercise, first: bool = False) -> dict[str, dict[str, str | None]]:
    """Wrong answer -> check -> what it says. Empty for an exercise without a table here.

    first: each wrong answer only up to the first check that fails.
    """
    found: dict[str, dict[str, str | None]] = {}
    for answer, wrong in wrong_answers(exercise.stem).items():
        by_check = found[answer] = {}
        for name, check in checks_of(exercise).items():
            by_check[name] = message(check, with_wrong_answer(exercise.stem, *wrong))
            if first and by_check[name] is not None:
                break
    return found


@reports_problems
def main() -> int:
    missed = 0
    for exercise in checklist.exercises():
        found = messages(exercise)
        if not found:
            continue
        print(f"### Exercise {exercise.number}: {exercise.title}\n")
        for number, name in enumerate(checks_of(exercise), 1):
            print(f"{number}. {name.removeprefix('test_').replace('_', ' ')}")
        rows = [[answer, *("fails" if text else "" for text in by.values())] for answer, by in found.items()]
        missed += sum(not any(by.values()) for by in found.values())
        headers = ["wrong answer", *map(str, range(1, len(rows[0])))]
        print(f"\n{table(rows, headers, markdown=True)}\n")
    print(f"{missed} wrong answers pass every check")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
