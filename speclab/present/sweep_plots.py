"""The pictures of the sweeps: measured values are markers with intervals, predictions lines, the line at 1 is no gain.

Every function takes a sweep with points and gives a figure; speclab/present/sweep_views.py signs and saves it.
"""

from collections.abc import Callable

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from speclab.present.plots import COLOURS, HATCHES, MARKERS, STYLES, error_bars, markers, panels
from speclab.present.words import short_names
from speclab.theory import curves as facts
from speclab.theory.curves import decoding, end_to_end
from speclab.theory.formulas import book_formula

SPEEDUP = "speedup over the baseline (decoding)"
NAME_WIDTH = 16  # of a draft's name in a legend
BOOK = "book, 1/(1-α+α/k)"


def _panels(n: int, width: float = 4.6, height: float = 4.2) -> tuple:
    """n axes of this width.  -> figure, list of axes"""
    return panels(n, max(6.4, width * n), height)


def _labeller(sweep: dict) -> Callable[[dict], str]:
    """As in sentences, but no longer than a legend bears."""
    label = facts.labeller(sweep)
    short = short_names([label(p) for p in sweep["points"]], NAME_WIDTH)
    return lambda point: short[label(point)]


def _curves(sweep: dict) -> dict[str, list[dict]]:
    label = _labeller(sweep)
    return {label(points[0]): points for points in facts.curves(sweep).values()}


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _once(points: list[dict]) -> list[dict]:
    """The same points, each of them once."""
    return list({id(p): p for p in points}.values())


def _measured(
    axis, points: list[dict], i: int, label: str, x: Callable = lambda p: p["x"], value: Callable = decoding, **look
) -> None:
    look = {"markersize": 5, "capsize": 2, "linewidth": 1} | look
    markers(axis, [x(p) for p in points], [value(p) for p in points], i, label, **look)


def _predicted(
    axis, points: list[dict], key: str, style: str, colour: str, label: str, x: Callable = lambda p: p["x"], **look
) -> None:
    known = [p for p in points if p[key] is not None]
    if known:
        look = {"linewidth": 1.4} | look
        axis.plot([x(p) for p in known], [p[key] for p in known], style, color=colour, label=label, **look)


def _note(axis, x: float, y: float, text: str, up: float = 7, right: float = 0, **more) -> None:
    box = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none"}
    more = {"ha": "center", "fontsize": 7.5, "bbox": box, "zorder": 5} | more
    axis.annotate(text, (x, y), (right, up), textcoords="offset points", **more)


def _note_ends(
    axis, points: list[dict], x: Callable = lambda p: p["x"], value: Callable = decoding, below: bool = False, **more
) -> None:
    """Print the values of the best and of both ends, above their intervals or below."""
    top = max(points, key=lambda p: value(p).value)
    for point in _once([points[0], top, points[-1]]):
        number = value(point)
        edge = (number.low if below else number.high) or number.value
        _note(axis, x(point), edge, f"{number.value:.2f}", -12 if below else 4, **more)


def _note_beside(axis, points: list[dict], i: int) -> None:
    """Print the values at both ends of a curve outside of it, where no other curve's interval is."""
    for point, side in ((points[0], -1), (points[-1], 1))[: len(points)]:
        look = {"ha": "left" if side > 0 else "right", "va": "center", "color": _colour(i)}
        _note(axis, point["x"], point["speedup"], f"{point['speedup']:.2f}", 0, 6 * side, **look)
    axis.margins(x=0.12)


def _forecast_and_measured(axis, points: list[dict], i: int, label: str) -> None:
    """One of several curves of a panel."""
    _predicted(axis, points, "forecast", STYLES[i % len(STYLES)], _colour(i), f"{label}, forecast")
    _measured(axis, points, i, f"{label}, measured")
    _note_beside(axis, points, i)


def _finish(axis, x_label: str, y_label: str = SPEEDUP, one: bool = True, columns: int = 2) -> None:
    """Labels, the line at 1, and the legend above the axis, where no line can cross it."""
    if one:
        axis.axhline(1, color="black", linewidth=1)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.margins(y=0.12)
    axis.set_ylim(bottom=max(0.0, axis.get_ylim()[0]))
    if axis.get_legend_handles_labels()[0]:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "ncols": columns}
        axis.legend(frameon=False, fontsize=8, borderaxespad=0.2, **place)


