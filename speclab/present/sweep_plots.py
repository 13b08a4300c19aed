"""The pictures of the sweeps: measured values are markers with intervals, predictions lines, the line at 1 is no gain.

Every function takes a sweep with points and returns a figure; speclab/present/sweep_views.py signs and saves it.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from speclab.present import figures
from speclab.present.figures import COLOURS, MARKERS, STYLES, colour, line, no_gain, note
from speclab.present.tables import interval, number, short_names
from speclab.records.rows import Point
from speclab.records.runs import SweepRun
from speclab.theory import curves
from speclab.theory.curves import Value, decoding, end_to_end
from speclab.theory.formulas import book_formula

NAME_WIDTH = 16  # of a draft's name in a legend
BOOK = "book, 1/(1-α+α/k)"


def _panels(n: int, width: float = 4.6, height: float = 4.2, **shared) -> tuple:
    """n axes of this width.  -> figure, list of axes"""
    return figures.panels(n, max(6.4, width * n), height, **shared)


def _labeller(sweep: SweepRun) -> Callable[[Point], str]:
    """The name of a point's curve, short enough for a legend."""
    label = curves.labeller(sweep)
    short = short_names([label(point) for point in sweep.points], NAME_WIDTH)
    return lambda point: short[label(point)]


def _curves(sweep: SweepRun) -> dict[str, list[Point]]:
    label = _labeller(sweep)
    return {label(points[0]): points for points in curves.curves(sweep).values()}


def _xs(points: list[Point]) -> list[float]:
    """Where the points of a sweep over numbers stand."""
    return [float(point.x) for point in points]


def _measured(axis, points: list[Point], i: int, label: str | None, xs: list[float], value=decoding, **look) -> None:
    look = {"markersize": 5, "capsize": 2, "linewidth": 1} | look
    figures.markers(axis, xs, [value(point) for point in points], i, label, **look)


def _note_ends(axis, xs: list[float], values: list[Value], below: bool = False) -> None:
    """Print the best value and those of both ends, above their intervals or below."""
    best = max(range(len(values)), key=lambda place: values[place].value)
    for place in {0, best, len(values) - 1}:
        edge = values[place].low if below else values[place].high
        height = values[place].value if edge is None else edge
        note(axis, xs[place], height, f"{values[place].value:.2f}", -12 if below else 4)


def _note_beside(axis, xs: list[float], ys: list[float], color: str) -> None:
    """Print the values at both ends of a curve outside of it, where no other curve's interval is."""
    note(axis, xs[0], ys[0], f"{ys[0]:.2f}", 0, -6, ha="right", va="center", color=color)
    if len(xs) > 1:
        note(axis, xs[-1], ys[-1], f"{ys[-1]:.2f}", 0, 6, ha="left", va="center", color=color)
    axis.margins(x=0.12)


def _finish(axis, x_label: str, y_label: str = figures.SPEEDUP, columns: int = 2) -> None:
    """Labels, and the legend above the axis, where no line can cross it."""
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.margins(y=0.12)
    axis.set_ylim(bottom=max(0.0, axis.get_ylim()[0]))
    if axis.get_legend_handles_labels()[0]:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "ncols": columns}
        axis.legend(frameon=False, fontsize=8, borderaxespad=0.2, **place)


def _ticks(axis, points: list[Point], log: bool = False) -> None:
    """A tick at every measured place."""
    if log:
        axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted(set(_xs(points)))))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.tick_params(axis="x", labelsize=8)


# --- one function for each sweep --------------------------------------------------------------------------------------


def draft_length(sweep: SweepRun) -> figures.Figure:
    """Speedup against k, a panel for each draft, with the forecast and the book's formula."""

    def book(axis, points: list[Point], i: int) -> None:
        line(axis, points, "x", "book_formula", ":", colour(i), BOOK)
        _note_ends(axis, _xs(points), [decoding(point) for point in points], below=True)

    return _panel_for_each_draft(sweep, book, "draft length k")


def output_length(sweep: SweepRun) -> figures.Figure:
    """Speedup against the number of new tokens, without and with prefill, a panel for each draft."""

    def with_prefill(axis, points: list[Point], i: int) -> None:
        xs = [x * 1.08 for x in _xs(points)]  # beside the other marker, so that neither hides an interval
        look = {"markerfacecolor": "white", "linestyle": "none"}
        _measured(axis, points, i, "end to end", xs, end_to_end, **look)
        _note_ends(axis, _xs(points), [decoding(point) for point in points])
        _note_ends(axis, xs, [end_to_end(point) for point in points], below=True)

    return _panel_for_each_draft(sweep, with_prefill, "new tokens", log=True)


