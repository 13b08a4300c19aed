"""A comparison of batches as tables, lines, a picture and a page: views of its record, nothing is measured here."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from speclab.present.pictures import figures
from speclab.present.pictures.figures import STYLES, Panel, Series, draw, plain
from speclab.present.run_lines import provenance, remarks
from speclab.present.tables import (
    Block,
    Cell,
    Heading,
    Lines,
    Table,
    interval,
    number,
    percent,
    show,
    speedup,
)
from speclab.records.batches import BatchRow, BatchRun, KneeEntry, MachineEntry
from speclab.theory.curves import Value

COLUMNS = (
    "B: texts that are decoded side by side; plain: token by token, as many at a time, on the same engine; speedup: "
    "over that; tok/s: of all texts together, in the rounds in which every row has a text, prompts' own passes apart; "
    "text: from its prompt to its last token; expected: from passes over one text, never from a batch"
)
FROM_DATA_SHEETS = (
    "PREDICTED, not measured: the same model of costs with the bandwidth and the arithmetic of data sheets, weights of "
    "two bytes, the acceptance of this run, no time for anything but passes"
)
SHOWN_BATCHES = 5  # of a machine


class Pair(NamedTuple):
    """The best length of a draft at one batch, and plain decoding of as many texts at a time."""

    best: BatchRow
    plain: BatchRow


def error(predicted: float | None, measured: float) -> str:
    """How far a prediction is off, predicted / measured - 1."""
    return "-" if predicted is None else percent(predicted / measured - 1)


def rate(value: float | None) -> str:
    """Tokens a second."""
    return number(value, 1 if value is not None and value < 999.95 else 0)


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds."""
    return "-" if value is None else number(1e3 * value)


def drafts(run: BatchRun) -> list[str]:
    """Names of the drafts, in their order."""
    return list(dict.fromkeys(row.draft for row in run.rows if row.draft))


def pairs(run: BatchRun, draft: str) -> list[Pair]:
    """Of every batch the fastest length."""
    found = []
    for n in run.batches:
        of_draft = [row for row in run.rows if (row.n_texts, row.draft, row.lockstep) == (n, draft, False)]
        found.append(Pair(max(of_draft, key=lambda row: row.speedup), _plain(run, n)))
    return found


def _plain(run: BatchRun, n_texts: int) -> BatchRow:
    return next(row for row in run.rows if row.n_texts == n_texts and row.draft is None)


