"""Shows why a comparison's rows are as fast as they are: predictions, the ladder, and the parts of a round. These are
views of the record: nothing is measured here.
"""

import functools
from operator import attrgetter, itemgetter
from statistics import mean

from speclab.present.tables import (
    Cell,
    Lines,
    Table,
    cells,
    cost,
    number,
    prediction,
    speedup,
)
from speclab.records.files import ComparisonRun
from speclab.records.rows import COLUMNS, Row
from speclab.theory.costs import Costs
from speclab.theory.ladder import EFFECTS, PREDICTORS, factors, prediction_errors


def prediction_table(rows: list[Row]) -> Table:
    """Return each prediction and its error, predicted / measured - 1, beside the measurement."""
    rows = [row for row in rows if row.draft and any(getattr(row, name) is not None for name in PREDICTORS)]
    predictions = {name: prediction(attrgetter(key)) for key, name in PREDICTORS.items()}
    return Table(rows, cells("draft", "k", "measured") | predictions)


def errors_table(rows: list[Row]) -> Table:
    """Show how far each predictor was off over the given rows: |predicted / measured - 1|."""
    errors = [(PREDICTORS[predictor], miss) for predictor, miss in prediction_errors(rows).items()]
    kinds = ", ".join(dict.fromkeys(row.prompt_kind for row in rows))
    columns: dict[str, Cell] = {
        "prediction": lambda error: error[0],
        f"rows ({kinds})": lambda error: str(error[1]["n"]),
        "median error": lambda error: f"{error[1]['median']:.1%}",
        "largest error": lambda error: f"{error[1]['max']:.1%}",
    }
    return Table(errors, columns)


# --- why --------------------------------------------------------------------------------------------------------------


def ladder_table(rows: list[Row], markdown: bool = False) -> Table:
    """Lead from the book's formula to the measurement, factor by factor."""
    rows = [row for row in rows if row.draft and not row.auto]
    columns: dict[str, Cell] = {"book": lambda row: speedup(row.book_formula)}
    for effect in EFFECTS:
        columns[effect.name if markdown else effect.head] = functools.partial(_factor, effect.name)
    own: dict[str, Cell] = {name: functools.partial(_own_rate, name) for name in names_of_own_rates(rows)}
    shown = rows if any(row.ladder for row in rows) else []
    return Table(shown, cells("draft", "k") | columns | cells("measured") | own)


def _factor(name: str, row: Row) -> str:
    return number(factors(row).get(name))


def ladder_legend(markdown: bool = False) -> Lines:
    """The legend explains the columns of the ladder: each factor is what one thing costs or gains."""
    return Lines(f"{effect.name if markdown else effect.head}: {effect.meaning}" for effect in EFFECTS)


def names_of_own_rates(rows: list[Row]) -> list[str]:
    """Return the heads of the columns that only some drafts of these rows have."""
    return list(dict.fromkeys(name for row in rows for name in row.own_rates or ()))


def _own_rate(name: str, row: Row) -> str:
    return number((row.own_rates or {}).get(name), 3)


def own_rates_legend(rows: list[Row]) -> Lines:
    """The legend explains the columns that only some drafts have; it is empty where there are none."""
    return Lines(f"{name}: {COLUMNS[name]}" for name in names_of_own_rates(rows) if name in COLUMNS)


# --- what a round is made of ------------------------------------------------------------------------------------------


def costs_table(run: ComparisonRun) -> Table:
    """The table has the cost of each part of a round, for each draft, temperature and k."""
    lines, replays = [], any(entry["costs"].get("replay") for entry in run.costs)
    for entry in run.costs:
        costs, context = Costs.from_json(entry["costs"]), usual_context(run)
        prefill = [s for sample in run.raw if sample.method == entry["drafter"] for s in sample.prefill_seconds]
        for k in filter(None, run.settings["draft_lengths"]):
            line = {
                "draft": entry["drafter"],
                "k": str(k),
                "T": f"{entry['temperature']:g}",
                "step ms": number(1e3 * costs.step_seconds(context)),
                "v(k+1)": number(costs.verify_cost(k + 1, context)),
                "c": cost(costs.draft_cost(k, context), 3),
                "accept µs": cost(1e6 * costs.accept_seconds(k), 0),
                "rollback µs": cost(1e6 * costs.rollback, 0),
                **({"replay µs": cost(1e6 * costs.replay, 0)} if replays else {}),
                "host µs": cost(1e6 * costs.host, 0),
                "prefill ms": number(1e3 * mean(prefill) if prefill else None, 1),
            }
            lines.append(line)
    return Table(lines, {head: itemgetter(head) for head in lines[0]} if lines else {})


def costs_lines(run: ComparisonRun) -> Lines:
    """The legend explains the columns of the costs, and says how much of a round the clocks inside it account for."""
    if not run.costs:
        return Lines()
    line = (
        f"All costs are those at {usual_context(run):.0f} tokens of context. c is the cost of a drafted token, and "
        "v(k+1) that of a target pass over k + 1 tokens, both in decode steps of the target."
    )
    return Lines([line, phases_line(run)])


def usual_context(run: ComparisonRun) -> float:
    """Return the mean number of prompt tokens, plus half of the new ones."""
    prompts = {sample.prompt_index: sample.n_prompt for sample in run.raw}
    return (mean(prompts.values()) if prompts else 0.0) + run.settings["max_new_tokens"] / 2


def phases_line(run: ComparisonRun) -> str | None:
    """The line says whether the clocks inside a round account for all of it; None where no round was instrumented."""
    share = run.phases["share"]
    return None if share is None else f"instrumented rounds: the phases sum to {share:.1%} of the wall time"
