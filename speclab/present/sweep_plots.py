"""The pictures of the sweeps: each is a list of panels, which speclab/present/figures.py draws.

Every function takes a sweep with points and returns a figure; speclab/present/sweep_views.py signs and saves it.
"""

from collections.abc import Callable

from speclab.present.figures import BOOK, COLOURS, STYLES, Figure, Panel, Series, column, draw, note, plain, speedups
from speclab.present.tables import interval, number, short_names
from speclab.records.rows import Point
from speclab.records.runs import SweepRun
from speclab.theory import curves
from speclab.theory.curves import decoding, end_to_end

NAME_WIDTH = 16  # of a draft's name in a legend


def _curves(sweep: SweepRun) -> dict[str, list[Point]]:
    """Name of a curve, short enough for a legend -> its points."""
    by_label = curves.curves(sweep)
    short = short_names(list(by_label), NAME_WIDTH)
    return {short[label]: points for label, points in by_label.items()}


def draft_length(sweep: SweepRun) -> Figure:
    """Speedup against k, a panel for each draft, with the forecast and the book's formula."""
    panels = []
    for name, points in _curves(sweep).items():
        book = Series(BOOK, column(points, "book_formula"), 1, ":")
        series = [Series("measured", speedups(points)), Series("forecast", column(points, "forecast"), 5, "-"), book]
        panels.append(Panel(series, "draft length k", title=name))
    return draw(panels, sharey=True)


def output_length(sweep: SweepRun) -> Figure:
    """Speedup against the number of new tokens, without and with prefill, a panel for each draft."""
    panels = []
    for name, points in _curves(sweep).items():
        series = [
            Series("decoding", speedups(points)),
            Series("end to end", {point.x: end_to_end(point) for point in points}, 2),
            Series("forecast of decoding", column(points, "forecast"), 5, "-"),
        ]
        panels.append(Panel(series, "new tokens", "speedup over the baseline", title=name, log=True))
    return draw(panels, sharey=True)


def acceptance(sweep: SweepRun) -> Figure:
    """Speedup against alpha, a panel for each price of drafting, with every prediction."""
    x = "acceptance_rate"
    by_name = {name: list(curves.by_acceptance(points).values()) for name, points in _curves(sweep).items()}
    panels = []
    for name, points in by_name.items():
        k = ", ".join(str(k) for k in {point.draft_length: None for point in points})
        series = [
            Series(f"measured, k = {k}", speedups(points, x)),
            Series(BOOK, column(points, "book_formula", x), 1, ":"),
            Series("Leviathan, with c", column(points, "leviathan", x), 3, "-."),
            Series("cost model", column(points, "cost_model", x), 2, "--"),
            Series("forecast", column(points, "forecast", x), 5, "-"),
        ]
        ticks = {i / 5: f"{i / 5:g}" for i in range(6)}
        panels.append(Panel(series, "acceptance rate α, as measured", title=name, ticks=ticks))
    figure = draw(panels, 6.4, 4.6)
    for axis, points in zip(figure.axes, by_name.values(), strict=False):
        _mark_agreement(axis, points)
    return figure


def _mark_agreement(axis, points: list[Point]) -> None:
    """Where the book's formula is right, and where the measured speedup passes 1."""
    fair = ", ".join(f"{alpha:.2f}" for alpha in curves.fair_prices(points))
    for low, high in curves.near_book(points):
        axis.axvspan(low, high, color=COLOURS[4], alpha=0.3, linewidth=0)
        text = f"book within {curves.NEAR:.0%}:\nα = {interval(low, high)}" + f"\nω = ω* at α = {fair}" * bool(fair)
        place = (max((low + high) / 2, 0.12), 0.72)  # above the curves, right of the axis
        axis.text(*place, text, transform=axis.get_xaxis_transform(), ha="center", va="bottom", fontsize=7.5)
    even = curves.break_even(points)
    if even:
        axis.plot(even.value, 1, "|", color="black", markersize=14)
        note(axis, even.value, 1, f"break-even: α = {even.value:.2f}", -16, 9, ha="left", fontsize=8)


