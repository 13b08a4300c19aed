"""A sweep as table, paragraph, picture and page: views of its record, nothing is measured here.

What is said is decided in present/sweep_words.py from the numbers of speclab/theory/curves.py; pictures are painted in
speclab/present/sweep_plots.py.
"""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt

from speclab.present import plots, report, sweep_plots, sweep_words
from speclab.present.report import number, provenance
from speclab.present.words import unchecked_line
from speclab.theory import curves
from speclab.theory.curves import book_fed, decoding, end_to_end, omega, omega_star, survival, verdict

WIDTH = 80  # columns of a terminal
NAME_WIDTH = 20  # of a draft's name there

TITLES = {
    "draft-length": "Draft length",
    "acceptance": "Acceptance",
    "temperature": "Temperature",
    "output-length": "Output length",
    "context": "Context",
    "draft-kind": "Kind of draft",
    "mismatch": "Mismatched drafts",
    "definitions": "What acceptance means",
}
QUESTIONS = {
    "draft-length": "How many tokens should a draft have, and when is it too long?",
    "acceptance": "How often must a draft be right, and where is the book's formula right about what you gain?",
    "temperature": "What does sampling do to a draft's luck?",
    "output-length": "How long must an answer be before speculation pays for its start?",
    "context": "Does a long prompt help or hurt?",
    "draft-kind": "Which draft suits which text?",
    "mismatch": "What does a bad draft cost?",
    "definitions": "Four numbers are called acceptance: which is which, and which does the book's formula want?",
}
WORDS_AND_PICTURE = {
    "draft-length": (sweep_words.draft_length, sweep_plots.draft_length),
    "acceptance": (sweep_words.acceptance, sweep_plots.acceptance),
    "temperature": (sweep_words.temperature, sweep_plots.temperature),
    "output-length": (sweep_words.output_length, sweep_plots.output_length),
    "context": (sweep_words.context, sweep_plots.context),
    "draft-kind": (sweep_words.draft_kind, sweep_plots.draft_kind),
    "mismatch": (sweep_words.mismatch, sweep_plots.mismatch),
    "definitions": (sweep_words.definitions, sweep_plots.definitions),
}


def paragraph(sweep: dict) -> str:
    """What was found, in lines of a terminal's width; a blank line where a new draft or thought begins."""
    if not sweep["points"]:
        return "Nothing was measured."
    says, _ = WORDS_AND_PICTURE[sweep["sweep"]]
    said = [" ".join(filter(None, sentences)) for sentences in says(sweep)]
    if sweep["interrupted"]:
        said.append("The run was stopped before its end, so points are missing.")
    said += filter(None, [unchecked_line(sweep)])
    return "\n\n".join(_filled(text) for text in said if text)


def table(sweep: dict, markdown: bool = False) -> str:
    """One line per point. For a terminal columns beyond the 80th go into a second table beneath."""
    if not sweep["points"]:
        return "no points"
    points = [p for curve in curves.curves(sweep).values() for p in curve]
    if sweep["sweep"] in curves.X_IS_DRAFT:
        points = sweep["points"]
    keys, columns = KEYS[sweep["sweep"]](sweep), COLUMNS[sweep["sweep"]]
    heads = {head: [_cut(cell(p), markdown) for p in points] for head, cell in keys.items()}
    body = {head: [cell(p) for p in points] for head, cell in columns.items()}
    blocks: list[dict[str, list[str]]] = [dict(heads)]
    for head, cells in body.items():
        if not markdown and _width({**blocks[-1], head: cells}) > WIDTH and len(blocks[-1]) > len(heads):
            blocks.append(dict(heads))
        blocks[-1][head] = cells
    return "\n\n".join(
        report.table([list(line) for line in zip(*block.values(), strict=True)], list(block), markdown)
        for block in blocks
    )


def picture(sweep: dict, folder: Path, name: str) -> Path:
    """Write folder/name.png. Measured values are markers, predictions lines."""
    if not sweep["points"]:
        return plots.save(plt.figure(), sweep, folder, name)
    _, paint = WORDS_AND_PICTURE[sweep["sweep"]]
    return plots.save(paint(sweep), sweep, folder, name)


def page(sweep: dict, picture_path: str, level: int = 1) -> str:
    """A section in Markdown: the question, what was found, the picture, the table, where it comes from."""
    name = sweep["sweep"]
    blocks = [f"{'#' * level} {TITLES[name]}", QUESTIONS[name], paragraph(sweep)]
    if sweep["points"]:
        blocks += [f"![{TITLES[name]}]({picture_path})", table(sweep, markdown=True), provenance(sweep)]
    return "\n\n".join(blocks) + "\n"


