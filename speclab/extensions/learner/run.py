"""`check.py --run`: one of the lab's scripts, in which the functions that you wrote in exercises/ decide.

    python check.py --run optimized_speculative.py              # every finished exercise that this run can use
    python check.py 2,3 --run optimized_speculative.py          # these only
    python check.py 0 --run baseline_autoregressive.py          # exercise 0 rates the run
    python check.py 4 --run compare.py --temperature 0.8        # exercise 4 decides the sampled rows
    python check.py 10 --run compare.py --temperature 0.8       # exercise 10 in its place
    python check.py 9 --run optimized_speculative.py -k auto    # exercise 9 decides when a draft stops
    python check.py --impl solutions --run compare.py           # the same with the solutions
    python check.py 2 --run NAME                                # a command of an extension that takes functions

The script's own words are read here first: they say which exercises can take part. Their checks are run before anything
is timed, and one that fails ends the run. The script's main() gets the functions.
"""

import importlib
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any, NamedTuple

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import compare, decoding
from speclab.drafts import registry
from speclab.extensions.learner import checks
from speclab.extensions.learner.ask import ask, finite, whole
from speclab.extensions.learner.checks import check_command
from speclab.extensions.learner.functions import BLOCK_RULE, ROLES, WHOLE_LOOP, Modules, learner_functions
from speclab.lab.harness import Measurement
from speclab.present import tables
from speclab.records.files import ComparisonRun
from speclab.records.rows import AUTO, Arm, Row
from speclab.system import extensions
from speclab.system.errors import Problem, UsageProblem
from speclab.system.terminal import note, say
from speclab.theory.costs import Costs

SCRIPTS = {  # the exercises that can take part in each
    "baseline_autoregressive.py": {0},
    "optimized_speculative.py": {2, 3, 4, 6, 7, 8, 9, 10},
    "compare.py": {2, 3, 4, 5, 6, 7, 10},  # each of its rows has a fixed k; exercise 6 is asked for the best one
}
ACCEPT_RULES = {2, 4, WHOLE_LOOP, BLOCK_RULE}
# The field of LoopFunctions that an exercise changes, beside those that `adapt` changes.
FIELDS = {1: "shapes", 2: "accept", 3: "keeps", 4: "accept", 8: "decode", 10: "rule"}


def run(package: str, numbers: list[int], words: list[str]) -> int:
    """Run a script with the functions of these exercises.  -> the script's exit code

    numbers: none: all that are finished. words: the script, then its flags.
    """
    name, rest = (Path(words[0]).name, words[1:]) if words else ("", [])
    is_comparison, usable = name == "compare.py", SCRIPTS.get(name, set())
    script: Any = importlib.import_module(name.removesuffix(".py")) if name in SCRIPTS else None
    if name in extensions.commands():  # one that takes functions can `parse` its words
        script = importlib.import_module(f"{extensions.PACKAGE}.{name}.__main__")
    if script is None or not (name in SCRIPTS or hasattr(script, "parse")):
        raise UsageProblem(f"--run {' '.join(words)}: give one of the lab's scripts, {', '.join(SCRIPTS)}")
    if is_comparison:
        args = compare.make_parser(script.__doc__).parse_args(rest)
        # What a comparison does not do by itself while a learner's functions take part in it.
        rest = [*rest, "--alone", *([] if args.draft else ["--draft", compare.USUAL_DRAFTS])]
        args = compare.filled(compare.make_parser(script.__doc__).parse_args(rest))
    elif name in SCRIPTS:
        args = decoding.parse(script.__doc__, rest, usable != {0})
    else:
        args = script.parse(rest)
        usable = {n for n in ROLES if n not in (0, 5) and FIELDS.get(n, "adapt") in args.uses}
    if usable != {0}:  # no exercise has a part in drafts with branches
        registry.check_chains("your code", registry.read_all(args.draft.split(",")))
    chosen = load(package, numbers, usable)
    rule, own = getattr(args, "rule", "token"), sorted(ACCEPT_RULES & chosen.modules.keys())
    if own and rule != "token":
        raise UsageProblem(f"--rule {rule} and exercise {own[0]} decide the same; leave one of them out")
    functions = learner_functions(autoregressive_decode if usable == {0} else speculative_decode, package, *chosen)
    seen: list[tuple[Any, Any]] = []
    code = script.main(rest, replace(functions, look_at=lambda *pair: seen.append(pair)))
    for record, measured in seen:  # after it has been shown and written, so that a mistake loses nothing
        show_predictions(chosen.modules, record, measured)
    return code


class Chosen(NamedTuple):
    """Whose functions take part in a run."""

    modules: Modules  # of the finished exercises that the run can use
    unfinished: dict[int, str]  # those that it could use, and how far they are


