"""Pages are lists of blocks: headings, lines, paragraphs and tables. One function shows them, here or in Markdown."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tabulate

from speclab.records.rows import AUTO
from speclab.theory.formulas import FEWEST

tabulate.MIN_PADDING = 0  # a column is as wide as its widest text
WIDTH = 100  # of lines of text in the terminal
NAME_WIDTH = 20  # of a draft's name there

Cell = Callable[[Any], str]  # a row, or another part of a record -> what stands in one column


class Heading(NamedTuple):
    """A heading in Markdown, a line in the terminal. It is left out where nothing is shown below it."""

    text: str
    level: int = 2


class Lines(list[str | None]):
    """A list in Markdown, lines in the terminal. None is left out."""


class Table(NamedTuple):
    """One line per row. In the terminal, long names of drafts are cut."""

    rows: Sequence[Any]
    cells: dict[str, Cell]  # the head of each column -> its cell
    n_words: int = 1  # the first columns hold words: aligned left


class Markdown(str):
    """A text that is Markdown already: all others are escaped on a page."""


Block = Heading | Lines | Table | str | None
# This would be markup: code, emphasis, links and pictures, entities, tags. Names of models and files hold anything.
MARKUP = re.compile(r"([\\`\[\]$]|~(?=~)|#(?=#*\s*$)|\*(?=\w)|(?<!\w)[*_](?=\S))|(&(?=#?\w+;))|(<(?=[A-Za-z/!?]))")

# At the start of a line: a heading, a quotation, an item of a list, a rule.
START = re.compile(r"^(\d*)([.)](?=\s|$)|#(?=#*(?:\s|$))|[+*-](?=\s|$)|[*_-](?=[\s*_-]*$)|>)")


def escaped(text: str) -> str:
    """Return a text as Markdown that shows all of its characters, on one line."""
    if isinstance(text, Markdown):
        return text
    text = " ".join(text.splitlines()).strip()
    return MARKUP.sub(lambda found: f"\\{found[1]}" if found[1] else "&amp;" if found[2] else "&lt;", text)


def _line(text: str, markdown: bool, indent: str = "") -> str:
    if markdown:
        return text if isinstance(text, Markdown) else START.sub(r"\1\\\2", escaped(text))
    return textwrap.fill(text, WIDTH - 1, subsequent_indent=indent)


def show(blocks: Iterable[Block], markdown: bool = False) -> str:
    """Return the blocks that have something to show, as one text."""
    texts: list[str] = []
    above: list[str] = []  # the heading, for which something has yet to come
    for block in blocks:
        if isinstance(block, Heading):
            above = [f"{'#' * block.level} {escaped(block.text)}" if markdown else _line(block.text, markdown)]
        elif text := _text(block, markdown):
            texts += [*above, text]
            above = []
    return "\n\n".join(texts) + "\n"


def _text(block: Lines | Table | str | None, markdown: bool) -> str | None:
    if isinstance(block, Lines):
        return "\n".join("- " * markdown + _line(line, markdown, "    ") for line in block if line)
    if not isinstance(block, Table):
        return block and _line(block, markdown)

    def written(head: str, text: str) -> str:
        if markdown:
            return text if isinstance(text, Markdown) else escaped(text).replace("|", r"\|")
        text = text.replace("\n", " ")
        return short(text, NAME_WIDTH) if head == "draft" else text

    lines = [[written(head, cell(row)) for head, cell in block.cells.items()] for row in block.rows]
    return table(lines, list(block.cells), markdown, block.n_words) if lines else None


def table(rows: Sequence[Sequence[str]], heads: list[str], markdown: bool = False, n_words: int = 1) -> str:
    """Return the cells as a table, here or in Markdown. Columns behind the first `n_words` are aligned right."""
    sides = ["left"] * n_words + ["right"] * (len(heads) - n_words)
    how = {"colalign": sides, "disable_numparse": True, "tablefmt": "github" if markdown else "simple"}
    return "\n".join(line.rstrip() for line in tabulate.tabulate(rows, heads, **how).splitlines())


def short(name: str, width: int) -> str:
    """Return a name in at most `width` characters, cut in its middle."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - half]}…{name[-half:]}"


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def speedup(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def speedup_of(row: Any) -> str:
    """Return the speedup of a row; where its rule is lossy, never without the measured total variation distance."""
    return speedup(row.speedup) + (f" LOSSY {number(row.total_variation, 3)}" if row.lossy_rule else "")


def interval(low: float | None, high: float | None, n_prompts: int = FEWEST) -> str:
    """Write an interval, or that its prompts are too few for one."""
    none = "-" if n_prompts >= FEWEST else f"few prompts: {n_prompts}"
    return none if low is None or high is None else f"{low:.2f} to {high:.2f}"


def temperature_name(temperature: float) -> str:
    return f"T = {temperature:g} ({'sampling' if temperature else 'greedy'})"


def prediction(predicted: Callable[[Any], float | None]) -> Cell:
    """Return a cell such as "2.58 +106%": a prediction and its error, predicted / measured - 1."""
    return lambda row: "-" if (it := predicted(row)) is None else f"{it:.2f} {it / row.speedup - 1:>+z5.0%}"


def drafts_only(cell: Cell) -> Cell:
    return lambda row: cell(row) if row.draft else "-"


CELLS: dict[str, Cell] = {  # columns that several tables have
    "draft": lambda row: row.method,
    "k": drafts_only(lambda row: "≤ " * row.draft.endswith(AUTO) + str(row.draft_length)),
    "T": lambda row: f"{row.temperature:g}",
    "B": lambda row: str(row.n_texts),
    "tok/s": lambda row: number(row.tokens_per_second, int(row.tokens_per_second < 999.95)),
    "speedup": speedup_of,
    "measured": speedup_of,
    "95 %": drafts_only(lambda row: interval(row.speedup_low, row.speedup_high, row.n_prompts)),
    "end to end": drafts_only(lambda row: speedup(row.speedup_with_prefill)),
    "α": lambda row: number(row.acceptance_rate),
    "f": lambda row: number(row.drafted_fraction),
    "tok/rnd": lambda row: number(row.tokens_per_round),
    "c": lambda row: number(row.draft_cost, 3) if row.draft_length else "-",
    "v": lambda row: number(row.verify_cost),
    "o": lambda row: number(row.overhead, 3),
}


def cells(*heads: str) -> dict[str, Cell]:
    return {head: CELLS[head] for head in heads}


def batches(rows: Iterable[Any]) -> list[str]:
    """Return the head of the column with the number of texts at a time, where some row has several."""
    return ["B"] * any(row.n_texts > 1 for row in rows)
