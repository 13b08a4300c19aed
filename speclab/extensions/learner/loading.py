"""Which exercises a run uses: those that are asked for, that the run can use, and that have passed their checks.

Before anything is timed the checks of the exercises in use are run, and one that fails ends the run.
"""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

from speclab.drafts import registry
from speclab.extensions.learner import runner
from speclab.extensions.learner.ask import ask
from speclab.extensions.learner.checklist import Exercise, check_command, exercises, report
from speclab.extensions.learner.functions import BLOCK_RULE, BY_NUMBER, OWN_RUNS, ROLES, WHOLE_LOOP, Modules
from speclab.system.errors import Problem, UsageProblem
from speclab.system.terminal import note


def of_decoding(temperature: float, draft: str, auto: bool = False) -> set[int]:
    """What one speculative decoding can use. auto: with -k auto."""
    kind = registry.kind_of(draft)
    steps = kind is None or not (kind.is_lookup or kind.name in ("block", "dial"))  # the others work token by token
    return (
        {3, WHOLE_LOOP}
        | ({6} if not auto else {9} if steps else set())
        | of_temperature(temperature)
        | ({7} if draft == "ngram" else set())
        | of_heads([draft], auto)
    )


def of_comparison(temperatures: Iterable[float], drafts: Iterable[str]) -> set[int]:
    """What a comparison can use. Each of its rows has a fixed k; exercise 6 is asked afterwards for the best one."""
    rules = set().union(*map(of_temperature, temperatures))
    drafts = set(drafts)
    return {3, 5, 6} | rules | ({7} if "ngram" in drafts else set()) | of_heads(drafts)


def of_heads(drafts: Iterable[str], auto: bool = False) -> set[int]:
    """Exercises about drafts with a head. Under -k auto a feature draft is asked after each token, by the lab's own."""
    kinds = {kind.name for draft in drafts if (kind := registry.kind_of(draft))}
    return {11} if "feature" in kinds and not auto else set()


def of_temperature(temperature: float) -> set[int]:
    """Exercises that may be the accept rule at this temperature."""
    return {4, BLOCK_RULE} if temperature > 0 else {2}


class Chosen(NamedTuple):
    """Whose functions take part in a run."""

    modules: Modules  # of the finished exercises that the run can use
    unfinished: dict[int, str]  # those that it could use, and how far they are


def load(package: str, numbers: list[int], usable: set[int]) -> Chosen:
    """Of the exercises that a run can use, those that are finished. Their checks run first.

    numbers: only these; none: all of them. Raises UsageProblem where one of them has no part in the run or none is
    finished, and Problem where a check of one in use fails.
    """
    known = {exercise.number: exercise for exercise in exercises()}
    for number in numbers:
        if number in OWN_RUNS:
            raise UsageProblem(
                f"exercise {number} decodes by a command of its own; type: "
                f"python -m speclab.extensions.learner run {number}"
            )
        if number not in ROLES:
            raise UsageProblem(
                f"exercise {number} has no part in a run: the cost of a batch, servers and curves are the lab's own; "
                f"leave it out, or try it: {check_command(str(number))}"
            )
        if number not in usable:
            could = ", ".join(f"{n} ({ROLES[n]})" for n in sorted(usable))
            raise UsageProblem(f"exercise {number} ({ROLES[number]}) has no part in this run; choose from {could}")
    if WHOLE_LOOP in numbers and len(numbers) > 1:
        raise UsageProblem(f"exercise 8 is the whole loop and goes alone; type: {check_command('8', '--run', '...')}")
    if {4, BLOCK_RULE} <= set(numbers):
        raise UsageProblem(f"exercises 4 and {BLOCK_RULE} are both the rule for sampled tokens; leave one of them out")
    return finished(package, [known[n] for n in numbers or sorted(usable & known.keys() - BY_NUMBER)], bool(numbers))


def finished(package: str, chosen: list[Exercise], asked_for: bool) -> Chosen:
    """Run the checks of these exercises.  -> those that are finished, of which there is one at least

    asked_for: they were named, so that all of them must be finished. Raises UsageProblem where they are not, and
    Problem where a check fails.
    """
    runner.run_checks(package, chosen)
    failed = [exercise for exercise in chosen if exercise.failed]
    for exercise in failed:
        note(report(exercise))
    if failed:
        n_failed = sum(len(exercise.failed) for exercise in failed)
        words = [str(failed[0].number), *(["--impl", package] if package != "exercises" else [])]
        what = f"{n_failed} check{'s fail' if n_failed > 1 else ' fails'}"
        raise Problem(f"{what}, so nothing was run; type: {check_command(*words)}")
    unfinished = {exercise.number: exercise.status for exercise in chosen if exercise.status != "done"}
    if unfinished and (asked_for or len(unfinished) == len(chosen)):
        titles = {exercise.number: exercise.title for exercise in chosen} | ROLES
        what = ", ".join(f"{n} ({titles[n]}: {status})" for n, status in unfinished.items())
        words = [str(next(iter(unfinished)))] if asked_for else []
        raise UsageProblem(f"not finished: {what}; type: {check_command(*words)}")
    names = {exercise.number: f"{package}.{exercise.stem}" for exercise in chosen if exercise.status == "done"}
    # The checks have imported the file in another process. Here it may still fail, so it is asked as a function is.
    modules = {n: ask(n, importlib.import_module, name, lab_inside=True) for n, name in names.items()}
    return Chosen(modules, unfinished)