BEST: dict[str, Cell] = {
    "B": lambda pair: str(pair.best.n_texts),
    "plain tok/s": lambda pair: rate(pair.plain.tokens_per_second),
    "best k": lambda pair: str(pair.best.draft_length),
    "tok/s": lambda pair: rate(pair.best.tokens_per_second),
    "speedup": lambda pair: speedup(pair.best.speedup),
    "95 %": lambda pair: interval(pair.best.speedup_low, pair.best.speedup_high),
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
    "speedup": lambda row: speedup(row.speedup) if row.draft else "-",
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
    """All rows in lockstep with their like."""
    found = []
    for row in run.rows:
        if row.lockstep:
            key = (row.n_texts, row.draft, row.draft_length)
            like = (one for one in run.rows if (one.n_texts, one.draft, one.draft_length) == key and not one.lockstep)
            found.append(Waiting(row, next(like)))
    return found


def knee(entry: KneeEntry | MachineEntry) -> str:
    """Where the best speedup falls to 1."""
    if entry.below:
        return "none: slower at every batch"
    if entry.batch is None:
        return f"beyond {max(map(int, entry.best))}"
    return number(entry.batch, 1)


def _at(batch: int) -> Cell:
    """The best length and its speedup at a batch."""

    def cell(entry: KneeEntry | MachineEntry) -> str:
        k, gain = entry.best[str(batch)]
        return f"{gain:.2f}x k={k}"

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
    """What data sheets say."""
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
        row = _plain(run, entry["n_texts"])
        return row.n_requests * run.settings["max_new_tokens"] / row.total_seconds

    columns: dict[str, Cell] = {
        "B": lambda entry: str(entry["n_texts"]),
        "generate tok/s": lambda entry: rate(entry["n_tokens"] / entry["seconds"]),
        "plain tok/s": lambda entry: rate(ours(entry)),
    }
    return Table([entry for entry in run.library if entry["n_texts"] in run.batches], columns)


def lines(run: BatchRun) -> Lines:
    """For each draft up to which batch it pays, and how good the predictions were."""
    filled: list[str | None] = []
    for draft in drafts(run):
        of_draft = [entry for entry in run.knees if entry.draft == draft and entry.context == round(run.mean_context)]
        by_source = {entry.source: knee(entry) for entry in of_draft}
        expected = by_source.get("predicted", "unknown")
        filled.append(f"{draft}: speculation pays up to a batch of: {by_source['measured']} (expected: {expected})")
    return Lines([*filled, *error_lines(run), *remarks(run)])


def error_lines(run: BatchRun) -> list[str]:
    """Median errors of what was predicted."""
    rounds = [(r.predicted_tokens_per_second, r.tokens_per_second) for r in run.rows if r.n_texts > 1]
    timed = [(one.predicted, one.seconds) for one in run.passes if one.n_texts > 1]
    found = []
    for what, both in (("passes over several texts", timed), ("tokens a second of batches", rounds)):
        errors = [abs(predicted / measured - 1) for predicted, measured in both if predicted]
        if errors:
            found.append(f"{what}: median error of the expectation {statistics.median(errors):.1%} ({len(errors)})")
    return found


def plain_gain(run: BatchRun) -> str:
    """What batching alone gains."""
    one, most = _plain(run, 1), _plain(run, max(run.batches))
    gain = most.tokens_per_second / one.tokens_per_second
    return f"plain decoding: {most.n_texts} texts at a time make {gain:.2f} times the tokens a second of one"


def text(run: BatchRun) -> str:
    """What the terminal shows."""
    return show(_blocks(run, whole=run.thorough))


def page(run: BatchRun, picture: str) -> str:
    """Everything in Markdown, with where it comes from."""
    head: list[Block] = ["# Batches", provenance(run), f"![Batches]({picture})"]
    return show([*head, *_blocks(run, whole=True), *_details(run)], markdown=True)


def _blocks(run: BatchRun, whole: bool) -> list[Block]:
    blocks: list[Block] = []
    for draft in drafts(run):
        blocks += [Heading(f"{draft}: the best draft length of each batch"), Table(pairs(run, draft), BEST)]
    blocks += [Lines([COLUMNS, plain_gain(run)]), lines(run)]
    if whole:
        blocks += [Heading("Where speculation stops paying"), knees(run)]
        blocks += [Heading("What waiting for the slowest row costs"), Table(waiting(run), LOCKSTEP)]
        blocks += [Heading("The library's own batches, with the prompts' own passes"), library(run)]
        if run.machines:
            blocks += [Heading(f"Other machines: {run.machines[0].models}"), machines(run), FROM_DATA_SHEETS]
    return blocks


def _details(run: BatchRun) -> list[Block]:
    timed = [one for one in run.passes if one.n_texts > 1]
    return [Heading("All rows"), Table(run.rows, ALL), Heading("Passes over several texts"), Table(timed, PASSES)]


def picture(run: BatchRun, folder: Path, name: str) -> Path:
    """Write folder/name.png: speedups by batch, a panel for each draft, and tokens a second."""
    panels = [_speedups(run, draft) for draft in drafts(run)]
    return figures.save(draw([*panels, _rates(run)]), run, folder, name)


def _series(
    rows: list[BatchRow], label: str, look: int, value: Callable[[BatchRow], Value], expected: str
) -> list[Series]:
    predicted = plain((row.n_texts, getattr(row, expected)) for row in rows)
    return [
        Series(label, {row.n_texts: value(row) for row in rows}, look),
        Series("expected", predicted, look, STYLES[0]),
    ]


def _speedups(run: BatchRun, draft: str) -> Panel:
    series = []
    lengths = sorted({row.draft_length for row in run.rows if row.draft == draft})
    for look, k in enumerate(lengths):
        rows = [r for r in run.rows if (r.draft, r.draft_length, r.lockstep) == (draft, k, False)]
        series += _series(
            rows, f"k = {k}", look, lambda r: Value(r.speedup, r.speedup_low, r.speedup_high), "predicted_speedup"
        )
    label = "speedup over plain decoding of as many texts"
    return Panel(series, "texts at a time, B", label, title=draft, log=True)


def _rates(run: BatchRun) -> Panel:
    series = _series(
        [_plain(run, n) for n in sorted({1, *run.batches})],
        "plain",
        6,
        lambda r: Value(r.tokens_per_second, None, None),
        "predicted_tokens_per_second",
    )
    for look, draft in enumerate(drafts(run)):
        rows = [pair.best for pair in pairs(run, draft)]
        series += _series(
            rows,
            f"{draft}, best k",
            look,
            lambda r: Value(r.tokens_per_second, None, None),
            "predicted_tokens_per_second",
        )
    return Panel(series, "texts at a time, B", "tokens a second, all texts together", title="all texts", log=True)
