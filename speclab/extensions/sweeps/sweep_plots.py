"""The pictures of the sweeps: each is a list of panels, which speclab/present/pictures/figures.py draws.

Every function takes a sweep with points and returns a figure; sweep_views.py signs and saves it.
"""

import functools

from speclab.extensions.sweeps import curves
from speclab.extensions.sweeps.curves import decoding, end_to_end
from speclab.extensions.sweeps.sweep_record import Point, SweepRun
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, Series, column, draw, plain, speedups
from speclab.present.pictures.library import Figure
from speclab.present.tables import interval, number, short_names

NAME_WIDTH = 16  # of a draft's name in a legend
LINES = {  # a column that predicts the speedup -> its label, colour and style
    "book_formula": (figures.BOOK, 1, ":"),
    "leviathan": ("Leviathan, with c", 3, "-."),
    "cost_model": ("cost model", 2, "--"),
    "forecast": ("forecast", 5, "-"),
}


def _curves(sweep: SweepRun) -> dict[str, list[Point]]:
    """Return a dict: name of a curve, short enough for a legend -> its points."""
    by_label = curves.curves(sweep)
    short = short_names(list(by_label), NAME_WIDTH)
    return {short[label]: points for label, points in by_label.items()}


def _panels(sweep: SweepRun, x_label: str, predictions: tuple[str, ...], x: str = "x", **options) -> list[Panel]:
    """Return a panel of speedups for each draft. predictions: columns of the record; x: the column along the axis."""
    panels = []
    for name, points in _curves(sweep).items():
        points = list(curves.by_acceptance(points).values()) if x == "acceptance_rate" else points
        series = [Series("measured", speedups(points, x))]
        for key in predictions:
            label, look, style = LINES[key]
            series.append(Series(label, column(points, key, x), look, style))
        panels.append(Panel(series, x_label, title=name, **options))
    return panels


def draft_length(sweep: SweepRun) -> Figure:
    """Draw the speedup against k, a panel for each draft, with the forecast and the book's formula."""
    return draw(_panels(sweep, "draft length k", ("forecast", "book_formula")))


def output_length(sweep: SweepRun) -> Figure:
    """Draw the speedup against the number of new tokens, without and with prefill, a panel for each draft."""
    panels = _panels(sweep, "new tokens", ("forecast",), y_label="speedup over the baseline", log=True)
    for panel, points in zip(panels, _curves(sweep).values(), strict=True):
        panel.series.append(Series("end to end", {point.x: end_to_end(point) for point in points}, 2))
    return draw(panels)


def acceptance(sweep: SweepRun) -> Figure:
    """Draw the speedup against alpha, a panel for each price of drafting, with every prediction."""
    ticks = {i / 5: f"{i / 5:g}" for i in range(6)}
    lengths = ", ".join(map(str, sorted({point.draft_length for point in sweep.points})))
    label = f"acceptance rate α, as measured; k = {lengths}"
    panels = _panels(sweep, label, tuple(LINES), "acceptance_rate", ticks=ticks)
    for panel, points in zip(panels, _curves(sweep).values(), strict=True):
        panel.extra = functools.partial(_mark_agreement, points)
    return draw(panels, 6.4, 4.6)


def _mark_agreement(points: list[Point], axis) -> None:
    """Mark the places where the book's formula is right, and where the measured speedup passes 1."""
    fair = ", ".join(f"{alpha:.2f}" for alpha in curves.omega_crossings(points))
    for low, high in curves.near_book(points):
        label = f"book within {curves.NEAR:.0%}: α = {interval(low, high)}" + f"; ω = ω* at α = {fair}" * bool(fair)
        axis.axvspan(low, high, color=figures.COLOURS[4], alpha=0.3, linewidth=0, label=label)
    even = curves.break_even(points)
    if even:
        axis.plot(even.value, 1, "|", color="black", markersize=10, label=f"break-even: α = {even.value:.2f}")


def temperature(sweep: SweepRun) -> Figure:
    """Draw the speedup and the acceptance against the sampling temperature."""
    by_name, label = _curves(sweep), "temperature T"
    rates = [Series(name, column(points, "acceptance_rate"), i) for i, (name, points) in enumerate(by_name.items())]
    left = figures.all_drafts(by_name, "x", {"forecast": "forecast"}, label)
    return draw([left, Panel(rates, label, "acceptance rate α", spread=9)])


def context(sweep: SweepRun) -> Figure:
    """Draw the speedup, and the cost of a decode step and of verifying, against the prompt's length."""
    by_name, label = _curves(sweep), "tokens of the prompt"
    costs = [Series(f"v, {name}", column(points, "verify_cost"), i) for i, (name, points) in enumerate(by_name.items())]
    points = next(iter(by_name.values()))
    seconds = [curves.step_seconds(point) for point in points]
    steps = plain((point.x, each / seconds[0]) for point, each in zip(points, seconds, strict=True))
    costs.append(Series(f"t_1, in units of {seconds[0] * 1e3:.2f} ms", steps, 6))
    left = figures.all_drafts(by_name, "x", {"forecast": "forecast"}, label, log=True)
    return draw([left, Panel(costs, label, "cost of a step and of verifying", spread=9, log=True)])


def draft_kind(sweep: SweepRun) -> Figure:
    """Draw the speedup of each draft on each kind of prompt."""
    kinds = list(dict.fromkeys(point.series for point in sweep.points))
    series = []
    for i, (name, points) in enumerate(_curves(sweep).items()):
        series.append(Series(name, {kinds.index(point.series): decoding(point) for point in points}, i))
    return draw([Panel(series, "kind of prompt", ticks=dict(enumerate(kinds)), spread=24)], 9)


def mismatch(sweep: SweepRun) -> Figure:
    """Draw two panels: the speedup of each draft, and the tokens of a round against its cost."""
    points = {name: points[0] for name, points in _curves(sweep).items()}
    names = [f"{name}\nα = {number(p.acceptance_rate)}\n{curves.verdict(p)}" for name, p in points.items()]
    measured = Series("measured, with its 95 % interval", dict(enumerate(map(decoding, points.values()))))
    made = Series("tokens a round makes, τ", plain(enumerate(p.tokens_per_round for p in points.values())))
    costs = Series("decode steps it costs", plain(enumerate(map(curves.round_cost, points.values()))), 1)
    ticks = dict(enumerate(names))
    right = Panel([made, costs], "draft", "tokens and decode steps per round", ticks=ticks, spread=9)
    return draw([Panel([measured], "draft", ticks=ticks), right], 5.6)


def definitions(sweep: SweepRun) -> Figure:
    """Draw two panels: the length of accepted drafts, and the book's formula fed with each number that is called
    acceptance."""
    panels, survival = _panels(sweep, "draft length k", ()), []
    for i, (panel, (name, points)) in enumerate(zip(panels, _curves(sweep).items(), strict=True)):
        survival.append(Series(name, plain(enumerate(curves.survival(points[-1]), 1)), i))
        for look, key in enumerate("αfs", 1):
            fed = plain((point.x, curves.book_fed(point).get(key)) for point in points)
            panel.series.append(Series(f"book fed with {key}", fed, look, figures.STYLES[look]))
    label = "A_i, share of rounds with i or more accepted"
    return draw([Panel(survival, "position i in the longest draft", label, bars=True), *panels])


FUNCTIONS = (draft_length, acceptance, temperature, output_length, context, draft_kind, mismatch, definitions)
PICTURES = {function.__name__.replace("_", "-"): function for function in FUNCTIONS}
