"""All pictures share this module: a panel is data, and one function draws panels side by side.

Measured values are markers with intervals, each with its number above the interval; shares of a whole are bars,
predictions lines, the line at 1 is no gain.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from speclab.present.pictures.library import Figure, NullLocator, ScaledTranslation, plt
from speclab.present.run_lines import rough_in_short, small_print
from speclab.records.runs import Head
from speclab.system.files import write_whole
from speclab.theory.attribution import Value, decoding

# Okabe and Ito's colours without yellow; marker and line style differ too, so that grey print is enough.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLES = ["-", "--", "-.", ":"]
NUMBERED = 0.2  # width of the narrowest bar that is as wide as its number: that of four series
HATCHES = ["", "//", "..", "xx"]
SPEEDUP = "speedup over the baseline (decoding)"
BOOK = "book, 1/(1-α+α/k)"
MANY = 8  # of more values than these only the best and those at both ends are printed
WIDEST = 60  # points for all markers at one place: less than what lies between two places
NARROW = 19  # points between two markers that have no room for numbers side by side: theirs stand upright
DPI = 130


class Series(NamedTuple):
    """One entry of a legend."""

    label: str
    values: dict[Any, Value]  # place on the x axis -> value
    look: int = 0  # its colour and marker
    style: str = ""  # a prediction's line; empty: measured


@dataclass
class Panel:
    """One pair of axes."""

    series: list[Series]
    x_label: str
    y_label: str = SPEEDUP
    title: str = ""
    ticks: dict[Any, str] | None = None  # of the x axis; None: at every place
    spread: float = 12  # points between the markers of two measured series at one place
    bars: bool = False  # shares of a whole
    log: bool = False  # the x axis
    extra: Callable[[Any], None] | None = None  # draws what only this panel has, on its axis
    apart: tuple = ()  # places that no line leads to: what is predicted there is a dash


def plain(pairs: Iterable[tuple[Any, float | None]]) -> dict[Any, Value]:
    """Turn a dict, place -> number, into values without intervals; None is left out."""
    return {place: Value(number, None, None) for place, number in pairs if number is not None}


def column(rows: Iterable[Any], name: str, x: str = "x") -> dict[Any, Value]:
    """Return a column of the rows against another one."""
    return plain((getattr(row, x), getattr(row, name)) for row in rows)


def speedups(rows: Iterable[Any], x: str = "x") -> dict[Any, Value]:
    """Return the measured speedups of decoding with their intervals, against another column."""
    return {getattr(row, x): decoding(row) for row in rows}


def all_drafts(by_name: dict[str, list], x: str, predictions: dict[str, str], x_label: str, **options) -> Panel:
    """Return the measured speedups of several drafts with what was predicted: a colour and a marker for each draft, a
    line style for each prediction. predictions: column of the rows -> its label."""
    series = []
    for i, (name, rows) in enumerate(by_name.items()):
        series.append(Series(name, speedups(rows, x), i))
        for (key, label), style in zip(predictions.items(), STYLES, strict=False):
            series.append(Series(label, column(rows, key, x), i, style))
    return Panel(series, x_label, **options)


def draw(panels: list[Panel], width: float = 4.6, height: float = 4.2, **shared) -> Figure:
    """Return a figure with the panels side by side."""
    figure, axes = blank(max(1, len(panels)), width, height, **shared)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel)
    _share_scales(axes, panels)
    return figure


def _share_scales(axes: list, panels: list[Panel]) -> None:
    """Give panels of one quantity one y axis, so that heights can be compared. None goes below 0."""
    ends = [axis.get_ylim() for axis in axes]
    for i, panel in enumerate(panels):
        alike = [ends[j] for j, other in enumerate(panels) if other.y_label == panel.y_label]
        axes[i].set_ylim(max(0.0, min(low for low, _ in alike)), max(high for _, high in alike))


def blank(n: int, width: float, height: float, **shared) -> tuple[Figure, list]:
    """Return a figure with n pairs of axes side by side, each `width` inches wide.  -> figure, axes"""
    size = (max(6.4, width * n), height)
    figure, axes = plt.subplots(1, n, figsize=size, squeeze=False, layout="constrained", **shared)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def _draw_panel(axis, panel: Panel) -> None:
    """Draw the measured values first, so that they stand first in the legend."""
    # Matplotlib leaves a name out of the legend that begins with an underscore.
    named = [
        series._replace(label=" " * series.label.startswith("_") + series.label)
        for series in panel.series
        if series.values
    ]
    shown = sorted(named, key=lambda series: bool(series.style))
    measured = [series for series in shown if not series.style]
    beside = _beside(measured, panel.spread)
    for series in shown:
        if series.style:
            alike = [other for other in shown if (other.label, other.style) == (series.label, series.style)]
            _prediction(axis, series, panel.apart, beside, in_legend=len(alike) == 1)
            if len(alike) > 1 and series is alike[0]:
                axis.plot([], [], series.style, color="black", label=series.label)
        elif panel.bars:
            aside = measured.index(series) - (len(measured) - 1) / 2
            _bars(axis, series, aside, 0.8 / len(measured))
        else:
            _markers(axis, series, beside)
    if panel.log:
        axis.set_xscale("log", base=2)
    ticks = panel.ticks or {place: f"{place:g}" for place in sorted({x for series in shown for x in series.values})}
    axis.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.margins(x=0.05 if panel.bars else 0.12, y=0.15)  # room for what stands beside its place, and for the numbers
    if panel.y_label.startswith("speedup"):
        axis.axhline(1, color="black", linewidth=1)
    if panel.extra:
        panel.extra(axis)
    legend_above(axis, panel.title)


def _beside(measured: list[Series], spread: float) -> dict[tuple[int, Any], float]:
    """Return a dict: (look, place) -> the points that the marker stands beside its place, so that none hides the
    interval of another."""
    beside: dict[tuple[int, Any], float] = {}
    for x in dict.fromkeys(x for series in measured for x in series.values):
        here = [series.look for series in measured if x in series.values]
        beside |= {
            (look, x): (i - (len(here) - 1) / 2) * min(spread, WIDEST / len(here)) for i, look in enumerate(here)
        }
    return beside


def _moved(axis, right: float) -> Any:
    """Return the transform that moves a marker so many points from its place."""
    return axis.transData + ScaledTranslation(right / 72, 0, axis.figure.dpi_scale_trans)


def _prediction(axis, series: Series, apart: tuple, beside: dict[tuple[int, Any], float], in_legend: bool) -> None:
    """Draw a line. Places that do not belong together get a dash each, and so does a single place."""
    ys = {x: value.value for x, value in series.values.items()}
    line = {x: y for x, y in ys.items() if x not in apart}
    look = {"color": colour(series.look), "label": series.label if in_legend else "_"}
    if len(line) > 1:
        axis.plot(list(line), list(line.values()), series.style, **look)
        look["label"] = "_"
    else:
        line = {}
    for x in ys.keys() - line.keys():
        moved = _moved(axis, beside.get((series.look, x), 0.0))
        mark = "_" if series.style == STYLES[0] else "x"  # as lines of other styles are told apart
        axis.plot([x], [ys[x]], mark, markersize=16 if mark == "_" else 7, markeredgewidth=1.5, transform=moved, **look)
        look["label"] = "_"


def _markers(axis, series: Series, beside: dict[tuple[int, Any], float]) -> None:
    """Draw values with their intervals, each beside its place, and the number above it."""
    rights = {x: beside[series.look, x] for x in series.values}
    color, name = colour(series.look), series.label
    for right in dict.fromkeys(rights.values()):
        here = {x: value for x, value in series.values.items() if rights[x] == right}
        look = {"color": color, "transform": _moved(axis, right), "zorder": 3}
        ys = [value.value for value in here.values()]
        axis.plot(list(here), ys, MARKERS[series.look % len(MARKERS)], label=name, **look)
        name = "_"  # one entry in the legend
        intervals = [(x, value.low, value.high) for x, value in here.items() if None not in value]
        if intervals:
            axis.vlines(*zip(*intervals, strict=True), linewidth=1, **look)
        # A marker that is drawn beside its place does not widen the axes by itself.
        axis.update_datalim([*zip(here, ys, strict=True), *((x, end) for x, *ends in intervals for end in ends)])
    numbered = list(series.values)
    if len(numbered) > MANY:
        numbered = [numbered[0], max(numbered, key=lambda x: series.values[x].value), numbered[-1]]
    for x in dict.fromkeys(numbered):
        y, low, high = series.values[x]
        top = y if low is None or high is None else high
        places = sorted(right for (_, place), right in beside.items() if place == x)
        upright = any(after - before < NARROW for before, after in pairwise(places))
        look = {"color": color, "va": "bottom", "rotation": 90 if upright else 0}
        note(axis, x, top, f"{y:.2f}", 5, rights[x], **look)


def _bars(axis, series: Series, aside: float, width: float) -> None:
    """Draw shares as bars of this width, each with its number where there is room for it."""
    ys = [value.value for value in series.values.values()]
    xs = [place + aside * width for place in series.values]
    look = {"color": colour(series.look), "hatch": HATCHES[series.look % len(HATCHES)], "edgecolor": "white"}
    bars = axis.bar(xs, ys, width, label=series.label, **look)
    if width >= NUMBERED:
        axis.bar_label(bars, [f"{y:.2f}".removeprefix("0") if y else "0" for y in ys], fontsize=5.5)


def legend_above(axis, title: str) -> None:
    """Draw the legend with its title on top of the axis, where no line can cross it, in the order of drawing."""
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0.2}
    axis.legend(ncols=2, title=title, frameon=False, fontsize=8, title_fontsize=10, alignment="left", **place)


def colour(i: int) -> str:
    """Return the colour of the i-th look."""
    return COLOURS[i % len(COLOURS)]


def note(axis, x: float, y: float, text: str, up: float = 7, right: float = 0, **look) -> None:
    """Write a text beside a point, on white so that lines do not cross it."""
    box = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.8}
    look = {"ha": "center", "fontsize": 7.5, "bbox": box, "zorder": 5} | look
    axis.annotate(text, (x, y), (right, up), textcoords="offset points", **look)


def save(figure: Figure, run: Head, folder: Path, name: str) -> Path:
    """Write the figure as folder/name.png, signed, whole or not at all, and close it.

    Where the run's speeds are rough, a line above it says so.
    """
    if said := rough_in_short(run):
        figure.suptitle("\n".join(filter(None, [said, figure.get_suptitle()])), fontsize=9, color="#B00020")
    figure.supxlabel(small_print(run), fontsize=7, color="#555555")
    return as_png(figure, folder / f"{name}.png")


def as_png(figure: Figure, path: Path) -> Path:
    """Write the figure, whole or not at all, and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return write_whole(path, buffer.getvalue())
