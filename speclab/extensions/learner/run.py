"""`check.py --run`: one of the lab's scripts, in which the functions that you wrote in exercises/ decide.

Their checks are run before anything is timed, and one that fails ends the run. The script's main() gets the functions.
"""

import importlib
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

from speclab.cli import compare, decoding
from speclab.core.rules import TOKEN
from speclab.drafts import registry
from speclab.extensions.learner import checks
from speclab.extensions.learner.checks import check_command
from speclab.extensions.learner.functions import BLOCK_RULE, ROLES, WHOLE_LOOP, Learner, ask, finite, whole
from speclab.lab.harness import Measurement
from speclab.present import tables
from speclab.records.files import ComparisonRun
from speclab.records.rows import Arm, Row
from speclab.system import extensions
from speclab.system.errors import Problem, UsageProblem
from speclab.system.terminal import note, say
from speclab.theory.costs import Costs

SCRIPTS = {  # the exercises that can take part in each
    "baseline_autoregressive.py": {0},
    "optimized_speculative.py": {2, 3, 4, 6, 7, 8, 9, 10},
    "compare.py": {2, 3, 4, 5, 6, 7, 10},  # each of its rows has a fixed k; exercise 6 is asked for the best one
}


def run(package: str, numbers: list[int], words: list[str]) -> int:
    """Run a script with the functions of these exercises, of all that are finished where none is named. words: the
    script, then its flags.  -> the script's exit code"""
    name, rest = (Path(words[0]).name, words[1:]) if words else ("", [])
    place = name.removesuffix(".py") if name in SCRIPTS else f"{extensions.PACKAGE}.{name}.__main__"
    script: Any = importlib.import_module(place) if name in {*SCRIPTS, *extensions.names("__main__")} else None
    usable = SCRIPTS.get(name, set())
    if name == "compare.py":  # the drafts that exercises are about, at one size
        rest = ["--alone", "--draft", compare.USUAL_DRAFTS, *rest]
        args = compare.filled(compare.make_parser(script.__doc__).parse_args(rest))
    elif usable:
        args = decoding.parse(script.__doc__, rest, usable != {0})
    elif hasattr(script, "parse"):  # a command that says which functions it can use
        args = script.parse(rest)
        usable = {n for n, (_, field) in ROLES.items() if field in args.uses}
    else:
        raise UsageProblem(f"--run {' '.join(words)}: give one of the lab's scripts, {', '.join(SCRIPTS)}")
    if usable != {0}:  # no exercise has a part in drafts with branches
        registry.check_chains("your code", registry.read_all(args.draft.split(",")))
    modules = load(package, numbers, usable)
    rule, own = getattr(args, "rule", TOKEN), [n for n in modules if ROLES[n][1] in ("accept", "decode", "rule")]
    if own and rule is not TOKEN:
        raise UsageProblem(f"--rule {rule.name} and exercise {own[0]} decide the same; leave one of them out")
    functions = Learner(package, modules).functions()
    seen: list[tuple[Any, Any]] = []
    code = script.main(rest, replace(functions, look_at=lambda *pair: seen.append(pair)))
    for record, measured in seen:  # after it has been shown and written, so that a mistake loses nothing
        show_predictions(modules, record, measured)
    return code


def load(package: str, numbers: list[int], usable: set[int]) -> dict[int, ModuleType]:
    """Of the exercises that a run can use, the modules of those that are finished. Their checks run first. numbers:
    only these, all of which must be finished; none: all. Raises UsageProblem, and Problem where a check fails."""
    if others := [n for n in numbers if n not in usable]:
        could = ", ".join(f"{n} ({ROLES[n][0]})" for n in sorted(usable))
        raise UsageProblem(f"exercise {others[0]} has no part in this run; choose from {could}")
    if len(numbers) > 1 and (WHOLE_LOOP in numbers or {4, BLOCK_RULE} <= set(numbers)):
        first, other = (WHOLE_LOOP, "any other") if WHOLE_LOOP in numbers else (4, BLOCK_RULE)
        raise UsageProblem(f"exercises {first} and {other} decide the same; leave one of them out")
    wanted = numbers or usable - {WHOLE_LOOP, BLOCK_RULE}  # these two only where they are asked for
    chosen = [exercise for exercise in checks.exercises() if exercise.number in wanted]
    checks.run_checks(package, chosen)
    if failed := [exercise for exercise in chosen if exercise.failed]:
        note("\n".join(map(checks.report, failed)))
        flags = ["--impl", package] * (package != "exercises")
        raise Problem(f"checks fail, so nothing was run; type: {check_command(str(failed[0].number), *flags)}")
    done = {one.number: f"{package}.{one.stem}" for one in chosen if one.status == "done"}
    rest = [one for one in chosen if one.number not in done]
    what = ", ".join(f"{one.number} ({ROLES[one.number][0]}: {one.status})" for one in rest)
    if rest and (numbers or not done):
        raise UsageProblem(f"not finished: {what}; type: {check_command(str(rest[0].number))}")
    if rest:
        note(f"the lab's own: {what}")
    return {n: ask(n, importlib.import_module, name, lab_inside=True) for n, name in done.items()}


