"""The tables of a comparison of batches: which rows of its record each one shows, and in which columns."""

from typing import NamedTuple

from speclab.extensions.batch.batch_record import BatchRow, BatchRun, Chosen, MachineEntry
from speclab.present.tables import Cell, Table, interval, number, percent, rate, speedup, with_verdict
from speclab.records.knees import KneeEntry

SHOWN_BATCHES = 5  # of a machine


class Pair(NamedTuple):
    """The best length of a draft at one batch, and plain decoding of as many texts at a time."""

    best: BatchRow
    plain: BatchRow
    chosen: Chosen | None  # with the numbers of the prompts that the length was not chosen on; older records have none


def error(predicted: float | None, measured: float) -> str:
    """The error of a prediction: predicted / measured - 1."""
    return "-" if predicted is None else percent(predicted / measured - 1)


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds."""
    return "-" if value is None else number(1e3 * value)


def drafts(run: BatchRun) -> list[str]:
    """Names of the drafts, in their order."""
    return list(dict.fromkeys(row.draft for row in run.rows if row.draft))


def plain_row(run: BatchRun, n_texts: int) -> BatchRow:
    """Plain decoding of so many texts at a time."""
    return next(row for row in run.rows if row.n_texts == n_texts and row.draft is None)


def pairs(run: BatchRun, draft: str) -> list[Pair]:
    """The table has the best length of every batch, and leaves out batches for which nothing was ever drafted."""
    of_batches = []
    for n in run.batches:
        rows = [row for row in run.rows if (row.n_texts, row.draft, row.lockstep) == (n, draft, False)]
        if run.chosen is None:
            of_batches.append(Pair(max(rows, key=lambda row: row.speedup), plain_row(run, n), None))
        for entry in run.chosen or []:
            if (entry.draft, entry.n_texts) == (draft, n):
                best = next(row for row in rows if row.draft_length == entry.draft_length)
                of_batches.append(Pair(best, plain_row(run, n), entry))
    return of_batches


def _of_best(pair: Pair) -> Chosen | BatchRow:
    return pair.chosen or pair.best


def _plain_rate(pair: Pair) -> str:
    return rate(pair.chosen.plain_tokens_per_second if pair.chosen else pair.plain.tokens_per_second)


def gain(row: BatchRow | Chosen) -> str:
    """The speedup; a loss is written in words."""
    if getattr(row, "n_drafted", None) == 0:
        return "drafts nothing"
    return with_verdict(speedup(row.speedup), row.verdict)


BEST: dict[str, Cell] = {
    "B": lambda pair: str(pair.best.n_texts),
    "plain tok/s": _plain_rate,
    "best k": lambda pair: str(pair.best.draft_length),
    "tok/s": lambda pair: rate(_of_best(pair).tokens_per_second),
    "speedup": lambda pair: gain(_of_best(pair)),
    "95 %": lambda pair: interval(_of_best(pair).speedup_low, _of_best(pair).speedup_high),
    "expected": lambda pair: speedup(pair.best.predicted_speedup),
    "text s": lambda pair: number(pair.best.latency),
    "plain s": lambda pair: number(pair.plain.latency),
    "ms/token": lambda pair: milliseconds(pair.best.between_tokens),
    "plain ms": lambda pair: milliseconds(pair.plain.between_tokens),
}
ALL: dict[str, Cell] = {
    "draft": lambda row: row.method + ", lockstep" * row.lockstep,
    "B": lambda row: str(row.n_texts),
    "k": lambda row: str(row.draft_length) if row.draft else "-",
    "tok/s": lambda row: rate(row.tokens_per_second),
    "expected tok/s": lambda row: rate(row.predicted_tokens_per_second),
    "error": lambda row: error(row.predicted_tokens_per_second, row.tokens_per_second),
    "speedup": lambda row: gain(row) if row.draft else "-",
    "95 %": lambda row: interval(row.speedup_low, row.speedup_high),
    "expected": lambda row: speedup(row.predicted_speedup) if row.draft else "-",
    "α": lambda row: number(row.acceptance_rate),
    "tok/rnd": lambda row: number(row.tokens_per_round),
    "text s": lambda row: number(row.latency),
    "ms/token": lambda row: milliseconds(row.between_tokens),
}
PASSES: dict[str, Cell] = {
    "model": lambda one: one.model,
    "B": lambda one: str(one.n_texts),
    "tokens each": lambda one: str(one.width),
    "context": lambda one: str(one.context),
    "ms": lambda one: milliseconds(one.seconds),
    "expected ms": lambda one: milliseconds(one.predicted),
    "error": lambda one: error(one.predicted, one.seconds),
}


class Waiting(NamedTuple):
    """A batch that waits for the row that keeps fewest, beside one that does not."""

    lockstep: BatchRow
    ragged: BatchRow


LOCKSTEP: dict[str, Cell] = {
    "draft": lambda both: both.ragged.method,
    "B": lambda both: str(both.ragged.n_texts),
    "k": lambda both: str(both.ragged.draft_length),
    "tok/s": lambda both: rate(both.ragged.tokens_per_second),
    "in lockstep": lambda both: rate(both.lockstep.tokens_per_second),
    "change": lambda both: percent(both.lockstep.tokens_per_second / both.ragged.tokens_per_second - 1),
    "expected": lambda both: _change(
        both.lockstep.predicted_tokens_per_second, both.ragged.predicted_tokens_per_second
    ),
}


def _change(one: float | None, other: float | None) -> str:
    return "-" if one is None or not other else percent(one / other - 1)


def waiting(run: BatchRun) -> list[Waiting]:
    """Every row in lockstep, together with the row of the same arm that does not wait."""
    both = []
    for row in run.rows:
        if row.lockstep:
            key = (row.n_texts, row.draft, row.draft_length)
            like = (one for one in run.rows if (one.n_texts, one.draft, one.draft_length) == key and not one.lockstep)
            both.append(Waiting(row, next(like)))
    return both


def knee(entry: KneeEntry | MachineEntry) -> str:
    """The number of texts at which the best speedup falls below 1."""
    if entry.below:
        return "none: slower at every batch"
    if entry.batch is None:
        return f"beyond {max(map(int, entry.best))}"
    return number(entry.batch, 1)


def _at(batch: int) -> Cell:
    """A cell with the best length at a batch and its speedup."""

    def cell(entry: KneeEntry | MachineEntry) -> str:
        if str(batch) not in entry.best:
            return "-"
        k, ratio = entry.best[str(batch)]
        return f"{ratio:.2f}x k={k}"

    return cell


def knees(run: BatchRun) -> Table:
    """Every knee of the record, by context."""
    columns: dict[str, Cell] = {
        "draft": lambda entry: entry.draft,
        "source": lambda entry: entry.source,
        "context": lambda entry: str(entry.context),
        **{f"B = {n}": _at(n) for n in run.batches},
        "pays up to B": knee,
    }
    return Table(run.knees, columns, n_words=2)


def machines(run: BatchRun) -> Table:
    """The table says what data sheets promise."""
    batches = [int(n) for n in run.machines[0].best][::2][:SHOWN_BATCHES] if run.machines else []
    columns: dict[str, Cell] = {
        "machine": lambda entry: entry.machine,
        "context": lambda entry: str(entry.context),
        **{f"B = {n}": _at(n) for n in batches},
        "pays up to B": knee,
    }
    return Table(run.machines, columns)


def library(run: BatchRun) -> Table:
    """`model.generate` over as many prompts, beside plain decoding here, both with prompts' own passes."""

    def ours(entry: dict) -> float:
        row = plain_row(run, entry["n_texts"])
        return row.n_requests * run.settings["max_new_tokens"] / row.total_seconds

    columns: dict[str, Cell] = {
        "B": lambda entry: str(entry["n_texts"]),
        "generate tok/s": lambda entry: rate(entry["n_tokens"] / entry["seconds"]),
        "plain tok/s": lambda entry: rate(ours(entry)),
    }
    return Table([entry for entry in run.library if entry["n_texts"] in run.batches], columns)