def load(package: str, numbers: list[int], usable: set[int]) -> Chosen:
    """Of the exercises that a run can use, those that are finished. Their checks run first.

    numbers: only these, all of which must be finished; none: all of them. Raises UsageProblem where one of them has no
    part in the run or none is finished, and Problem where a check of one in use fails.
    """
    if others := [n for n in numbers if n not in usable]:
        could = ", ".join(f"{n} ({ROLES[n]})" for n in sorted(usable))
        raise UsageProblem(f"exercise {others[0]} has no part in this run; choose from {could}")
    if WHOLE_LOOP in numbers and len(numbers) > 1:
        raise UsageProblem(f"exercise 8 is the whole loop and goes alone; type: {check_command('8', '--run', '...')}")
    if {4, BLOCK_RULE} <= set(numbers):
        raise UsageProblem(f"exercises 4 and {BLOCK_RULE} are both the rule for sampled tokens; leave one of them out")
    wanted = numbers or usable - {WHOLE_LOOP, BLOCK_RULE}  # these two only where they are asked for
    chosen = [exercise for exercise in checks.exercises() if exercise.number in wanted]
    checks.run_checks(package, chosen)
    failed = [exercise for exercise in chosen if exercise.failed]
    for exercise in failed:
        note(checks.report(exercise))
    if failed:
        words = [str(failed[0].number), *(["--impl", package] if package != "exercises" else [])]
        raise Problem(f"checks fail, so nothing was run; type: {check_command(*words)}")
    unfinished = {exercise.number: exercise.status for exercise in chosen if exercise.status != "done"}
    if unfinished and (numbers or len(unfinished) == len(chosen)):
        what = ", ".join(f"{n} ({ROLES[n]}: {status})" for n, status in unfinished.items())
        raise UsageProblem(f"not finished: {what}; type: {check_command(*map(str, [*unfinished][: bool(numbers)]))}")
    names = {exercise.number: f"{package}.{exercise.stem}" for exercise in chosen if exercise.status == "done"}
    # The checks have imported the file in another process. Here it may still fail, so it is asked as a function is.
    return Chosen({n: ask(n, importlib.import_module, name, lab_inside=True) for n, name in names.items()}, unfinished)


# --- what exercises 5 and 6 say of a comparison -----------------------------------------------------------------------


def show_predictions(modules: dict[int, ModuleType], run: ComparisonRun, measured: Measurement) -> None:
    """Ask exercises 5 and 6, where they take part, about a measured comparison, and show a table of each."""
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all"]
    if 5 in modules:
        lines = []
        for row in rows:
            made = measured.of(Arm(row.method, row.draft or "", row.draft_length), row.temperature)
            alpha, yours = predicted(modules[5], row, [pair[:2] for s in made for text in s.rounds for pair in text])
            shown = (row.speedup, row.book_formula, row.accounting)
            of_row = [str(row.draft), str(row.draft_length), f"{row.temperature:g}", tables.number(alpha)]
            lines.append([*of_row, *map(tables.speedup, (yours, *shown))])
        headers = ["draft", "k", "T", "your α", "yours", "measured", "book(α)", "accounting"]
        say(f"\nWhat you predicted\n\n{tables.table(lines, headers)}")
    if 6 in modules:
        lines = []
        for best, length, speedup in (chosen(modules[6], run, rows, entry) for entry in run.costs):
            if best is not None:
                of_best = [best.method, f"{best.temperature:g}", tables.number(best.acceptance_rate), str(length)]
                lines.append([*of_best, tables.speedup(speedup), str(best.draft_length), tables.speedup(best.speedup)])
        headers = ["draft", "T", "α", "your k", "measured", "best k", "its speedup"]
        say(f"\nThe draft lengths that you would take\n\n{tables.table(lines, headers)}")


def _usual_context(run: ComparisonRun) -> float:
    """Return the mean number of prompt tokens, plus half of the new ones."""
    return mean({line.prompt_index: line.n_prompt for line in run.raw}.values()) + run.settings["max_new_tokens"] / 2


def predicted(learner: ModuleType, row: Row, rounds: list[tuple[int, int]]) -> tuple[float | None, float | None]:
    """Exercise 5 on a row of a comparison and its (drafted, accepted) rounds.  -> alpha, speedup: None where nothing
    was tested or nothing calibrated"""
    costs = (row.draft_cost, row.verify_cost, row.overhead)
    if not any(drafted for drafted, _ in rounds):
        return None, None
    alpha = ask(5, learner.acceptance_rate, rounds, check=finite)
    if None in costs:
        return alpha, None
    return alpha, ask(5, learner.predicted_speedup, alpha, row.draft_length, *costs, check=finite)


def chosen(
    learner: ModuleType, run: ComparisonRun, rows: list[Row], entry: dict
) -> tuple[Row | None, int, float | None]:
    """Exercise 6 on one draft's calibrated costs, an entry of `run.costs`, in target steps, as in theory/formulas.py.

    -> the best measured row of a fixed length, None where no such row was tested; the length that exercise 6 chooses
    from that row's alpha and its costs; the speedup of that length, None where no row has it
    """
    same = [r for r in rows if (r.method, r.temperature) == (entry["drafter"], entry["temperature"])]
    fixed = [r for r in same if r.draft_length and not (r.draft or "").endswith(AUTO) and r.acceptance_rate is not None]
    if not fixed:
        return None, 0, None
    best, longest = max(fixed, key=lambda row: row.speedup), max(run.settings["draft_lengths"])
    costs, context, k = Costs.from_json(entry["costs"]), _usual_context(run), best.draft_length
    prices = (
        costs.draft_cost(k, context),
        lambda width: costs.verify_cost(width, context),
        costs.overhead(k, context),
    )
    length = ask(6, learner.best_draft_length, best.acceptance_rate, *prices, longest, check=whole(0, longest))
    return best, length, next((row.speedup for row in fixed if row.draft_length == length), None)
