"""A sweep as lines, table, picture and page: views of its record, nothing is measured here.

The numbers come from speclab/theory/curves.py, the pictures are painted in speclab/present/sweep_plots.py.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path

from speclab.present import figures, sweep_plots, tables
from speclab.present.run_lines import (
    COSTS,
    interrupted_line,
    noise_lines,
    provenance,
    unchecked_line,
    wrong_output_line,
)
from speclab.present.tables import WIDTH, Cell, column, interval, number, prediction, short_names, speedup
from speclab.theory import curves
from speclab.theory.curves import NEAR, Value, decoding, end_to_end, omega_star, verdict

NAME_WIDTH = 20  # of a draft's name in the terminal

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
    "temperature": "What does sampling do to acceptance and speed?",
    "output-length": "How long must an answer be before speculation pays for its start?",
    "context": "Does a long prompt help or hurt?",
    "draft-kind": "Which draft suits which text?",
    "mismatch": "What does a bad draft cost?",
    "definitions": "Four numbers are called acceptance: which is which, and which does the book's formula want?",
}
LEGENDS = {
    "acceptance": "right: how often the draft proposes the target's token; ω: what a round costs beyond one decode "
    "step, in such steps; ω*: the price at which book(α) turns from too low to too high",
    "context": f"t_1: a decode step; {COSTS}",
    "temperature": "v: a target pass over k + 1 tokens, in decode steps",
    "output-length": "end to end: with the prompt's own passes, its interval takes their seconds as known",
    "mismatch": "round: what a round costs, in decode steps of the target; it pays where tok/rnd is larger",
    "definitions": "α: accepted / tested; f: accepted / drafted; s: accepted / emitted; τ: tokens per round; A_i: "
    "share of rounds in which at least i drafted tokens were accepted",
}


def lines(sweep: dict) -> list[str]:
    """The columns' legend, at most one line for each curve, then what is to be known of the run."""
    filled = []
    for label, points in curves.curves(sweep).items():
        if sweep["sweep"] == "draft-length" and (top := curves.best(points)):
            filled.append(f"{label}: best k = {top['x']}, {_value(decoding(top))}")
        elif sweep["sweep"] == "acceptance":
            even = curves.break_even(points)
            near = ", ".join(interval(*stretch) for stretch in curves.near_book(points)) or "-"
            fair = ", ".join(f"{alpha:.2f}" for alpha in curves.fair_prices(points)) or "-"
            filled.append(
                f"{label}: break-even at α = {_value(even, '') if even else '-'}; book(α) within {NEAR:.0%} of the "
                f"measurement at α = {near}; ω = ω* at α = {fair}"
            )
    training = sweep["facts"].get("training")
    if training:
        filled.append(
            f"trained on the spot: {training['seconds']:.0f} s, {training['steps']} steps, {training['tokens']:,} "
            f"tokens, loss from {training['first_loss']:.2f} to {training['last_loss']:.2f} nats per token"
        )
    remarks = [unchecked_line(sweep), wrong_output_line(sweep), interrupted_line(sweep)]
    legend = LEGENDS.get(sweep["sweep"])
    return [*filter(None, [legend]), *filled, *noise_lines(sweep["noise"]), *filter(None, remarks)]


def _value(value: Value, unit: str = "x") -> str:
    """1.76x (1.64 to 2.16)"""
    return f"{value.value:.2f}{unit} ({interval(value.low, value.high)})"


def table(sweep: dict, markdown: bool = False) -> str:
    """One line per point. In the terminal, columns that no longer fit go into a second table beneath."""
    points = [point for curve in curves.curves(sweep).values() for point in curve]
    if sweep["sweep"] in curves.X_IS_DRAFT:
        points = sweep["points"]
    label = curves.labeller(sweep)
    names = short_names([label(point) for point in points], 10_000 if markdown else NAME_WIDTH)
    keys = {"draft": [names[label(point)] for point in points]}
    if sweep["sweep"] in X_HEADS:
        keys[X_HEADS[sweep["sweep"]]] = [f"{point['x']:g}" for point in points]
    elif sweep["sweep"] == "draft-kind":
        keys = {"prompts": [point["series"] for point in points], **keys}
    n_words = list(keys).index("draft") + 1
    parts = [dict(keys)]
    for head, cell in COLUMNS[sweep["sweep"]].items():
        cells = [cell(point) for point in points]
        if not markdown and _width({**parts[-1], head: cells}) > WIDTH:
            parts.append(dict(keys))
        parts[-1][head] = cells
    return "\n\n".join(
        tables.table([list(line) for line in zip(*part.values(), strict=True)], list(part), markdown, n_words)
        for part in parts
    )


def _width(columns: dict[str, list[str]]) -> int:
    return sum(max(map(len, [head, *cells])) for head, cells in columns.items()) + 2 * (len(columns) - 1)


