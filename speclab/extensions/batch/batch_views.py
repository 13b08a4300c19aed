"""A comparison of batches on the terminal and as a page: views of its record, nothing is measured here."""

import statistics

from speclab.extensions.batch import batch_tables
from speclab.extensions.batch.batch_record import BatchRun
from speclab.extensions.batch.batch_tables import ALL, BEST, LOCKSTEP, PASSES, drafts, knee, pairs, plain_row, waiting
from speclab.present.first_screen import same_text_lines
from speclab.present.run_lines import doubt, provenance, remarks
from speclab.present.tables import Block, Heading, Lines, Markdown, Table, interval, show, speedup

COLUMNS = (
    "B is the number of texts that are decoded side by side. plain is decoding token by token, as many texts at a "
    "time, on the same engine; a speedup is over that. tok/s counts all texts together, in the rounds in which every "
    "row has a text, without the prompts' own passes. text s runs from a text's prompt to its last token. expected "
    "follows from passes over one text, never from a batch."
)
CHOSEN = (
    "best k is chosen on half of the prompts. tok/s, plain tok/s, speedup and 95 % are measured on the other half ({n} "
    "of them), the other columns on all prompts. The interval is over these prompts, each with equal parts of the "
    "passes that it shared. A speedup is unclear where the interval covers 1, or where it lies within the noise floor."
)
CHOSEN_ON_ALL = (
    "best k is chosen on the prompts that are shown, so its speedup tends to be too high: this run has no second half."
)
FROM_DATA_SHEETS = (
    "This is PREDICTED, not measured. The same model of costs gets the bandwidth and the arithmetic of data sheets, "
    "weights of two bytes and the acceptance of this run; nothing but passes takes time."
)


def text(run: BatchRun) -> str:
    """The terminal shows whether the texts are right, and then the speeds, unless these cannot be trusted."""
    speeds = [] if doubt(run) else _blocks(run, whole=run.thorough)
    return show([*correctness(run), *speeds])


def page(run: BatchRun, picture: str) -> str:
    """Everything in Markdown, with where it comes from."""
    head: list[Block] = [Markdown("# Batches"), provenance(run), *correctness(run), Markdown(f"![Batches]({picture})")]
    return show([*head, *_blocks(run, whole=True), *_details(run)], markdown=True)


def correctness(run: BatchRun) -> list[Block]:
    """The verdicts on the texts, which must be those of one at a time or follow the target's distribution, and on the
    noise."""
    return [Lines([*same_text_lines(run, run.correctness), *remarks(run)]), Lines([doubt(run)])]


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
    floors = [f"B = {one.n_texts} {speedup(one.ratio)} ({interval(one.low, one.high)})" for one in run.noise or []]
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
    return f"B = {several}: more rows than different prompts ({n}), so some decode copies; in lockstep only up to {n}"


def one_by_one_lines(run: BatchRun) -> list[str]:
    """A line names each draft that has no pass for all rows together, and so goes row by row."""
    return [
        f"{draft}: drafts row by row, so drafting for B texts takes B times as long as for one"
        for draft in run.row_by_row or []
    ]


def _blocks(run: BatchRun, whole: bool) -> list[Block]:
    blocks: list[Block] = []
    for draft in drafts(run):
        blocks += [Heading(f"{draft}: the best draft length of each batch"), Table(pairs(run, draft), BEST)]
    blocks += [notes(run), lines(run)]
    if whole:
        blocks += [Heading("Where speculation stops paying"), batch_tables.knees(run)]
        blocks += [Heading("What waiting for the slowest row costs"), Table(waiting(run), LOCKSTEP)]
        blocks += [Heading("The library's own batches, with the prompts' own passes"), batch_tables.library(run)]
        if run.machines:
            title = f"Other machines: {run.machines[0].models}"
            blocks += [Heading(title), batch_tables.machines(run), FROM_DATA_SHEETS]
    return blocks


def _details(run: BatchRun) -> list[Block]:
    timed = [one for one in run.passes if one.n_texts > 1]
    return [Heading("All rows"), Table(run.rows, ALL), Heading("Passes over several texts"), Table(timed, PASSES)]
