"""What exercises 5 and 6 say of a comparison once it is measured: a speedup for every row, and the best draft length.

They are asked after the comparison has been shown and written, so that a mistake in them loses nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from speclab.extensions.learner.ask import ask, finite, whole
from speclab.lab.harness import Measurement
from speclab.present import explanations, tables
from speclab.present.tables import Cell, Table, cells, column, number, prediction, speedup, speedup_of
from speclab.records.arms import AUTO, Arm
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.theory.costs import Costs


def show(modules: dict[int, ModuleType], run: ComparisonRun, measured: Measurement, say: Callable[[str], None]) -> None:
    """Ask those of the two exercises that take part, and show a table of each."""
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all"]
    if 5 in modules:
        said = [predicted(modules[5], row, rounds_of(measured, row)) for row in rows]
        say("\n" + tables.show([tables.Heading("What you predicted"), predictions_table(said)]))
    if 6 in modules:
        choices = [choice for entry in run.costs if (choice := chosen(modules[6], run, rows, entry))]
        say("\n" + tables.show([tables.Heading("The draft lengths that you would take"), choices_table(choices)]))


def rounds_of(measured: Measurement, row: Row) -> list[tuple[int, int]]:
    """(drafted, accepted) of every round of a row."""
    arm = Arm(row.method, row.draft or "", row.draft_length)
    return [made[:2] for s in measured.of(arm, row.temperature) for text in s.rounds for made in text]


# --- exercise 5 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """A row, and what exercise 5's functions say of it: None where nothing was tested or nothing calibrated."""

    row: Row
    alpha: float | None
    speedup: float | None


def predicted(learner: ModuleType, row: Row, rounds: list[tuple[int, int]]) -> Predicted:
    """Exercise 5 on a row of a comparison and its (drafted, accepted) rounds."""
    alpha, speedup = None, None
    if any(drafted for drafted, _ in rounds):
        alpha = ask(5, learner.acceptance_rate, rounds, check=finite)
    k, costs = row.draft_length, (row.draft_cost, row.verify_cost, row.overhead)
    if alpha is not None and None not in costs:
        speedup = ask(5, learner.predicted_speedup, alpha, k, *costs, check=finite)
    return Predicted(row, alpha, speedup)


def predictions_table(said: list[Predicted]) -> Table:
    """Your predictions beside the measurement and the lab's own predictions."""
    of_row = {id(one.row): one for one in said}
    columns: dict[str, Cell] = {
        "your α": lambda row: number(of_row[id(row)].alpha),
        "measured": speedup_of,
        "yours": prediction(lambda row: of_row[id(row)].speedup),
        "book(α)": column("book_formula"),
        "accounting": column("accounting"),
    }
    return Table([one.row for one in said], cells("draft", "k", "T") | columns)


# --- exercise 6 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The best measured row of a draft, and the length that exercise 6 chooses from that row's alpha and its costs."""

    best: Row
    length: int
    measured: float | None  # the speedup of that length; None where no row has it


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


def choices_table(choices: list[Choice]) -> Table:
    """Your lengths beside the best ones that were measured."""
    columns: dict[str, Cell] = {
        "draft": lambda one: one.best.method,
        "T": lambda one: f"{one.best.temperature:g}",
        "α": lambda one: number(one.best.acceptance_rate),
        "your k": lambda one: str(one.length),
        "measured": lambda one: speedup(one.measured),
        "best k": lambda one: str(one.best.draft_length),
        "its speedup": lambda one: speedup(one.best.speedup),
    }
    return Table(choices, columns)
