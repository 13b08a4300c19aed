"""Pages are lists of blocks: headings, lines, paragraphs and tables. One function shows them, here or in Markdown."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from speclab.records.arms import AUTO
from speclab.theory.formulas import FEWEST

try:
    import tabulate

    tabulate.MIN_PADDING = 0  # its extra blanks around headers would widen every table
except ImportError:  # a run measures all the same, and its tables have tabs
    tabulate = None

WIDTH = 100  # columns that every table in the terminal fits into
NAME_WIDTH = 20  # of a draft's name there

Cell = Callable[[Any], str]  # a row, or another part of a record -> what stands in one column


class Heading(NamedTuple):
    """A heading in Markdown, a line in the terminal. It is left out where the next block is."""

    text: str
    level: int = 2


class Lines(list[str | None]):
    """A list in Markdown, lines in the terminal. None is left out."""


class Table(NamedTuple):
    """One line per row. In the terminal, long names of drafts are cut, and columns that no longer fit go into a second
    table beneath, after the first two, which say what row it is.
    """

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
    """Return a text as Markdown that shows all of its characters, on one line. Not at the start of a line: see `_line`.

    A viewer may make links of the addresses and @names in it; what is read stays the same.
    """
    if isinstance(text, Markdown):
        return text
    text = " ".join(text.splitlines())
    return MARKUP.sub(lambda found: f"\\{found[1]}" if found[1] else "&amp;" if found[2] else "&lt;", text)


def _line(text: str) -> str:
    """Return a text as Markdown that a paragraph or an item of a list begins with."""
    return escaped(text) if isinstance(text, Markdown) else START.sub(r"\1\\\2", escaped(text).strip())


def _cell(text: str) -> str:
    return escaped(text) if isinstance(text, Markdown) else escaped(text).replace("|", r"\|")


def show(blocks: Iterable[Block], markdown: bool = False) -> str:
    """Return the blocks that have something to show, as one text."""
    texts: list[str] = []
    above = ""  # the heading, for which something has yet to come
    for block in blocks:
        if isinstance(block, Heading):
            above = f"{'#' * block.level} {escaped(block.text)}\n\n" if markdown else f"{_wrapped(block.text)}\n\n"
        else:
            if text := _text(block, markdown):
                texts.append(above + text)
            above = ""
    return "\n\n".join(texts) + "\n"


def _text(block: Lines | Table | str | None, markdown: bool) -> str | None:
    if isinstance(block, Table):
        return _columns(block, markdown)
    if not isinstance(block, Lines):
        return (_line(block) if markdown else _wrapped(block)) if block else block
    lines = filter(None, block)
    if markdown:
        return "\n".join(f"- {_line(line).strip()}" for line in lines)
    return "\n".join(_wrapped(line, "    ") for line in lines)


def _wrapped(paragraph: str, indent: str = "") -> str:
    return textwrap.fill(paragraph, WIDTH - 1, subsequent_indent=indent)


def _columns(block: Table, markdown: bool) -> str | None:
    """Return the table with its cells filled in; None where there is no row."""
    written = _cell if markdown else (lambda text: text.replace("\n", " "))
    filled = {head: [written(cell(row)) for row in block.rows] for head, cell in block.cells.items()}
    heads = list(filled)
    keys, parts = heads[:2], [heads]
    if not markdown:
        if "draft" in filled:
            short = short_names(filled["draft"], NAME_WIDTH)
            filled["draft"] = [short[name] for name in filled["draft"]]
        parts = [list(keys)]
        for head in heads[2:]:
            widths = [max(map(len, [name, *filled[name]])) + 2 for name in (*parts[-1], head)]
            if sum(widths) > WIDTH + 2:
                parts.append(list(keys))
            parts[-1].append(head)
    lines = [list(map(list, zip(*(filled[head] for head in part), strict=True))) for part in parts]
    texts = [table(cells, part, markdown, block.n_words) for cells, part in zip(lines, parts, strict=True)]
    return "\n\n".join(texts) if block.rows else None


def table(rows: list[list[str]], headers: list[str], markdown: bool = False, n_words: int = 1) -> str:
    """Return the cells as a table for the terminal, or as one in Markdown.

    The first `n_words` columns hold words and are aligned left, all others are aligned right.
    """
    if tabulate is None:
        rule = [["---"] * len(headers)] * markdown
        ends = "| {} |" if markdown else "{}"
        return "\n".join(ends.format((" | " if markdown else "\t").join(row)) for row in [headers, *rule, *rows])
    look: dict[str, Any] = {"tablefmt": "github" if markdown else "simple", "disable_numparse": True}
    if rows:
        look["colalign"] = ["left"] * n_words + ["right"] * (len(headers) - n_words)
    return tabulate.tabulate(rows, headers, **look)


def short_names(names: list[str], width: int) -> dict[str, str]:
    """Return a dict: name -> the same in at most `width` characters. Different names stay different: where cutting is
    not enough, they are numbered.
    """
    names = list(dict.fromkeys(names))
    short = {name: name if len(name) <= width else name[: width - 1] + "…" for name in names}
    if len(set(short.values())) < len(names):
        numbered = {name: f"{name[: width - 3]}…{i}" for i, name in enumerate(names, 1)}
        short = {name: name if len(name) <= width else numbered[name] for name in names}
    return short


# --- how numbers are written ------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with this many digits after the point; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def cost(value: float | None, digits: int = 2, error: float = 0.0) -> str:
    """Return a cost, which is never negative: 318; `< 12` where it may be 0: it lies within two
    standard errors of it, or below one unit of the last digit.
    """
    if value is None:
        return "-"
    unit = 10.0**-digits
    if value >= unit and value > 2 * error:
        return number(value, digits)
    return f"< {max(unit, value + 2 * error):.{digits}f}"


def rate(value: float | None) -> str:
    """Return tokens a second."""
    return number(value, 1 if value is not None and value < 999.95 else 0)


def speedup(value: float | None) -> str:
    """Write 1.45x, or a dash where there is no speedup."""
    return "-" if value is None else f"{value:.2f}x"


def speedup_of(row: Any) -> str:
    """Return the speedup of a row; where its rule is lossy, never without that and the measured total variation
    distance."""
    return speedup(row.speedup) + (f" LOSSY {number(row.total_variation, 3)}" if row.lossy_rule else "")


def with_verdict(text: str, verdict: str | None) -> str:
    """Return a speedup, in words where it is none or may be none."""
    return f"{text} {verdict}" if verdict in ("slower", "unclear") else text


def verdict_of(row: Any) -> str | None:
    """Return the verdict of a row; None where it is unclear only because the prompts are too few for an interval."""
    return row.verdict if row.speedup_low is not None or row.verdict != "unclear" else None


def row_interval(row: Any) -> str:
    """Write the interval of a row's speedup, or that its prompts are too few for one."""
    if row.speedup_low is None and getattr(row, "n_prompts", FEWEST) < FEWEST:
        return no_interval(row.n_prompts)
    return interval(row.speedup_low, row.speedup_high)


