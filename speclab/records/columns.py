"""Columns that a kind of draft adds to the rows of a comparison: shares of its own, means over the decoded tokens.

A row holds them as `own_rates`, and a page shows them as they are, beside the ladder. Their words stand here.
"""

from dataclasses import dataclass

from speclab.system import extensions


@dataclass(frozen=True)
class Columns:
    """The words of pages about these columns. meanings: the head of each -> a line of the legend.

    line: says the means of a draft at one temperature, with the heads in braces: "{draft out:.1%} of the tokens".
    """

    meanings: dict[str, str]
    line: str


_COLUMNS: list[Columns] = []


def add_columns(columns: Columns) -> None:
    """A register.py calls this to say that a kind of draft has these columns."""
    _COLUMNS.append(columns)


def columns() -> list[Columns]:
    extensions.load()
    return _COLUMNS