def _ticks(axis, points: list[dict], log: bool = False) -> None:
    """A tick at every measured place."""
    if log:
        axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(sorted({p["x"] for p in points})))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


# --- one function for each sweep --------------------------------------------------------------------------------------


def draft_length(sweep: dict):
    curves = _curves(sweep)
    figure, axes = _panels(len(curves))
    for i, (axis, (label, points)) in enumerate(zip(axes, curves.items(), strict=True)):
        _predicted(axis, points, "book_formula", ":", _colour(i), BOOK)
        _predicted(axis, points, "forecast", "-", _colour(i), "forecast")
        _measured(axis, points, i, f"{label}: measured")
        _ticks(axis, points)
        axis.tick_params(axis="x", labelsize=8)
        _finish(axis, "draft length k")
    _same_height(axes)
    for axis, points in zip(axes, curves.values(), strict=True):
        top = facts.best(points)
        for point in [p for p in points if p is not top and (p is points[-1] or p["x"] == 0)]:
            _note(axis, point["x"], point["speedup_low"] or point["speedup"], f"{point['speedup']:.2f}", -12)
        if top:  # down where no interval is, so that it hides none
            place = (top["x"], axis.get_ylim()[0])
            bottom = top["speedup_low"] or top["speedup"]
            axis.vlines(top["x"], place[1], bottom, color="#555555", linewidth=0.8, linestyle=STYLES[3])
            _note(axis, *place, f"best: k = {top['x']}, {top['speedup']:.2f}", 5)
    return figure


def _same_height(axes: list) -> None:
    low, high = zip(*(axis.get_ylim() for axis in axes), strict=True)
    for axis in axes:
        axis.set_ylim(min(low), max(high))


def acceptance(sweep: dict):
    curves = {label: facts.by_acceptance(points) for label, points in _curves(sweep).items()}
    curves = {label: points for label, points in curves.items() if points}
    figure, axes = _panels(max(1, len(curves)), width=6.4, height=4.6)
    for axis, (label, points) in zip(axes, curves.items(), strict=False):
        _acceptance_panel(axis, points)
        if len(curves) > 1:
            axis.text(0.02, 0.97, label, transform=axis.transAxes, ha="left", va="top", fontsize=11)
    return figure


def _acceptance_panel(axis, points: list[dict]) -> None:
    def alpha(point: dict) -> float:
        return point["acceptance_rate"]

    k, grid = points[0]["draft_length"], np.linspace(alpha(points[0]), alpha(points[-1]), 200)
    for found in facts.agreements(points):
        axis.axvspan(found.low, found.high, color=COLOURS[4], alpha=0.3, linewidth=0)
        words = f"book within {facts.NEAR:.0%}:\nα = {found.low:.2f} to {found.high:.2f}"
        if found.omega is not None:
            words += f"\nω = {found.omega:.2f}, ω* = {found.omega_star:.2f}"
        place = (max((found.low + found.high) / 2, 0.12), 0.72)  # above the curves, right of the axis
        axis.text(*place, words, transform=axis.get_xaxis_transform(), ha="center", va="bottom", fontsize=7.5)
    book = [book_formula(float(a), k) for a in grid]
    axis.plot(grid, book, STYLES[3], color=COLOURS[1], linewidth=1.8, label=BOOK)
    _predicted(axis, points, "leviathan", STYLES[2], COLOURS[3], "Leviathan, with c", alpha)
    # The last two nearly coincide: a broad line under a narrow one.
    _predicted(axis, points, "forecast", STYLES[0], COLOURS[5], "forecast", alpha, linewidth=3, alpha=0.6)
    _predicted(axis, points, "cost_model", STYLES[1], COLOURS[2], "cost model", alpha)
    _measured(axis, points, 0, f"measured, k = {k}", alpha)
    _note_ends(axis, points, alpha)
    even = facts.break_even(points)
    if even:
        axis.plot(even[0], 1, "|", color="black", markersize=14)
        axis.annotate(f"break-even: α = {even[0]:.2f}", (even[0], 1), (9, -16), textcoords="offset points", fontsize=8)
    _finish(axis, "acceptance rate α, as measured", columns=3)