def show_predictions(modules: dict[int, ModuleType], run: ComparisonRun, measured: Measurement) -> None:
    """Ask exercises 5 and 6, where they take part, about a measured comparison, and show a table of each."""
    rows = [row for row in run.rows if row.draft and not row.auto and row.prompt_kind == "all"]
    if 5 in modules:
        lines = [_predicted(modules[5], row, measured) for row in rows]
        headers = ["draft", "k", "T", "your α", "yours", "measured", "book(α)", "accounting"]
        say(f"\nWhat you predicted\n\n{tables.table(lines, headers)}")
    if 6 in modules:
        lines = [cells for entry in run.costs if (cells := chosen(modules[6], run, rows, entry))]
        headers = ["draft", "T", "α", "your k", "measured", "best k", "its speedup"]
        say(f"\nThe draft lengths that you would take\n\n{tables.table(lines, headers)}")


def _predicted(learner: ModuleType, row: Row, measured: Measurement) -> list[str]:
    """Exercise 5 on a row of a comparison.  -> its cells; no alpha where nothing was tested, no prediction where
    nothing was calibrated"""
    made = measured.of(Arm(row.method, row.draft or "", row.draft_length), row.temperature)
    rounds = [pair[:2] for line in made for text in line.rounds for pair in text]  # drafted, accepted
    costs, alpha, yours = (row.draft_cost, row.verify_cost, row.overhead), None, None
    if any(drafted for drafted, _ in rounds):
        alpha = ask(5, learner.acceptance_rate, rounds, check=finite)
    if alpha is not None and None not in costs:
        yours = ask(5, learner.predicted_speedup, alpha, row.draft_length, *costs, check=finite)
    speedups = map(tables.speedup, (yours, row.speedup, row.book_formula, row.accounting))
    return [str(row.draft), str(row.draft_length), f"{row.temperature:g}", tables.number(alpha), *speedups]


def chosen(learner: ModuleType, run: ComparisonRun, rows: list[Row], entry: dict) -> list[str]:
    """Exercise 6 on one draft's calibrated costs, an entry of `run.costs`, in target steps.  -> the length that it
    chooses from the alpha of the best measured row of a fixed length, and what it gains, as cells; none without a row
    """
    same = [r for r in rows if (r.method, r.temperature) == (entry["drafter"], entry["temperature"])]
    fixed = [r for r in same if r.draft_length and r.acceptance_rate is not None]
    if not fixed:
        return []
    best, longest = max(fixed, key=lambda row: row.speedup), max(run.settings["draft_lengths"])
    context = mean({line.prompt_index: line.n_prompt for line in run.raw}.values()) + run.settings["max_new_tokens"] / 2
    costs, k = Costs(**entry["costs"]), best.draft_length
    step, verify = costs.step_seconds(context), lambda width: costs.verify_seconds(width, context) / step
    prices = costs.draft_seconds(k, context) / k / step, verify, costs.overhead_seconds(k) / step
    length = ask(6, learner.best_draft_length, best.acceptance_rate, *prices, longest, check=whole(0, longest))
    speedup = next((row.speedup for row in fixed if row.draft_length == length), None)
    yours = [best.method, f"{best.temperature:g}", tables.number(best.acceptance_rate), str(length)]
    return [*yours, tables.speedup(speedup), str(k), tables.speedup(best.speedup)]
