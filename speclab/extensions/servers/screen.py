"""The first screen: what answers, whether the texts are the same, one table, and the answer. At most 25 lines."""

import textwrap
from collections.abc import Sequence

import tabulate

from speclab.extensions.servers.ask import texts
from speclab.extensions.servers.ask.engines import Server
from speclab.extensions.servers.diagnosis import Diagnosis
from speclab.extensions.servers.measured import Interval, Measured
from speclab.extensions.servers.shapes import Shape

WIDTH, LABEL = 100, 10
MOST_POSITIONS, MOST_KINDS, MOST_REMARKS = 8, 4, 2


def server_lines(speculative: Server, plain: Server | None) -> list[str]:
    """Return what answers, and what is to be known of it."""
    lines = [labelled("server", f"{_named(speculative)}: {speculative.model} at {speculative.client.url}")]
    if plain:
        lines.append(labelled("plain", f"{_named(plain)}: {plain.model} at {plain.client.url}"))
    remarks = dict.fromkeys([*speculative.remarks, *(plain.remarks if plain else [])])
    return [*lines, *(labelled("note", remark) for remark in list(remarks)[:MOST_REMARKS])]


def _named(server: Server) -> str:
    return " ".join(filter(None, (server.engine, server.version)))


def text_line(verdicts: Sequence[str]) -> str:
    """Return whether both servers wrote the same texts."""
    n_same = verdicts.count(texts.SAME)
    rest = [
        f"{verdicts.count(word)} {word}" for word in (texts.TIED, texts.UNEXPLAINED, texts.UNJUDGED) if word in verdicts
    ]
    return labelled("same text", f"{n_same} of {len(verdicts)} greedy texts" + "".join(f", {part}" for part in rest))


def table(kinds: dict[str, Measured], whole: Measured, n_prompts: dict[str, int]) -> str:
    """Return one line for each kind of prompt, and one for all of them. round: its cost in plain tokens."""
    rows = list(kinds.items())[:MOST_KINDS] if len(kinds) > 1 else []
    both = [*rows, ("all", whole)]
    columns = {
        "prompts": [(name, str(n_prompts.get(name, sum(n_prompts.values())) or "-")) for name, _ in both],
        "tok/rnd": [(name, _number(one.tokens_per_round)) for name, one in both],
        "95 %": [(name, interval(one.tokens_interval)) for name, one in both],
        "α": [(name, _number(one.acceptance_rate)) for name, one in both],
        "f": [(name, _number(one.drafted_fraction)) for name, one in both],
        "ms/tok": [(name, _number(one.seconds and 1e3 * one.seconds)) for name, one in both],
        "plain": [(name, _number(one.plain_seconds and 1e3 * one.plain_seconds)) for name, one in both],
        "round": [(name, _number(one.round_cost)) for name, one in both],
        "speedup": [(name, _times(one.speedup)) for name, one in both],
        " 95 %": [(name, interval(one.speedup_interval)) for name, one in both],
    }
    shown = {
        head: [cell for _, cell in cells] for head, cells in columns.items() if any(cell != "-" for _, cell in cells)
    }
    return compact({"": [name[:12] for name, _ in both], **shown}, n_words=1)


def compact(columns: dict[str, list[str]], n_words: int) -> str:
    """Return a table whose first columns are words, to the left, and whose others are numbers."""
    tabulate.MIN_PADDING = 0
    sides = ["left"] * n_words + ["right"] * (len(columns) - n_words)
    return tabulate.tabulate(columns, headers="keys", disable_numparse=True, colalign=sides)


def position_lines(found: Measured) -> list[str]:
    """Return acceptance by position, in the two ways in which it is printed by others."""
    if not found.marginal:
        return []
    n, more = min(len(found.marginal), MOST_POSITIONS), " ..." * (len(found.marginal) > MOST_POSITIONS)
    heads = "".join(f"{place:>6}" for place in range(1, n + 1))
    reached = "".join(f"{_number(rate):>6}" for rate in found.conditional[:n])
    every = "".join(f"{rate:6.2f}" for rate in found.marginal[:n])
    return [
        f"{'position':<34}{heads}{more}",
        f"{'kept of the rounds that reach it':<34}{reached}",
        f"{'kept of all rounds that draft':<34}{every}",
    ]


def shape_lines(shapes: Sequence[Shape]) -> list[str]:
    """Return the names of shapes, a line for each."""
    return [labelled("shape", one.name) for one in shapes]


def answer_lines(found: Diagnosis) -> list[str]:
    """Return the answer, its numbers, the causes that are left with what tells them apart, and what to try."""
    lines = [labelled("ANSWER", found.answer), *(labelled("", line) for line in found.numbers)]
    if found.causes:
        lines += [labelled("cause", found.causes[0]), *(labelled("or", one) for one in found.causes[1:])]
    if found.tell:
        lines.append(labelled("tell", found.tell))
    return [*lines, labelled("try", found.then)]


def joined(blocks: Sequence[Sequence[str]]) -> str:
    """Return blocks of lines with an empty line between them."""
    return "\n\n".join("\n".join(block) for block in blocks if block)


def labelled(label: str, text: str) -> str:
    """Return a line with a label before it, continued below the text."""
    return textwrap.fill(text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL)


def interval(ends: Interval) -> str:
    """Return the ends of an interval; a dash where there is none."""
    return f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
