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

import argparse
import importlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any, NamedTuple

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import compare, decoding, parsing
from speclab.drafts import registry
from speclab.extensions.learner import checks
from speclab.extensions.learner.ask import ask, finite, whole
from speclab.extensions.learner.checks import check_command
from speclab.extensions.learner.functions import BLOCK_RULE, ROLES, WHOLE_LOOP, Modules, learner_functions
from speclab.lab.harness import Measurement
from speclab.present import tables
from speclab.present.tables import Cell, Table, cells, column, number, prediction, speedup, speedup_of
from speclab.records.arms import AUTO, Arm
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system import extensions
from speclab.system.errors import Problem, UsageProblem
from speclab.system.terminal import note, say
from speclab.theory.costs import Costs

BASELINE, SPECULATIVE, COMPARISON = SCRIPTS = ("baseline_autoregressive.py", "optimized_speculative.py", "compare.py")
ACCEPT_RULES = {2, 4, WHOLE_LOOP, BLOCK_RULE}
# The field of LoopFunctions that an exercise changes, beside those that `adapt` changes.
FIELDS = {1: "shapes", 2: "accept", 3: "keeps", 4: "accept", 8: "decode", 10: "rule"}
YOURS = "your code"  # no exercise has a part in drafts with branches
NOT_JUDGED = (
    "a sampled text has no baseline to equal; leave out --temperature, or judge many of them: run compare.py with the "
    "same --temperature and --draft"
)


def run(package: str, numbers: list[int], words: list[str]) -> int:
    """Run a script with the functions of these exercises.  -> the script's exit code

    numbers: none: all that are finished. words: the script, then its flags. Raises UsageProblem for another script, and
    where the script is asked for what a learner's functions have no part in; and what `load` raises.
    """
    name = Path(words[0]).name if words else ""
    script = importlib.import_module(name.removesuffix(".py")) if name in SCRIPTS else None
    if name in extensions.commands():  # one that takes functions can `parse` its words
        script = importlib.import_module(f"{extensions.PACKAGE}.{name}.__main__")
    if script is None or not (name in SCRIPTS or hasattr(script, "parse")):
        raise UsageProblem(f"--run {' '.join(words)}: give one of the lab's scripts, {', '.join(SCRIPTS)}")
    args, usable = _read(name, script, words[1:])
    chosen = load(package, numbers, usable)
    rule, own = getattr(args, "rule", "token"), sorted(ACCEPT_RULES & chosen.modules.keys())
    if own and rule != "token":
        raise UsageProblem(f"--rule {rule} and exercise {own[0]} decide the same; leave one of them out")
    functions = learner_functions(autoregressive_decode if name == BASELINE else speculative_decode, package, *chosen)
    further = []  # what a comparison does not do by itself while a learner's functions take part in it
    if name == COMPARISON:
        further = ["--no-padded", *([] if args.typed_draft else ["--draft", compare.USUAL_DRAFTS])]
    seen: list[tuple[Any, Any]] = []
    code = script.main([*words[1:], *further], replace(functions, look_at=lambda *pair: seen.append(pair)))
    for record, measured in seen:  # after it has been shown and written, so that a mistake loses nothing
        show_predictions(chosen.modules, record, measured)
    if name == SPECULATIVE and args.temperature > 0 and not code:
        print(NOT_JUDGED)
    return code


def _read(name: str, script: Any, words: list[str]) -> tuple[argparse.Namespace, set[int]]:
    """The script's flags, and which exercises can take part in such a run."""
    if name == COMPARISON:
        args = compare.make_parser(script.__doc__).parse_args(words)
        args.typed_draft = args.draft
        filled = compare.filled(args)
        drafts = (filled.typed_draft or compare.USUAL_DRAFTS).split(",")
        registry.check_chains(YOURS, registry.read_all(drafts))
        return filled, of_comparison(parsing.numbers(filled.temperature, float, 0, "--temperature"), drafts)
    args = decoding.parse(script.__doc__, words, name == SPECULATIVE) if name in SCRIPTS else script.parse(words)
    if name == BASELINE:
        return args, {0}
    registry.check_chains(YOURS, [registry.read(args.draft)])
    usable = of_decoding(args.temperature, args.draft, args.draft_length == parsing.AUTO)
    if name != SPECULATIVE:
        usable = {n for n in {1} | usable if FIELDS.get(n, "adapt") in args.uses}
    return args, usable


def of_decoding(temperature: float, draft: str, auto: bool = False) -> set[int]:
    """What one speculative decoding can use. auto: with -k auto."""
    kind = registry.kind_of(draft)
    steps = kind is None or not (kind.is_lookup or kind.name in ("block", "dial"))  # the others work token by token
    lengths = {6} if not auto else {9} if steps else set()
    return {3, WHOLE_LOOP} | lengths | _of_temperature(temperature) | ({7} if draft == "ngram" else set())


def of_comparison(temperatures: Iterable[float], drafts: Iterable[str]) -> set[int]:
    """What a comparison can use. Each of its rows has a fixed k; exercise 6 is asked afterwards for the best one."""
    return {3, 5, 6}.union({7} if "ngram" in drafts else (), *map(_of_temperature, temperatures))