def temperature(sweep: SweepRun) -> Figure:
    """Speedup and acceptance against the sampling temperature."""
    by_name, label = _curves(sweep), "temperature T"
    rates = [Series(name, column(points, "acceptance_rate"), i) for i, (name, points) in enumerate(by_name.items())]
    return draw([_all_drafts(sweep, label), Panel(rates, label, "acceptance rate α")])


def context(sweep: SweepRun) -> Figure:
    """Speedup, and the cost of a decode step and of verifying, against the prompt's length."""
    by_name, label = _curves(sweep), "tokens of the prompt"
    costs = [Series(f"v, {name}", column(points, "verify_cost"), i) for i, (name, points) in enumerate(by_name.items())]
    points = next(iter(by_name.values()))
    seconds = [curves.step_seconds(point) for point in points]
    steps = plain((point.x, each / seconds[0]) for point, each in zip(points, seconds, strict=True))
    costs.append(Series(f"t_1, in units of {seconds[0] * 1e3:.2f} ms", steps, 6))
    right = Panel(costs, label, "cost of a step and of verifying", spread=16, log=True)
    return draw([_all_drafts(sweep, label, log=True), right])


def _all_drafts(sweep: SweepRun, x_label: str, log: bool = False) -> Panel:
    """The measured speedups of all drafts in one panel, with their forecasts."""
    series = []
    for i, (name, points) in enumerate(_curves(sweep).items()):
        style = STYLES[i % len(STYLES)]
        series += [Series(name, speedups(points), i), Series(f"{name}, forecast", column(points, "forecast"), i, style)]
    return Panel(series, x_label, log=log)


def draft_kind(sweep: SweepRun) -> Figure:
    """Speedup of each draft on each kind of prompt."""
    kinds = list(dict.fromkeys(point.series for point in sweep.points))
    series = []
    for i, (name, points) in enumerate(_curves(sweep).items()):
        series.append(Series(name, {kinds.index(point.series): decoding(point) for point in points}, i))
    return draw([Panel(series, "kind of prompt", ticks=dict(enumerate(kinds)), spread=24)], 9)


def mismatch(sweep: SweepRun) -> Figure:
    """Speedup of each draft, and what a round makes against what it costs."""
    points = {name: points[0] for name, points in _curves(sweep).items()}
    names = [f"{name}\nα = {number(p.acceptance_rate)}\n{curves.verdict(p)}" for name, p in points.items()]
    measured = Series("measured, with its 95 % interval", dict(enumerate(map(decoding, points.values()))))
    made = Series("tokens a round makes, τ", plain(enumerate(p.tokens_per_round for p in points.values())))
    costs = Series("decode steps it costs", plain(enumerate(map(curves.round_cost, points.values()))), 1)
    ticks = dict(enumerate(names))
    right = Panel([made, costs], "draft", "tokens and decode steps per round", ticks=ticks, spread=26)
    return draw([Panel([measured], "draft", ticks=ticks), right], 5.6)


def definitions(sweep: SweepRun) -> Figure:
    """How long accepted drafts are, and the book's formula fed with each number that is called acceptance."""
    survival, panels = [], []
    for i, (name, points) in enumerate(_curves(sweep).items()):
        shares = curves.survival(points[-1])
        survival.append(Series(name, plain(enumerate(shares, 1)), i))
        series = [Series("measured", speedups(points))]
        for look, key in enumerate("αfs", 1):
            fed = plain((point.x, curves.book_fed(point).get(key)) for point in points)
            series.append(Series(f"book fed with {key}", fed, look, STYLES[look]))
        panels.append(Panel(series, "draft length k", title=name))
    label = "A_i, share of rounds with i or more accepted"
    return draw([Panel(survival, "position i in the longest draft", label, bars=True), *panels])


PICTURES: dict[str, Callable[[SweepRun], Figure]] = {
    "draft-length": draft_length,
    "acceptance": acceptance,
    "temperature": temperature,
    "output-length": output_length,
    "context": context,
    "draft-kind": draft_kind,
    "mismatch": mismatch,
    "definitions": definitions,
}