def temperature(sweep: dict):
    figure, (left, right) = _panels(2)
    for i, (label, points) in enumerate(_curves(sweep).items()):
        _forecast_and_measured(left, points, i, label)
        known = [p for p in points if p["acceptance_rate"] is not None]
        rates = [p["acceptance_rate"] for p in known]
        right.plot([p["x"] for p in known], rates, MARKERS[i % len(MARKERS)], color=_colour(i), label=label)
        for point in _once(known[:1] + known[-1:]):
            _note(right, point["x"], point["acceptance_rate"], f"{point['acceptance_rate']:.2f}", 6, color=_colour(i))
    for axis in (left, right):
        _ticks(axis, sweep["points"])
    _finish(left, "temperature T")
    _finish(right, "temperature T", "acceptance rate α", one=False)
    right.set_ylim(0, 1)
    return figure


def output_length(sweep: dict):
    curves = _curves(sweep)
    figure, axes = _panels(len(curves))
    for i, (axis, (label, points)) in enumerate(zip(axes, curves.items(), strict=True)):
        _predicted(axis, points, "forecast", "-", _colour(i), "forecast of decoding")
        # Side by side, so that neither interval hides the other.
        _measured(axis, points, i, f"{label}: decoding", x=lambda p: p["x"] / 1.04)
        look = {"markerfacecolor": "white", "linestyle": "none"}
        _measured(axis, points, i, "with the prompt", x=lambda p: p["x"] * 1.04, value=end_to_end, **look)
        _note_ends(axis, points, x=lambda p: p["x"] / 1.04)
        _note_ends(axis, points, x=lambda p: p["x"] * 1.04, value=end_to_end, below=True)
        _ticks(axis, points, log=True)
        _finish(axis, "new tokens", "speedup over the baseline")
    _same_height(axes)
    return figure


def context(sweep: dict):
    figure, (left, right) = _panels(2)
    curves = _curves(sweep)
    for i, (label, points) in enumerate(curves.items()):
        _forecast_and_measured(left, points, i, label)
        known = [p for p in points if p["verify_cost"] is not None]
        verify = [p["verify_cost"] for p in known]
        look = {"color": _colour(i), "markersize": max(4, 9 - 4 * i), "fillstyle": "full" if i else "none"}
        right.plot([p["x"] for p in known], verify, MARKERS[i % len(MARKERS)], label=f"v, {label}", **look)
        for point in _once(known[:1] + known[-1:]):
            _note(right, point["x"], point["verify_cost"], f"{point['verify_cost']:.2f}")
    points = next(iter(curves.values()))
    steps = [facts.step_seconds(p) / facts.step_seconds(points[0]) for p in points]
    first = facts.step_seconds(points[0]) * 1e3
    name = f"t_1, in units of {first:.2f} ms"
    right.plot([p["x"] for p in points], steps, MARKERS[-1], color="black", label=name)
    _note(right, points[-1]["x"], steps[-1], f"{steps[-1]:.2f}")
    for axis in (left, right):
        _ticks(axis, sweep["points"], log=True)
    _finish(left, "tokens of the prompt")
    _finish(right, "tokens of the prompt", "cost of a step and of verifying")
    return figure


def draft_kind(sweep: dict):
    label, points = _labeller(sweep), sweep["points"]
    kinds, names = (list(dict.fromkeys(f(p) for p in points)) for f in (lambda p: p["series"], label))
    figure, (axis,) = _panels(1, width=1.6 * len(kinds) + 0.35 * len(kinds) * len(names))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        mine = [p for p in points if label(p) == name]
        places = [kinds.index(p["series"]) + (i - (len(names) - 1) / 2) * width for p in mine]
        values = [decoding(p) for p in mine]
        look = {"color": _colour(i), "hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white", "capsize": 3}
        axis.bar(places, [v.value for v in values], width, yerr=error_bars(values), label=name, **look)
        for place, value in zip(places, values, strict=True):
            _note(axis, place, 0, f"{value.value:.2f}", 4)
    axis.set_xticks(range(len(kinds)), kinds)
    _finish(axis, "kind of prompt", columns=4)
    return figure


