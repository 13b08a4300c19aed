"""How good are the checks of the exercises? Wrong answers made by program (mutations.py), every check on each.

    python -m speclab.extensions.learner.wrong_answers      # write results/wrong-answers.md; minutes on two cores
    python -m speclab.extensions.learner.wrong_answers 3 --mutants 999    # what becomes of every change of exercise 3

What comes out: how many of the changed solutions a check notices, how many of those with words of the check's own, and
the changes that nothing notices. Each of these is either no mistake at all, and its reason stands in
equivalent_answers.toml, or a hole in the checks; then the exit code is 1. Every answer runs in a process of its own,
under limits of time and memory (trials.py). What has been measured is kept: a run that was stopped goes on where it
was, as long as the code is the same. Needs a system that can fork (Linux, macOS).
"""

import datetime
import functools
import importlib
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from speclab.cli import parsing
from speclab.extensions.learner import checklist, trials
from speclab.extensions.learner.mutations import Mutant, mutants, sample
from speclab.present.tables import table
from speclab.system import paths
from speclab.system.errors import reports_problems
from speclab.system.files import write_whole
from speclab.system.terminal import note

PAGE = paths.ROOT / "results" / "wrong-answers.md"
EQUIVALENT = Path(__file__).with_name("equivalent_answers.toml")
N_MUTANTS = 60  # of each exercise
# The checks of the first chapters have small examples alone, and their functions may use up what they are given.
LARGE_FROM, LARGE_KINDS = 9, ("cap a loop", "mutate in place", "cast", "read one component")
LIMITS = trials.Limits(case=10, answer=600)  # the slowest case of a right answer takes one second
# An exception, a time limit and the end of Python say that something is wrong, and not what.
NO_WORDS = re.compile(r"\w*(Error|Exception|Iteration|Exit|Interrupt)\b|still running|did not run|\w+\.py cannot")


class Outcome(NamedTuple):
    """What became of one wrong answer."""

    mutant: Mutant
    messages: list[str]  # of the checks that fail

    @property
    def caught(self) -> bool:
        """Does a check fail?"""
        return bool(self.messages)

    @property
    def in_words(self) -> bool:
        """Does a check say what is wrong, not only which exception came or that nothing came?"""
        return any(not NO_WORDS.match(message) for message in self.messages)

    @property
    def hung(self) -> bool:
        """Was it stopped?"""
        return any(message.startswith(trials.STILL_RUNNING) for message in self.messages)


# --- one answer in a copy of this process -----------------------------------------------------------------------------


def failing_checks(stem: str, source: str, seconds: float) -> list[str]:
    """What the checks of an exercise say that fail on another source of its solution.

    seconds: by the clock, for one case of a check.
    """
    names = ("conftest", "answers", "ex08_bugs")
    conftest, answers, ex08_bugs = (importlib.import_module(f"tests.exercises.{name}") for name in names)
    conftest.limit_memory()
    learner = ex08_bugs.module(source, f"solutions.{stem}")
    return [message for _, message in answers.failures(learner, stem, seconds)]


def run_all(
    exercise: checklist.Exercise, mutants: list[Mutant], jobs: int, store: trials.Kept | None = None
) -> list[Outcome]:
    """What becomes of each answer, in their order, `jobs` of them at a time.

    store: what has been measured before is taken from there, and what is measured is kept there.
    """
    found: dict[int, list[str]] = {}
    for index, mutant in enumerate(mutants):
        messages = store.get(exercise.stem, mutant.source) if store is not None else None
        if messages is not None:
            found[index] = messages
    left = [index for index in range(len(mutants)) if index not in found]
    test = functools.partial(failing_checks, exercise.stem)
    for place, messages in trials.try_all(test, [mutants[index].source for index in left], LIMITS, jobs):
        found[left[place]] = messages
        if store is not None:
            store.add(exercise.stem, mutants[left[place]].source, messages)
    return [Outcome(mutant, found[index]) for index, mutant in enumerate(mutants)]


def equivalents() -> dict[str, dict[str, str]]:
    """ex03 -> a change that is no mistake -> the reason."""
    return tomllib.loads(EQUIVALENT.read_text("utf-8"))


def survivors(exercise: checklist.Exercise, outcomes: list[Outcome]) -> tuple[dict[str, str], list[str]]:
    """The changes that no check notices: those that are no mistake, with the reason, and the others."""
    known = equivalents().get(exercise.stem[:4], {})
    names = [outcome.mutant.name for outcome in outcomes if not outcome.caught]
    return {name: known[name] for name in names if name in known}, [name for name in names if name not in known]