def all_pages(sweeps: list[dict], pictures: dict[str, str]) -> str:
    """One report: contents, then a section for each sweep. `pictures`: name of the sweep -> path from the report."""
    contents = [f"- [{TITLES[s['sweep']]}](#{_anchor(TITLES[s['sweep']])}): {QUESTIONS[s['sweep']]}" for s in sweeps]
    pages = [page(s, pictures[s["sweep"]], level=2) for s in sweeps]
    return "\n\n".join(["# Sweeps", "\n".join(contents), *(p.strip() for p in pages)]) + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _filled(text: str) -> str:
    """Lines of at most 79; none begins with what Markdown takes for a list, such as "4. ", nor with a "%"."""
    glued = re.sub(r" (?=(\d+[.)]|[-+*#>]+|%[.,;)]*)( |$))", "\0", text)
    return textwrap.fill(glued, WIDTH - 1, break_on_hyphens=False, break_long_words=False).replace("\0", " ")


def _cut(text: str, markdown: bool) -> str:
    return text if markdown or len(text) <= NAME_WIDTH else "…" + text[1 - NAME_WIDTH :]


def _width(columns: dict[str, list[str]]) -> int:
    return sum(max(map(len, [head, *cells])) for head, cells in columns.items()) + 2 * (len(columns) - 1)


# --- columns ----------------------------------------------------------------------------------------------------------

Cell = Callable[[dict], str]
SUFFIX = {"faster": "", "unclear": " unclear", "slower": " slower"}


def _speedup(value: Callable = decoding) -> Cell:
    return lambda p: f"{value(p).value:.2f}x{SUFFIX[verdict(p, value)]}"


def _interval(value: Callable = decoding) -> Cell:
    return lambda p: "-" if value(p).low is None else f"{value(p).low:.2f} to {value(p).high:.2f}"


def _of(key: str, digits: int = 2) -> Cell:
    return lambda p: number(p[key], digits)


def _with_miss(of: Callable[[dict], float | None]) -> Cell:
    """2.58 +106%: a prediction and how far it is off."""
    return lambda p: "-" if of(p) is None else f"{of(p):.2f} {of(p) / p['speedup'] - 1:+.0%}"


def _survives(p: dict, place: int) -> str:
    shares = survival(p)
    return number(shares[place]) if shares else "-"


def _star(p: dict) -> str:
    alpha, k = p["acceptance_rate"], p["draft_length"]
    return number(omega_star(alpha, k) if alpha is not None and k else None)


def _draft(sweep: dict) -> dict[str, Cell]:
    return {"draft": curves.labeller(sweep)}


def _draft_and(head: str) -> Callable[[dict], dict[str, Cell]]:
    return lambda sweep: {**_draft(sweep), head: lambda p: f"{p['x']:g}"}


MEASURED = {"speedup": _speedup(), "95 %": _interval()}
COSTS = {"c": _of("draft_cost", 3), "v": _of("verify_cost"), "o": _of("overhead", 3)}
ALPHA, TAU = {"α": _of("acceptance_rate")}, {"tok/rnd": _of("tokens_per_round")}
FORECAST, BOOK = {"forecast": _with_miss(lambda p: p["forecast"])}, {"book(α)": _with_miss(lambda p: p["book_formula"])}
KEYS = {
    "draft-length": _draft_and("k"),
    "acceptance": _draft_and("right"),
    "temperature": _draft_and("T"),
    "output-length": _draft_and("tokens"),
    "context": _draft_and("prompt"),
    "draft-kind": lambda sweep: {"prompts": lambda p: p["series"], **_draft(sweep)},
    "mismatch": _draft,
    "definitions": _draft_and("k"),
}
COLUMNS: dict[str, dict[str, Cell]] = {
    "draft-length": MEASURED | ALPHA | TAU | FORECAST | BOOK,
    "acceptance": ALPHA
    | MEASURED
    | BOOK
    | {"ω": lambda p: number(omega(p)), "ω*": _star}
    | {"Leviathan": _with_miss(lambda p: p["leviathan"]), "cost model": _with_miss(lambda p: p["cost_model"])}
    | FORECAST,
    "temperature": MEASURED | ALPHA | TAU | FORECAST | {"v": _of("verify_cost")},
    "output-length": MEASURED
    | {"with prompt": _speedup(end_to_end), "its 95 %": _interval(end_to_end)}
    | ALPHA
    | FORECAST,
    "context": {"t_1 ms": lambda p: number(curves.step_seconds(p) * 1e3)} | MEASURED | COSTS | ALPHA,
    "draft-kind": MEASURED | ALPHA | {"f": _of("drafted_fraction")} | TAU | BOOK,
    "mismatch": MEASURED | ALPHA | TAU | {"round": lambda p: number(curves.round_cost(p))} | {"c": COSTS["c"]},
    "definitions": MEASURED
    | ALPHA
    | {"f": _of("drafted_fraction"), "s": lambda p: number(curves.output_share(p)), "τ": _of("tokens_per_round")}
    | {"A_1": lambda p: _survives(p, 0), "A_k": lambda p: _survives(p, -1)}
    | {f"book({key})": _with_miss(lambda p, key=key: book_fed(p).get(key)) for key in ("α", "f", "s")},
}