def mismatch(sweep: dict):
    label, points = _labeller(sweep), sweep["points"]
    figure, (left, right) = _panels(2, width=4.9, height=1.6 + 0.45 * len(points))
    rows, values = range(len(points)), [decoding(p) for p in points]
    slower = [v.value < 1 for v in values]
    look = {"edgecolor": "white", "height": 0.7, "capsize": 3, "xerr": error_bars(values)}
    bars = left.barh(rows, [v.value for v in values], color=[COLOURS[1 if s else 0] for s in slower], **look)
    for bar, loses in zip(bars, slower, strict=True):
        bar.set_hatch("//" if loses else "")
    for row, (point, value) in enumerate(zip(points, values, strict=True)):
        word = {"faster": "", "slower": ", slower", "unclear": ", unclear"}[facts.verdict(point)]
        box = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none"}
        left.text(0.03, row, f"{value.value:.2f}x{word}", va="center", fontsize=8, bbox=box)
    alphas = ["-" if p["acceptance_rate"] is None else f"{p['acceptance_rate']:.2f}" for p in points]
    left.set_yticks(rows, [f"{label(p)}\nα = {a}" for p, a in zip(points, alphas, strict=True)], fontsize=8)
    left.axvline(1, color="black", linewidth=1)
    left.set_xlabel(SPEEDUP)
    made = [p["tokens_per_round"] for p in points]
    right.plot(made, rows, MARKERS[0], color=COLOURS[0], label="tokens a round makes, τ")
    paid = [(facts.round_cost(p), row) for row, p in enumerate(points) if facts.round_cost(p) is not None]
    right.plot(*zip(*paid, strict=True), MARKERS[1], color=COLOURS[1], label="decode steps it costs") if paid else None
    for row, tau in enumerate(made):
        _note(right, tau, row, f"{tau:.2f}")
    right.set_yticks(rows, [])
    right.set_xlim(left=0)
    right.set_xlabel("tokens and decode steps per round")
    right.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    for axis in (left, right):
        axis.set_ylim(len(points) - 0.5, -0.7)  # the best one on top
    return figure


def definitions(sweep: dict):
    figure, (left, right) = _panels(2, width=5.2)
    curves = {name: [p for p in points if facts.survival(p)] for name, points in _curves(sweep).items()}
    curves = {name: points for name, points in curves.items() if points}
    width = 0.8 / max(1, len(curves))
    for i, (name, points) in enumerate(curves.items()):
        shares = facts.survival(points[-1])
        places = [n + 1 + (i - (len(curves) - 1) / 2) * width for n in range(len(shares))]
        look = {"color": _colour(i), "hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white"}
        left.bar(places, shares, width, label=f"{name}, k = {points[-1]['x']}", **look)
        for place, share in zip(places, shares, strict=True):
            _note(left, place, share, f"{share:.2f}", 2, fontsize=6.5 if len(shares) <= 8 else 5, bbox=None)
    left.xaxis.get_major_locator().set_params(integer=True)
    _finish(left, "position i in the draft", "A_i, share of rounds with i or more accepted", one=False)
    _fed(right, curves)
    return figure


def _fed(axis, curves: dict[str, list[dict]]) -> None:
    """Measured speedups as markers, and what the book's formula says when fed with α, f and s as short lines."""
    places, place = [], 0
    feeds = {"α": COLOURS[3], "s": COLOURS[2], "f": COLOURS[5]}
    for i, (name, points) in enumerate(curves.items()):
        for point in points:
            for (key, colour), style in zip(feeds.items(), STYLES[:3], strict=True):
                said = facts.book_fed(point).get(key)
                known = f"book fed with {key}" if not places else None
                axis.hlines([said] if said else [], place - 0.4, place + 0.4, colour, style, linewidth=2, label=known)
            _measured(axis, [point], i, f"{name}, measured" if point is points[0] else None, x=lambda _, at=place: at)
            _note(axis, place, point["speedup_low"] or point["speedup"], f"{point['speedup']:.2f}", -12)
            places.append((place, f"k={point['x']}"))
            place += 1
        place += 0.5
    if places:
        axis.set_xticks(*zip(*places, strict=True), fontsize=8)
    _finish(axis, "draft length", columns=3)