def _panel_for_each_draft(sweep: SweepRun, more: Callable, x_label: str, log: bool = False) -> figures.Figure:
    """Measured speedups and the forecast of decoding; `more` adds what else a panel shows."""
    by_name = _curves(sweep)
    figure, axes = _panels(len(by_name), sharey=True)
    for i, (axis, (label, points)) in enumerate(zip(axes, by_name.items(), strict=True)):
        line(axis, points, "x", "forecast", "-", colour(i), "forecast of decoding")
        _measured(axis, points, i, f"{label}: decoding", _xs(points))
        more(axis, points, i)
    for axis in axes:  # after all of them are drawn: they share one scale
        _ticks(axis, sweep.points, log)
        no_gain(axis)
        _finish(axis, x_label, "speedup over the baseline")
    return figure


def acceptance(sweep: SweepRun) -> figures.Figure:
    """Speedup against alpha, a panel for each price of drafting, with every prediction."""
    by_name = {label: points for label, points in _curves(sweep).items() if curves.by_acceptance(points)}
    figure, axes = _panels(max(1, len(by_name)), width=6.4, height=4.6)
    for axis, (label, points) in zip(axes, by_name.items(), strict=False):
        _acceptance_panel(axis, points)
        axis.text(0.02, 0.97, label, transform=axis.transAxes, ha="left", va="top", fontsize=11)
    return figure


def _acceptance_panel(axis, points: list[Point]) -> None:
    known = curves.by_acceptance(points)
    alphas, points = list(known), list(known.values())
    k = points[0].draft_length
    fair = ", ".join(f"{alpha:.2f}" for alpha in curves.fair_prices(points))
    for low, high in curves.near_book(points):
        axis.axvspan(low, high, color=COLOURS[4], alpha=0.3, linewidth=0)
        text = f"book within {curves.NEAR:.0%}:\nα = {interval(low, high)}" + f"\nω = ω* at α = {fair}" * bool(fair)
        place = (max((low + high) / 2, 0.12), 0.72)  # above the curves, right of the axis
        axis.text(*place, text, transform=axis.get_xaxis_transform(), ha="center", va="bottom", fontsize=7.5)
    grid = np.linspace(alphas[0], alphas[-1], 200)
    book = [book_formula(float(alpha), k) for alpha in grid]
    axis.plot(grid, book, STYLES[3], color=COLOURS[1], linewidth=1.8, label=BOOK)
    line(axis, points, "acceptance_rate", "leviathan", STYLES[2], COLOURS[3], "Leviathan, with c")
    # The last two nearly coincide: a broad line under a narrow one.
    line(axis, points, "acceptance_rate", "forecast", STYLES[0], COLOURS[5], "forecast", linewidth=3, alpha=0.6)
    line(axis, points, "acceptance_rate", "cost_model", STYLES[1], COLOURS[2], "cost model")
    _measured(axis, points, 0, f"measured, k = {k}", alphas)
    _note_ends(axis, alphas, [decoding(point) for point in points])
    even = curves.break_even(points)
    if even:
        axis.plot(even.value, 1, "|", color="black", markersize=14)
        note(axis, even.value, 1, f"break-even: α = {even.value:.2f}", -16, 9, ha="left", fontsize=8)
    no_gain(axis)
    _finish(axis, "acceptance rate α, as measured", columns=3)


def temperature(sweep: SweepRun) -> figures.Figure:
    """Speedup and acceptance against the sampling temperature."""
    figure, (left, right) = _panels(2)
    for i, (label, points) in enumerate(_curves(sweep).items()):
        _forecast_and_measured(left, points, i, label)
        _column(right, points, [point.acceptance_rate for point in points], i, label)
    _finish_both(sweep, left, right, "temperature T", "acceptance rate α")
    right.set_ylim(0, 1)
    return figure


def context(sweep: SweepRun) -> figures.Figure:
    """Speedup, and the cost of a decode step and of verifying, against the prompt's length."""
    figure, (left, right) = _panels(2)
    by_name = _curves(sweep)
    for i, (label, points) in enumerate(by_name.items()):
        _forecast_and_measured(left, points, i, label)
        _column(right, points, [point.verify_cost for point in points], i, f"v, {label}")
    points = next(iter(by_name.values()))
    first = curves.step_seconds(points[0])
    steps = [curves.step_seconds(point) / first for point in points]
    _column(right, points, steps, 6, f"t_1, in units of {first * 1e3:.2f} ms")
    _finish_both(sweep, left, right, "tokens of the prompt", "cost of a step and of verifying", log=True)
    return figure