def no_interval(n_prompts: int) -> str:
    """Say that so many prompts are too few for an interval."""
    return f"no interval: {n_prompts} prompt{'s' * (n_prompts != 1)}"


def interval(low: float | None, high: float | None) -> str:
    """Write 1.31 to 1.64, or a dash where there is no interval."""
    return "-" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def percent(share: float | None) -> str:
    """Return a signed share in five characters or fewer; beyond a factor of ten its size no longer matters."""
    if share is None:
        return "-"
    return f"{share:+.0%}" if share < 9.995 else ">999%"


def temperature_name(temperature: float) -> str:
    """Write T = 0 (greedy) or T = 0.8 (sampling)."""
    return f"T = {temperature:g} ({'sampling' if temperature else 'greedy'})"


# --- columns that several tables have ---------------------------------------------------------------------------------


def column(key: str, digits: int = 2, write: Callable[[float | None, int], str] = number) -> Cell:
    """Return a cell with a number of the row."""
    return lambda row: write(getattr(row, key), digits)


def prediction(predicted: Callable[[Any], float | None]) -> Cell:
    """Return a cell such as "2.58 +106%": a prediction and its error, predicted / measured - 1."""

    def cell(row: Any) -> str:
        value = predicted(row)
        return "-" if value is None else f"{value:.2f} {percent(value / row.speedup - 1):>5}"

    return cell


def drafts_only(cell: Cell) -> Cell:
    """Return a cell that is empty for the baseline."""
    return lambda row: cell(row) if row.draft else "-"


def through(part: Callable[[Any], Any], columns: dict[str, Cell]) -> dict[str, Cell]:
    """Return columns of rows as columns of objects that hold such a row; `part` takes the row out."""

    def cell_of_part(cell: Cell) -> Cell:
        return lambda whole: cell(part(whole))

    return {head: cell_of_part(cell) for head, cell in columns.items()}


CELLS: dict[str, Cell] = {
    "draft": lambda row: row.method,
    "k": drafts_only(lambda row: "≤ " * row.draft.endswith(AUTO) + str(row.draft_length)),
    "T": lambda row: f"{row.temperature:g}",
    "tok/s": lambda row: number(row.tokens_per_second, 1 if row.tokens_per_second < 999.95 else 0),
    "speedup": speedup_of,
    "measured": speedup_of,
    "95 %": drafts_only(row_interval),
    "end to end": drafts_only(lambda row: speedup(row.speedup_with_prefill)),
    "α": column("acceptance_rate"),
    "f": column("drafted_fraction"),
    "tok/rnd": column("tokens_per_round"),
    "c": lambda row: cost(row.draft_cost, 3) if row.draft_length else "-",
    "v": column("verify_cost", write=cost),
    "o": column("overhead", 3, cost),
}


def cells(*heads: str) -> dict[str, Cell]:
    """Return the columns of a row by their heads."""
    return {head: CELLS[head] for head in heads}
