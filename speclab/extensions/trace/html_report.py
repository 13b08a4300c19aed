"""Makes one HTML page of a comparison's page in Markdown, its pictures, and a decoding. See report.py."""

import base64
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speclab.extensions.trace.dials import page as dials

CAPTIONS = {  # end of a picture's file name -> what it shows
    "speedup": "Speedup against the draft length, measured and predicted",
    "why": "From the formula to the measured speedup",
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
    items: Sequence[str] = ()  # of a list
    grid: Grid | None = None


def page(markdown: str, pictures: Sequence[Path], data: dict[str, Any], target: str) -> str:
    """One HTML file.

    markdown: the run's page: where it comes from, the answer under its first heading, then everything else.
    pictures: PNG files, which are put into the page. data: of a decoding, as own_page.py makes it; empty: the page has
    none. target: its name.
    """
    before, answer, rest = _sections(list(parsed(markdown)))
    shown = list(embedded(pictures))
    parts = {"before": before, "answer": answer, "rest": rest, "pictures": shown}
    return dials.render(data, "report.html", target=target, **parts)


def _sections(parts: list[Part]) -> tuple[list[Part], list[Part], list[Part]]:
    """A page in three parts: before the first heading, under it, and from the second heading of its level on."""
    headings = [i for i, part in enumerate(parts) if part.kind == "heading" and part.level == 2]
    first, second = [*headings[:2], len(parts), len(parts)][:2]
    return parts[:first], parts[first:second], parts[second:]


def embedded(pictures: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Caption and data address of each picture."""
    for path in pictures:
        caption = next((text for ending, text in CAPTIONS.items() if path.stem.endswith(ending)), path.stem)
        caption += ", padded pair" * ("-padded-" in path.stem)
        yield caption, "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def parsed(markdown: str) -> Iterator[Part]:
    """The parts of a page that speclab/present/tables.py wrote. Pictures are left out; nothing of a text is markup."""
    for block in markdown.split("\n\n"):
        lines = block.strip("\n").split("\n")
        marks, _, text = lines[0].partition(" ")
        if marks and not marks.strip("#"):
            yield Part("heading", unescaped(text), level=max(2, min(4, len(marks))))
        elif lines[0].startswith("|") and len(lines) > 1:
            yield Part("table", grid=_grid(lines))
        elif lines[0].startswith("- "):
            yield Part("list", items=[unescaped(line.removeprefix("- ")) for line in lines])
        elif not lines[0].startswith("![") and any(lines):
            yield Part("paragraph", unescaped(" ".join(lines)))


def _grid(lines: list[str]) -> Grid:
    """A Markdown table: heads, a line of dashes, rows. Columns of words are filled up with blanks on the right."""
    cells = list(map(cells_of, lines))
    columns = list(zip(*(cells[:1] + cells[2:]), strict=False))
    words = [i == 0 or any(cell.strip() and cell.endswith("  ") for cell in column) for i, column in enumerate(columns)]
    heads, _, *rows = ([cell.strip() for cell in line] for line in cells)
    return Grid(heads, rows, [*words, False].index(False))


def unescaped(markdown: str) -> str:
    """The text that `escaped` was given."""
    parts = re.split(r"\\([\\`*\[\]$_|~#>+.)-])", markdown)  # every second one was escaped by a backslash
    return "".join(
        part if i % 2 else re.sub("&(amp|lt);", lambda found: html.unescape(found[0]), part)
        for i, part in enumerate(parts)
    )


def cells_of(line: str) -> list[str]:
    """The texts in one line of a Markdown table."""
    cells = re.findall(r"((?:[^|\\]|\\.)*)\|", line.strip().removeprefix("|"))
    return [unescaped(cell) for cell in cells]