def answers_of(exercise: checklist.Exercise, n: int, seed: int) -> list[Mutant]:
    """At most `n` wrong answers to an exercise."""
    return sample(possible_answers(exercise), n, seed)


def possible_answers(exercise: checklist.Exercise) -> list[Mutant]:
    """All wrong answers that the program makes to an exercise."""
    found = mutants(exercise.path("solutions").read_text("utf-8"))
    return [mutant for mutant in found if exercise.number >= LARGE_FROM or mutant.kind not in LARGE_KINDS]


# --- the page ---------------------------------------------------------------------------------------------------------

ABOUT = """\
# Wrong answers, made by program

How much do the checks of the exercises notice? `python -m speclab.extensions.learner.wrong_answers` changes the
solutions at one place at a time (a comparison, a number, an index, a name, a sign, a dropped statement, ...) and runs
every check on each result.
{made} of {possible} possible changes, chosen with seed {seed}, {date}.
"""
LEGEND = """\
Caught: at least one check fails. In words: at least one failed check says what is wrong. The others
end in an exception of Python's own, such as a NameError, which is shown with its line. Stopped: one case of a check ran
for {seconds:g} s, or all checks for too long, and when it was tried again three times as long; counted as caught. No
mistake: no check fails, and the answer is as good as the solution; `speclab/extensions/learner/equivalent_answers.toml`
has the reasons. Missed: no check fails, and the answer is wrong.
"""


def page(results: list[tuple[checklist.Exercise, list[Outcome], int]], seed: int, date: str) -> str:
    """The page about (exercise, what became of its wrong answers, how many are possible)."""
    rows, listed, total = [], [], Counter[str]()
    for exercise, outcomes, possible in results:
        fine, missed = survivors(exercise, outcomes)
        row = {
            "made": len(outcomes),
            "caught": sum(outcome.caught for outcome in outcomes),
            "in words": sum(outcome.in_words for outcome in outcomes),
            "stopped": sum(outcome.hung for outcome in outcomes),
            "no mistake": len(fine),
            "missed": len(missed),
        }
        total.update(row)
        total["possible"] += possible
        rows.append([f"{exercise.number}. {exercise.title}", *map(str, row.values())])
        listed += [f"- {exercise.number}, `{name}`" for name in missed]
    headers = ["exercise", "made", "caught", "in words", "stopped", "no mistake", "missed"]
    rows.append(["all", *(str(total[name]) for name in headers[1:])])
    about = ABOUT.format(made=total["made"], possible=total["possible"], seed=seed, date=date)
    missed_ones = "\n## Missed\n\n" + "\n".join(listed) + "\n" if listed else ""
    return f"{about}\n{table(rows, headers, markdown=True)}\n\n{LEGEND.format(seconds=LIMITS.case)}{missed_ones}"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the checks on wrong answers and write the page.  -> exit code"""
    known = checklist.exercises()
    parser = parsing.make_parser(__doc__)
    parser.add_argument("exercise", nargs="?", type=int, choices=[e.number for e in known], help="only print this one")
    parser.add_argument(
        "--mutants", type=parsing.at_least(1), default=N_MUTANTS, help="wrong answers per exercise (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones are chosen")
    parser.add_argument("--jobs", type=parsing.at_least(1), default=2, help="how many at a time")
    args = parser.parse_args(argv)
    results, n_missed, store = [], 0, trials.kept(LIMITS)
    if len(store):
        note(f"{len(store)} answers were measured before, with the same code; they are not measured again")
    for exercise in known:
        if args.exercise not in (None, exercise.number):
            continue
        _warm(exercise)
        outcomes = run_all(exercise, answers_of(exercise, args.mutants, args.seed), args.jobs, store)
        missed = survivors(exercise, outcomes)[1]
        n_missed += len(missed)
        results.append((exercise, outcomes, len(possible_answers(exercise))))
        n_caught = sum(outcome.caught for outcome in outcomes)
        print(f"exercise {exercise.number}: {n_caught} of {len(outcomes)} caught, {len(missed)} missed", flush=True)
        for outcome in outcomes:
            if args.exercise is not None:
                print(f"  {outcome.mutant.name}\n      {next(iter(outcome.messages), 'no check fails')}")
            elif outcome.mutant.name in missed:
                print(f"  missed: {outcome.mutant.name}")
    if args.exercise is None:
        write_whole(PAGE, page(results, args.seed, datetime.date.today().isoformat()))
        store.drop()
    return int(n_missed > 0)


def _warm(exercise: checklist.Exercise) -> None:
    """Import what the checks need once, before the copies are made."""
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module(f"tests.exercises.test_{exercise.stem}")


if __name__ == "__main__":
    sys.exit(main())