def _of_temperature(temperature: float) -> set[int]:
    return {4, BLOCK_RULE} if temperature > 0 else {2}


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
        n_failed = sum(len(exercise.failed) for exercise in failed)
        words = [str(failed[0].number), *(["--impl", package] if package != "exercises" else [])]
        what = f"{n_failed} check{'s fail' if n_failed > 1 else ' fails'}"
        raise Problem(f"{what}, so nothing was run; type: {check_command(*words)}")
    unfinished = {exercise.number: exercise.status for exercise in chosen if exercise.status != "done"}
    if unfinished and (numbers or len(unfinished) == len(chosen)):
        what = ", ".join(f"{n} ({ROLES[n]}: {status})" for n, status in unfinished.items())
        raise UsageProblem(f"not finished: {what}; type: {check_command(*map(str, [*unfinished][: bool(numbers)]))}")
    names = {exercise.number: f"{package}.{exercise.stem}" for exercise in chosen if exercise.status == "done"}
    # The checks have imported the file in another process. Here it may still fail, so it is asked as a function is.
    return Chosen({n: ask(n, importlib.import_module, name, lab_inside=True) for n, name in names.items()}, unfinished)


# --- what exercises 5 and 6 say of a comparison -----------------------------------------------------------------------


class Predicted(NamedTuple):
    """A row, and what exercise 5's functions say of it: None where nothing was tested or nothing calibrated."""

    row: Row
    alpha: float | None
    speedup: float | None


class Choice(NamedTuple):
    """The best measured row of a draft, and the length that exercise 6 chooses from that row's alpha and its costs."""

    best: Row
    length: int
    measured: float | None  # the speedup of that length; None where no row has it


def show_predictions(modules: dict[int, ModuleType], run: ComparisonRun, measured: Measurement) -> None:
    """Ask exercises 5 and 6, where they take part, about a measured comparison, and show a table of each."""
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all"]
    if 5 in modules:
        said = []
        for row in rows:
            made = measured.of(Arm(row.method, row.draft or "", row.draft_length), row.temperature)
            said.append(predicted(modules[5], row, [pair[:2] for s in made for text in s.rounds for pair in text]))
        measurements = {"measured": speedup_of, "book(α)": column("book_formula"), "accounting": column("accounting")}
        columns: dict[str, Cell] = {
            **{head: _of_row(cell) for head, cell in cells("draft", "k", "T").items()},
            "your α": lambda one: number(one.alpha),
            "yours": lambda one: prediction(lambda row: one.speedup)(one.row),
            **{head: _of_row(cell) for head, cell in measurements.items()},
        }
        say("\n" + tables.show([tables.Heading("What you predicted"), Table(said, columns)]))
    if 6 in modules:
        choices = [choice for entry in run.costs if (choice := chosen(modules[6], run, rows, entry))]
        columns = {
            "draft": lambda one: one.best.method,
            "T": lambda one: f"{one.best.temperature:g}",
            "α": lambda one: number(one.best.acceptance_rate),
            "your k": lambda one: str(one.length),
            "measured": lambda one: speedup(one.measured),
            "best k": lambda one: str(one.best.draft_length),
            "its speedup": lambda one: speedup(one.best.speedup),
        }
        say("\n" + tables.show([tables.Heading("The draft lengths that you would take"), Table(choices, columns)]))


def _of_row(cell: Cell) -> Cell:
    """Return the cell of a row as one of an object that holds such a row."""
    return lambda one: cell(one.row)


def _usual_context(run: ComparisonRun) -> float:
    """Return the mean number of prompt tokens, plus half of the new ones."""
    return mean({line.prompt_index: line.n_prompt for line in run.raw}.values()) + run.settings["max_new_tokens"] / 2


def predicted(learner: ModuleType, row: Row, rounds: list[tuple[int, int]]) -> Predicted:
    """Exercise 5 on a row of a comparison and its (drafted, accepted) rounds."""
    alpha, speedup = None, None
    if any(drafted for drafted, _ in rounds):
        alpha = ask(5, learner.acceptance_rate, rounds, check=finite)
    k, costs = row.draft_length, (row.draft_cost, row.verify_cost, row.overhead)
    if alpha is not None and None not in costs:
        speedup = ask(5, learner.predicted_speedup, alpha, k, *costs, check=finite)
    return Predicted(row, alpha, speedup)


def chosen(learner: ModuleType, run: ComparisonRun, rows: list[Row], entry: dict) -> Choice | None:
    """Exercise 6 on one draft's calibrated costs, an entry of `run.costs`. None without a fixed length that was tested.

    Costs in target steps, as in theory/formulas.py.
    """
    same = [r for r in rows if (r.method, r.temperature) == (entry["drafter"], entry["temperature"])]
    fixed = [r for r in same if r.draft_length and not (r.draft or "").endswith(AUTO) and r.acceptance_rate is not None]
    if not fixed:
        return None
    best, longest = max(fixed, key=lambda row: row.speedup), max(run.settings["draft_lengths"])
    costs, context, k = Costs.from_json(entry["costs"]), _usual_context(run), best.draft_length
    prices = (
        costs.draft_cost(k, context),
        lambda width: costs.verify_cost(width, context),
        costs.overhead(k, context),
    )
    length = ask(6, learner.best_draft_length, best.acceptance_rate, *prices, longest, check=whole(0, longest))
    return Choice(best, length, next((row.speedup for row in fixed if row.draft_length == length), None))
