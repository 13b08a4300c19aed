"""What exercises 5 and 6 say of a measured comparison: a speedup for every row, and the best draft length."""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

from speclab.extensions.learner.ask import ask, finite, whole
from speclab.lab.harness import Measurement
from speclab.present import explanations, tables
from speclab.present.tables import Cell, Table, cells, column, number, prediction, speedup, speedup_of, through
from speclab.records.arms import AUTO, Arm
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.theory.costs import Costs


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


def show(modules: dict[int, ModuleType], run: ComparisonRun, measured: Measurement, say: Callable[[str], None]) -> None:
    """Ask those of the two exercises that take part, and show a table of each."""
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all"]
    if 5 in modules:
        said = []
        for row in rows:
            made = measured.of(Arm(row.method, row.draft or "", row.draft_length), row.temperature)
            said.append(predicted(modules[5], row, [pair[:2] for s in made for text in s.rounds for pair in text]))
        measurements = {"measured": speedup_of, "book(α)": column("book_formula"), "accounting": column("accounting")}
        columns: dict[str, Cell] = {
            **through(lambda one: one.row, cells("draft", "k", "T")),
            "your α": lambda one: number(one.alpha),
            "yours": lambda one: prediction(lambda row: one.speedup)(one.row),
            **through(lambda one: one.row, measurements),
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
    costs, context, k = Costs.from_json(entry["costs"]), explanations.usual_context(run), best.draft_length
    prices = (
        costs.draft_cost(k, context),
        lambda width: costs.verify_cost(width, context),
        costs.overhead(k, context),
    )
    length = ask(6, learner.best_draft_length, best.acceptance_rate, *prices, longest, check=whole(0, longest))
    return Choice(best, length, next((row.speedup for row in fixed if row.draft_length == length), None))
