"""Tables, and how the numbers and names in them are written."""

from collections.abc import Callable, Sequence
from typing import Any

import tabulate

from speclab.records.rows import Row

tabulate.MIN_PADDING = 0  # its extra blanks around headers would widen every table

WIDTH = 100  # columns that every table in the terminal fits into
NAME_WIDTH = 8  # of a draft's name there

Cell = Callable[[Any], str]  # a row, or another part of a record -> what stands in one column


def table(rows: list[list[str]], headers: list[str], markdown: bool = False, n_words: int = 1) -> str:
    """Cells as a table for the terminal, or as one of Markdown.

    The first `n_words` columns hold words and are aligned left, all others are aligned right.
    """
    align = ["left"] * n_words + ["right"] * (len(headers) - n_words)
    return tabulate.tabulate(
        rows,
        headers,
        tablefmt="github" if markdown else "simple",
        colalign=align if rows else None,
        disable_numparse=True,
    )


def columns(rows: Sequence[Any], cells: dict[str, Cell], markdown: bool = False) -> str:
    """A table with one line per row. cells: the head of each column -> its cell."""
    return table([[cell(row) for cell in cells.values()] for row in rows], list(cells), markdown)


def column(key: str, digits: int = 2) -> Cell:
    """A cell with a number of the row."""
    return lambda row: number(getattr(row, key), digits)


def prediction(predicted: Callable[[Any], float | None]) -> Cell:
    """A cell such as "2.58 +106%": a prediction and its error, predicted / measured - 1."""

    def cell(row: Any) -> str:
        value = predicted(row)
        return "-" if value is None else f"{value:.2f} {percent(value / row.speedup - 1):>5}"

    return cell


def number(value: float | None, digits: int = 2) -> str:
    """A number with this many digits after the point; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def speedup(value: float | None) -> str:
    """1.45x; a dash where there is none."""
    return "-" if value is None else f"{value:.2f}x"


def interval(low: float | None, high: float | None) -> str:
    """1.31 to 1.64; a dash where there is no interval."""
    return "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def percent(share: float | None) -> str:
    """A signed share in five characters or fewer; beyond a factor of ten it no longer matters how far."""
    if share is None:
        return "-"
    return f"{share:+.0%}" if share < 9.995 else ">999%"


def label(row: Row) -> str:
    """A speculative row in a line of text: model k=4"""
    return f"{row.method} k={row.draft_length}"


def temperature_name(temperature: float) -> str:
    """T = 0 (greedy), T = 0.8 (sampling)"""
    return f"T = {temperature:g} ({'sampling' if temperature else 'greedy'})"


def short_names(names: list[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Name -> the same in at most `width` characters. Different names stay different: where cutting is not enough,
    they are numbered.
    """
    names = list(dict.fromkeys(names))
    short = {name: name if len(name) <= width else name[: width - 1] + "…" for name in names}
    if len(set(short.values())) < len(names):
        numbered = {name: f"{name[: width - 3]}…{i}" for i, name in enumerate(names, 1)}
        short = {name: name if len(name) <= width else numbered[name] for name in names}
    return short


def draft_names(rows: list[Row], markdown: bool) -> dict[str, str]:
    """Method -> what a table calls it. In the terminal drafts are cut, to the same names in every table."""
    methods = {row.method: row.method for row in rows}
    return methods if markdown else methods | short_names([row.method for row in rows if row.draft])
