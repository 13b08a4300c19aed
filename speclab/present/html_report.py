"""A comparison as one HTML file that needs no network: the answer, tables, pictures, and a decoding.

python compare.py --report report.html
"""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from speclab.lab.tracing.trace import Trace
from speclab.present import report, trace_page
from speclab.present.run_lines import provenance, remarks
from speclab.present.tables import interval, percent, speedup, temperature_name
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun

CAPTIONS = {  # end of a picture's file name -> what it shows
    "speedup": "Speedup against the draft length, measured and predicted",
    "why": "From the formula to the measured speedup",
    "accepted-lengths": "How many drafted tokens a round accepts",
    "predicted": "Predicted against measured",
}


class Grid(NamedTuple):
    """A table as texts."""

    heads: list[str]
    rows: list[list[str]]
    n_words: int  # the first columns are aligned left


class Part(NamedTuple):
    """A piece of a page: `kind` is heading, list, table or paragraph."""

    kind: str
    text: str = ""
    level: int = 2  # of a heading
    items: list[str] | None = None  # of a list
    grid: Grid | None = None


def page(run: ComparisonRun, markdown: str, pictures: Sequence[Path], trace: Trace) -> str:
    """One HTML file. markdown: the run's page with all tables; pictures: PNG files, which are put into the page."""
    fastest = best(run)
    return trace_page.render(
        "report.html",
        trace,
        headline=headline(run),
        provenance=provenance(run),
        speeds=[(temperature_name(t), speed_grid(run, t), fastest) for t in temperatures(run)],
        columns=report.COLUMNS,
        pictures=list(embedded(pictures)),
        parts=list(parsed(markdown)),
    )


# --- the answer -------------------------------------------------------------------------------------------------------


def temperatures(run: ComparisonRun) -> list[float]:
    """Those of the rows, in their order."""
    return list(dict.fromkeys(row.temperature for row in run.rows))


def best(run: ComparisonRun) -> Row | None:
    """The fastest speculative row over all prompts, at the run's first temperature; None where nothing was drafted."""
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all"]
    rows = [row for row in rows if row.temperature == rows[0].temperature]
    return max(rows, key=lambda row: row.speedup, default=None)


def headline(run: ComparisonRun) -> list[str]:
    """Same text or not; the best row; what the formula says of it."""
    greedy = [entry for entry in run.correctness if entry["temperature"] == 0]
    sampled = [entry for entry in run.correctness if entry["temperature"] != 0]
    lines = [*remarks(run), *report.agreement_lines(greedy)[-1:]]
    if sampled:
        passed = sum(entry["passed"] for entry in sampled)
        lines.append(f"sampled: {passed} of {len(sampled)} arms are consistent with the target's distribution")
    row = best(run)
    if row is None:
        return lines
    lines.append(
        f"fastest row, {temperature_name(row.temperature)}: {row.method} k = {row.draft_length}, "
        f"{speedup(row.speedup)}{' slower' * (row.speedup < report.NOT_SLOWER)} "
        f"(95 %: {interval(row.speedup_low, row.speedup_high)}), {row.tokens_per_second:.1f} tokens/s"
    )
    if row.book_formula is not None:
        lines.append(_formula_line(row))
    return lines


def _formula_line(row: Row) -> str:
    """The formula's value for a row, and the forecast's where there is one."""
    said = {"formula 1/(1-α+α/k)": row.book_formula, "forecast": row.forecast}
    parts = [f"{name}: {speedup(x)} ({percent(x / row.speedup - 1)})" for name, x in said.items() if x is not None]
    return f"predicted for this row, in brackets predicted / measured - 1: {'; '.join(parts)}"


def speed_grid(run: ComparisonRun, temperature: float) -> Grid:
    """The speed table over all prompts, the first column with the draft's name."""
    rows = [row for row in run.rows if row.prompt_kind == "all" and row.temperature == temperature]
    table = report.speed_table(rows)
    cells = [[cell(row) for cell in table.cells.values()] for row in table.rows]
    return Grid(list(table.cells), cells, table.n_words)


def embedded(pictures: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Caption and data address of each picture."""
    for path in pictures:
        caption = next((text for ending, text in CAPTIONS.items() if path.stem.endswith(ending)), path.stem)
        yield caption, "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


# --- the other tables -------------------------------------------------------------------------------------------------


def parsed(markdown: str) -> Iterator[Part]:
    """The parts of a page that speclab/present/tables.py wrote. Pictures are left out; nothing of a text is markup."""
    for block in markdown.split("\n\n"):
        lines = block.strip("\n").split("\n")
        if lines[0].startswith("#"):
            marks, _, text = lines[0].partition(" ")
            yield Part("heading", text, level=min(4, len(marks) + 1))
        elif lines[0].startswith("|") and len(lines) > 1:
            yield Part("table", grid=_grid(lines))
        elif lines[0].startswith("- "):
            yield Part("list", items=[line.removeprefix("- ") for line in lines])
        elif not lines[0].startswith("![") and any(lines):
            yield Part("paragraph", " ".join(lines))


def _grid(lines: list[str]) -> Grid:
    """A Markdown table: heads, the line that aligns, rows."""
    heads, marks, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines)
    return Grid(heads, rows, sum(not mark.endswith(":") for mark in marks))