def picture(sweep: dict, folder: Path, name: str) -> Path:
    """Write folder/name.png. Measured values are markers, predictions lines."""
    figure = sweep_plots.PICTURES[sweep["sweep"]](sweep) if sweep["points"] else figures.Figure()
    return figures.save(figure, sweep, folder, name)


def text(sweep: dict) -> str:
    """What the terminal shows: the question, the table and the lines."""
    filled = [textwrap.fill(line, WIDTH - 1, subsequent_indent="    ") for line in lines(sweep)]
    return "\n\n".join([QUESTIONS[sweep["sweep"]], table(sweep), "\n".join(filled)]) + "\n"


def page(sweep: dict, picture_path: str, level: int = 1) -> str:
    """A section in Markdown: the question, the lines, the picture, the table, where it comes from."""
    title = TITLES[sweep["sweep"]]
    blocks = [f"{'#' * level} {title}", QUESTIONS[sweep["sweep"]], markdown_lines(sweep)]
    blocks += [f"![{title}]({picture_path})", table(sweep, markdown=True), provenance(sweep)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def markdown_lines(sweep: dict) -> str:
    """The lines of a sweep as a list."""
    return "\n".join(f"- {line}" for line in lines(sweep))


def all_pages(sweeps: list[dict], pictures: dict[str, str]) -> str:
    """One report: contents, then a section for each sweep. `pictures`: name of the sweep -> path from the report."""
    titles = {name: TITLES[name] for name in (sweep["sweep"] for sweep in sweeps)}
    contents = [f"- [{title}](#{title.lower().replace(' ', '-')}): {QUESTIONS[s]}" for s, title in titles.items()]
    pages = [page(sweep, pictures[sweep["sweep"]], level=2).strip() for sweep in sweeps]
    return "\n\n".join(["# Sweeps", "\n".join(contents), *pages]) + "\n"


# --- columns: head -> what a point's cell holds -----------------------------------------------------------------------


def _interval(value: Callable[[dict], Value]) -> Cell:
    return lambda point: interval(value(point).low, value(point).high)


def _omega_star(point: dict) -> str:
    alpha, k = point["acceptance_rate"], point["draft_length"]
    return number(omega_star(alpha, k) if alpha is not None and k else None)


def _book_fed(key: str) -> Callable[[dict], float | None]:
    return lambda point: curves.book_fed(point).get(key)


def _survives(place: int) -> Cell:
    return lambda point: number(curves.survival(point)[place]) if curves.survival(point) else "-"


# The column after the draft's, where a sweep's x is a number.
X_HEADS = {
    "draft-length": "k",
    "acceptance": "right",
    "temperature": "T",
    "output-length": "tokens",
    "context": "prompt",
    "definitions": "k",
}
MEASURED: dict[str, Cell] = {
    "speedup": lambda point: speedup(point["speedup"]),
    "95 %": _interval(decoding),
    "verdict": verdict,
}
WITH_PREFILL: dict[str, Cell] = {
    "end to end": lambda point: speedup(point["speedup_with_prefill"]),
    "its 95 %": _interval(end_to_end),
    "its verdict": lambda point: verdict(point, end_to_end),
}
ALPHA, TAU = {"α": column("acceptance_rate")}, {"tok/rnd": column("tokens_per_round")}
FORECAST = {"forecast": prediction(lambda point: point["forecast"])}
BOOK = {"book(α)": prediction(lambda point: point["book_formula"])}
COLUMNS: dict[str, dict[str, Cell]] = {
    "draft-length": MEASURED | ALPHA | TAU | FORECAST | BOOK,
    "acceptance": ALPHA
    | MEASURED
    | BOOK
    | {"ω": lambda point: number(curves.omega(point)), "ω*": _omega_star}
    | {"Leviathan": prediction(lambda point: point["leviathan"])}
    | {"cost model": prediction(lambda point: point["cost_model"])}
    | FORECAST,
    "temperature": MEASURED | ALPHA | TAU | FORECAST | {"v": column("verify_cost")},
    "output-length": MEASURED | WITH_PREFILL | ALPHA | FORECAST,
    "context": {"t_1 ms": lambda point: number(curves.step_seconds(point) * 1e3)}
    | MEASURED
    | {"c": column("draft_cost", 3), "v": column("verify_cost"), "o": column("overhead", 3)}
    | ALPHA,
    "draft-kind": MEASURED | ALPHA | {"f": column("drafted_fraction")} | TAU | BOOK,
    "mismatch": MEASURED
    | ALPHA
    | TAU
    | {"round": lambda point: number(curves.round_cost(point)), "c": column("draft_cost", 3)},
    "definitions": MEASURED
    | ALPHA
    | {"f": column("drafted_fraction"), "s": lambda point: number(curves.output_share(point))}
    | {"τ": column("tokens_per_round"), "A_1": _survives(0), "A_k": _survives(-1)}
    | {f"book({key})": prediction(_book_fed(key)) for key in "αfs"},
}
