"""A comparison of batches on the terminal and as a page: views of its record, nothing is measured here."""

import statistics
from typing import NamedTuple

from speclab.extensions.batch.batch_record import BatchRow, BatchRun, Chosen
from speclab.extensions.batch.knees import KneeEntry
from speclab.present.screen import floor_text, provenance, remarks, rough_line, same_text_lines
from speclab.present.tables import (
    Block,
    Cell,
    Heading,
    Lines,
    Markdown,
    Table,
    number,
    percent,
    rate,
    row_interval,
    show,
    speedup,
    verdict_of,
    with_verdict,
)


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
        rows = [row for row in run.rows if (row.n_texts, row.draft) == (n, draft)]
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
    return with_verdict(speedup(row.speedup), verdict_of(row))


BEST: dict[str, Cell] = {
    "B": lambda pair: str(pair.best.n_texts),
    "plain tok/s": _plain_rate,
    "best k": lambda pair: str(pair.best.draft_length),
    "tok/s": lambda pair: rate(_of_best(pair).tokens_per_second),
    "speedup": lambda pair: gain(_of_best(pair)),
    "95 %": lambda pair: row_interval(_of_best(pair)),
    "expected": lambda pair: speedup(pair.best.predicted_speedup),
    "text s": lambda pair: number(pair.best.latency),
    "plain s": lambda pair: number(pair.plain.latency),
    "ms/token": lambda pair: milliseconds(pair.best.between_tokens),
    "plain ms": lambda pair: milliseconds(pair.plain.between_tokens),
}
ALL: dict[str, Cell] = {
    "draft": lambda row: row.method,
    "B": lambda row: str(row.n_texts),
    "k": lambda row: str(row.draft_length) if row.draft else "-",
    "tok/s": lambda row: rate(row.tokens_per_second),
    "expected tok/s": lambda row: rate(row.predicted_tokens_per_second),
    "error": lambda row: error(row.predicted_tokens_per_second, row.tokens_per_second),
    "speedup": lambda row: gain(row) if row.draft else "-",
    "95 %": row_interval,
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


def knee(entry: KneeEntry) -> str:
    """The number of texts at which the best speedup falls below 1."""
    if entry.below:
        return "none: slower at every batch"
    if entry.batch is None:
        return f"beyond {max(map(int, entry.best))}"
    return number(entry.batch, 1)


def _at(batch: int) -> Cell:
    """A cell with the best length at a batch and its speedup."""

    def cell(entry: KneeEntry) -> str:
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


# --- the page ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    "B is the number of texts that are decoded side by side. plain is decoding token by token, as many texts at a "
    "time, on the same engine; a speedup is over that. tok/s counts all texts together, in the rounds in which every "
    "row has a text, without the prompts' own passes. text s runs from a text's prompt to its last token. expected "
    "follows from decoding one text at a time and from passes over one text, never from a batch."
)
CHOSEN = (
    "best k is chosen on half of the prompts. tok/s, plain tok/s, speedup and 95 % are measured on the other half ({n} "
    "of them), the other columns on all prompts. The interval is over these prompts, each with equal parts of the "
    "passes that it shared. A speedup is unclear where the interval covers 1, or where it lies within the noise floor."
)
CHOSEN_ON_ALL = (
    "best k is chosen on the prompts that are shown, so its speedup tends to be too high: this run has no second half."
)


def text(run: BatchRun) -> str:
    """The terminal shows whether the texts are right, and then the speeds."""
    return show([*correctness(run), *_blocks(run)])


def page(run: BatchRun, picture: str) -> str:
    """Everything in Markdown, with where it comes from."""
    head: list[Block] = [Markdown("# Batches"), provenance(run), *correctness(run), Markdown(f"![Batches]({picture})")]
    return show([*head, *_blocks(run), *_details(run)], markdown=True)