def _forecast_and_measured(axis, points: list[Point], i: int, label: str) -> None:
    """One of several curves of a panel."""
    xs = _xs(points)
    line(axis, points, "x", "forecast", STYLES[i % len(STYLES)], colour(i), f"{label}, forecast")
    _measured(axis, points, i, f"{label}, measured", xs)
    _note_beside(axis, xs, [point.speedup for point in points], colour(i))


def _column(axis, points: list[Point], values: Sequence[float | None], i: int, label: str) -> None:
    """A value of each point as markers without intervals; None is left out."""
    known = {x: value for x, value in zip(_xs(points), values, strict=True) if value is not None}
    if known:
        xs, ys = list(known), list(known.values())
        axis.plot(xs, ys, MARKERS[i % len(MARKERS)], color=colour(i), label=label, linestyle="none", fillstyle="none")
        _note_beside(axis, xs, ys, colour(i))


def _finish_both(sweep: SweepRun, left, right, x_label: str, y_label: str, log: bool = False) -> None:
    for axis in (left, right):
        _ticks(axis, sweep.points, log)
    no_gain(left)
    _finish(left, x_label)
    _finish(right, x_label, y_label)


def draft_kind(sweep: SweepRun) -> figures.Figure:
    """Speedup of each draft on each kind of prompt."""
    label, points = _labeller(sweep), sweep.points
    kinds = list(dict.fromkeys(point.series for point in points))
    series: dict[str, dict[int, Value]] = {}
    for point in points:
        series.setdefault(label(point), {})[kinds.index(point.series)] = decoding(point)
    figure, (axis,) = _panels(1, width=1.6 * len(kinds) + 0.35 * len(kinds) * len(series))
    figures.grouped_bars(axis, series, lambda value: f"{value:.2f}", at_top=False, size=7.5)
    axis.set_xticks(range(len(kinds)), kinds)
    no_gain(axis)
    _finish(axis, "kind of prompt", columns=4)
    return figure


def mismatch(sweep: SweepRun) -> figures.Figure:
    """Speedup of each draft, and what a round makes against what it costs."""
    label, points = _labeller(sweep), sweep.points
    figure, (left, right) = _panels(2, width=5.6)
    names = [f"{label(point)}\nα = {number(point.acceptance_rate)}\n{curves.verdict(point)}" for point in points]
    speedups = {place: decoding(point) for place, point in enumerate(points)}
    figures.grouped_bars(
        left, {"measured, with its 95 % interval": speedups}, lambda value: f"{value:.2f}", at_top=False, size=7.5
    )
    rounds = {
        "tokens a round makes, τ": _exactly(point.tokens_per_round for point in points),
        "decode steps it costs": _exactly(curves.round_cost(point) for point in points),
    }
    figures.grouped_bars(right, rounds, lambda value: f"{value:.2f}")
    for axis in (left, right):
        axis.set_xticks(range(len(points)), names, fontsize=7)
    no_gain(left)
    _finish(left, "draft")
    _finish(right, "draft", "tokens and decode steps per round")
    return figure


def _exactly(values: Iterable[float | None], first: int = 0) -> dict[int, Value]:
    """Place -> a number without an interval; None is left out."""
    return {place: Value(value, None, None) for place, value in enumerate(values, first) if value is not None}


def definitions(sweep: SweepRun) -> figures.Figure:
    """How long accepted drafts are, and the book's formula fed with each number that is called acceptance."""
    figure, (left, right) = _panels(2, width=5.6)
    label, points = _labeller(sweep), [point for point in sweep.points if curves.survival(point)]
    longest = {label(point): curves.survival(point) for point in sorted(points, key=lambda point: point.x)}
    survival = {name: _exactly(shares, first=1) for name, shares in longest.items()}
    figures.grouped_bars(left, survival, lambda share: f"{share:.2f}", size=5)
    left.xaxis.get_major_locator().set_params(integer=True)
    _finish(left, "position i in the longest draft", "A_i, share of rounds with i or more accepted")
    bars: dict[str, dict[int, Value]] = {"measured": {i: decoding(point) for i, point in enumerate(points)}}
    for key in "αfs":
        bars[f"book fed with {key}"] = _exactly(curves.book_fed(point)[key] for point in points)
    figures.grouped_bars(right, bars, lambda value: f"{value:.1f}", size=5)
    right.set_xticks(range(len(points)), [f"{label(point)}\nk={point.x}" for point in points], fontsize=7)
    no_gain(right)
    _finish(right, "draft")
    return figure


PICTURES: dict[str, Callable[[SweepRun], figures.Figure]] = {
    "draft-length": draft_length,
    "acceptance": acceptance,
    "temperature": temperature,
    "output-length": output_length,
    "context": context,
    "draft-kind": draft_kind,
    "mismatch": mismatch,
    "definitions": definitions,
}
