"""Shows a sweep as lines, table, picture and page. These are views of its record: nothing is measured here.

The numbers come from curves.py, the pictures are painted in sweep_plots.py.
"""

import functools
import operator
from pathlib import Path

from speclab.extensions.sweeps import curves, sweep_plots
from speclab.extensions.sweeps.curves import NEAR, Value, decoding, end_to_end, omega_star, verdict
from speclab.extensions.sweeps.sweep_record import Point, SweepRun
from speclab.present.pictures import figures
from speclab.present.run_lines import COSTS, marked, noise_lines, provenance, remarks, rough_line
from speclab.present.tables import (
    CELLS,
    Cell,
    Heading,
    Lines,
    Markdown,
    Table,
    column,
    cost,
    interval,
    number,
    prediction,
    show,
)

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
    "acceptance": "right says how often the draft proposes the target's token. ω is the cost of a round beyond one "
    "decode step, in such steps; ω* is the cost at which book(α) turns from too low to too high.",
    "context": f"t_1 is the time of a decode step. {COSTS}",
    "temperature": "v is the cost of a target pass over k + 1 tokens, in decode steps.",
    "output-length": "end to end counts the prompt's own passes, too; its interval takes their seconds as known.",
    "mismatch": "round is the cost of a round in decode steps of the target. A round pays where tok/rnd is larger.",
    "definitions": "α is accepted / tested, f accepted / drafted, s accepted / emitted, and τ the tokens per round. "
    "A_i is the share of rounds in which at least i drafted tokens were accepted.",
}


def lines(sweep: SweepRun) -> Lines:
    """Return the columns' legend, at most one line for each curve, then the notes on the run."""
    filled = []
    for label, points in curves.curves(sweep).items():
        if sweep.sweep == "draft-length" and (top := curves.best(points)):
            filled.append(f"{label}: best k = {top.x}, {_value(decoding(top))}")
        elif sweep.sweep == "acceptance":
            even = curves.break_even(points)
            near = ", ".join(interval(*stretch) for stretch in curves.near_book(points)) or "-"
            fair = ", ".join(f"{alpha:.2f}" for alpha in curves.omega_crossings(points)) or "-"
            filled.append(
                f"{label}: break-even at α = {_value(even, '') if even else '-'}; book(α) within {NEAR:.0%} of the "
                f"measurement at α = {near}; ω = ω* at α = {fair}"
            )
    training = sweep.facts.get("training")
    if training:
        filled.append(
            f"trained on the spot: {training['seconds']:.0f} s, {training['steps']} steps, {training['tokens']:,} "
            f"tokens, loss from {training['first_loss']:.2f} to {training['last_loss']:.2f} nats per token"
        )
    return Lines([LEGENDS.get(sweep.sweep), *filled, *noise_lines(sweep.noise), *remarks(sweep), rough_line(sweep)])


def _value(value: Value, unit: str = "x") -> str:
    """Write 1.76x (1.64 to 2.16)."""
    return f"{value.value:.2f}{unit} ({interval(value.low, value.high)})"


def table(sweep: SweepRun) -> Table:
    """Return one line per point."""
    points = [point for curve in curves.curves(sweep).values() for point in curve]
    if sweep.sweep in curves.X_IS_DRAFT:
        points = sweep.points
    columns, heads = CELLS | COLUMNS | {"draft": curves.labeller(sweep)}, HEADS[sweep.sweep]
    return marked(sweep, Table(points, {head: columns[head] for head in heads}, n_words=heads.index("draft") + 1))


def picture(sweep: SweepRun, folder: Path, name: str) -> Path:
    """Write folder/name.png. Measured values are markers, predictions lines."""
    figure = sweep_plots.PICTURES[sweep.sweep](sweep) if sweep.points else figures.Figure()
    return figures.save(figure, sweep, folder, name)


def text(sweep: SweepRun) -> str:
    """The terminal shows the question, lines, of which some say whether the numbers can be trusted, and the table."""
    return show([QUESTIONS[sweep.sweep], lines(sweep), table(sweep)])


def title(name: str) -> str:
    """Turn draft-length into Draft length."""
    return name.replace("-", " ").capitalize()


def page(sweep: SweepRun, picture_path: str) -> str:
    """Return a section in Markdown: the question, the lines, the picture, the table, where it comes from."""
    name = sweep.sweep
    heading, image = Heading(title(name), 1), Markdown(f"![{title(name)}]({picture_path})")
    return show([heading, QUESTIONS[name], lines(sweep), image, table(sweep), provenance(sweep)], markdown=True)


# --- columns ----------------------------------------------------------------------------------------------------------


def _omega_star(point: Point) -> str:
    acceptance_rate, k = point.acceptance_rate, point.draft_length
    return number(omega_star(acceptance_rate, k) if acceptance_rate is not None and k else None)


def _book_fed(key: str, point: Point) -> float | None:
    return curves.book_fed(point).get(key)


def _survives(place: int, point: Point) -> str:
    return number(curves.survival(point)[place]) if curves.survival(point) else "-"


MEASURED = ("speedup", "95 %", "verdict")
HEADS: dict[str, tuple[str, ...]] = {
    "draft-length": ("draft", "k", *MEASURED, "α", "tok/rnd", "forecast", "book(α)"),
    "acceptance": ("draft", "right", "α", *MEASURED, "book(α)", "ω", "ω*", "Leviathan", "cost model", "forecast"),
    "temperature": ("draft", "T", *MEASURED, "α", "tok/rnd", "forecast", "v"),
    "output-length": ("draft", "tokens", *MEASURED, "end to end", "its 95 %", "its verdict", "α", "forecast"),
    "context": ("draft", "prompt", "t_1 ms", *MEASURED, "c", "v", "o", "α"),
    "draft-kind": ("prompts", "draft", *MEASURED, "α", "f", "tok/rnd", "book(α)"),
    "mismatch": ("draft", *MEASURED, "α", "tok/rnd", "round", "c"),
    "definitions": ("draft", "k", *MEASURED, "α", "f", "s", "τ", "A_1", "A_k", "book(α)", "book(f)", "book(s)"),
}
# Only sweeps show these columns; the others are those of every table.
COLUMNS: dict[str, Cell] = {
    **dict.fromkeys(("right", "tokens", "prompt"), lambda point: f"{point.x:g}"),
    "prompts": lambda point: point.series,
    "verdict": verdict,
    "its 95 %": lambda point: interval(*end_to_end(point)[1:]),
    "its verdict": lambda point: verdict(point, end_to_end),
    "t_1 ms": lambda point: number(curves.step_seconds(point) * 1e3),
    "ω": lambda point: cost(curves.omega(point)),
    "ω*": _omega_star,
    "round": lambda point: number(curves.round_cost(point)),
    "s": lambda point: number(curves.output_share(point)),
    "τ": column("tokens_per_round"),
    "A_1": functools.partial(_survives, 0),
    "A_k": functools.partial(_survives, -1),
    "forecast": prediction(operator.attrgetter("forecast")),
    "Leviathan": prediction(operator.attrgetter("leviathan")),
    "cost model": prediction(operator.attrgetter("cost_model")),
    **{f"book({key})": prediction(functools.partial(_book_fed, key)) for key in "αfs"},
}