def correctness(run: BatchRun) -> list[Block]:
    """The verdicts on the texts, which must be those of one at a time or follow the target's distribution, and on the
    noise."""
    return [Lines([*same_text_lines(run, run.correctness), *remarks(run)]), Lines([rough_line(run)])]


def lines(run: BatchRun) -> Lines:
    """Lines that say up to which batch each draft pays, and how good the predictions were."""
    filled: list[str | None] = []
    for draft in drafts(run):
        of_draft = [entry for entry in run.knees if entry.draft == draft and entry.context == round(run.mean_context)]
        by_source = {entry.source: knee(entry) for entry in of_draft}
        measured, expected = (by_source.get(source, "unknown") for source in ("measured", "predicted"))
        filled.append(f"{draft}: speculation pays up to a batch of: {measured} (expected: {expected})")
    return Lines([*filled, *error_lines(run), *noise_lines(run)])


def error_lines(run: BatchRun) -> list[str]:
    """Lines with the median errors of the predictions."""
    rates = [(r.predicted_tokens_per_second, r.tokens_per_second) for r in run.rows if r.n_texts > 1]
    timed = [(one.predicted, one.seconds) for one in run.passes if one.n_texts > 1]
    filled = []
    for what, both in (("passes over several texts", timed), ("tokens a second of batches", rates)):
        errors = [abs(predicted / measured - 1) for predicted, measured in both if predicted]
        if errors:
            filled.append(f"{what}: median error of the expectation {statistics.median(errors):.1%} ({len(errors)})")
    return filled


def noise_lines(run: BatchRun) -> list[str]:
    """A line with the ratio of plain decoding to its own second run, for every batch."""
    floors = [f"B = {one.n_texts} {floor_text(one)}" for one in run.noise or []]
    return [f"noise floor, plain decoding against itself in the same run: {', '.join(floors)}"] if floors else []


def plain_gain(run: BatchRun) -> str:
    """This line says what batching alone gains."""
    one, most = plain_row(run, 1), plain_row(run, max(run.batches))
    ratio = most.tokens_per_second / one.tokens_per_second
    return f"plain decoding: {most.n_texts} texts at a time make {ratio:.2f} times the tokens a second of one"


def notes(run: BatchRun) -> Lines:
    """These lines say what a reader must know about the table."""
    halves = {entry.n_prompts for entry in run.chosen or []}
    chosen = CHOSEN.format(n=" to ".join(map(str, sorted({min(halves), max(halves)})))) if halves else CHOSEN_ON_ALL
    chosen = CHOSEN_ON_ALL if run.n_distinct == 1 else chosen
    return Lines([COLUMNS, chosen, copies_line(run), *one_by_one_lines(run), plain_gain(run)])


def copies_line(run: BatchRun) -> str | None:
    """A line that says that some batches hold the same prompt twice; None where none does."""
    n = run.n_distinct or run.settings["n_prompts"]
    if max(run.batches) <= n:
        return None
    several = ", ".join(str(batch) for batch in run.batches if batch > n)
    return f"B = {several}: more rows than different prompts ({n}), so some decode copies"


def one_by_one_lines(run: BatchRun) -> list[str]:
    """A line names each draft that has no pass for all rows together, and so goes row by row."""
    return [
        f"{draft}: drafts row by row, so drafting for B texts takes B times as long as for one"
        for draft in run.row_by_row or []
    ]


def _blocks(run: BatchRun) -> list[Block]:
    blocks: list[Block] = []
    for draft in drafts(run):
        blocks += [
            Heading(f"{draft}: the best draft length of each batch"),
            Table(pairs(run, draft), BEST),
        ]
    return [*blocks, notes(run), lines(run)]


def _details(run: BatchRun) -> list[Block]:
    several = [one for one in run.passes if one.n_texts > 1]  # of older records
    return [
        Heading("Where speculation stops paying"),
        knees(run),
        Heading("All rows"),
        Table(run.rows, ALL),
        Heading(f"Passes over {'several texts' if several else 'one text'}"),
        Table(several or run.passes, PASSES),
    ]
