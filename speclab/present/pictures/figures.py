"""Pictures of speedups: a panel is data, and one function draws panels side by side. Measured values are markers with
their intervals and numbers, predictions are lines, and the line at 1 is no gain."""

import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from speclab.present.screen import ROUGH, rough_factor, small_print
from speclab.records.files import Head
from speclab.system.files import write_whole

matplotlib.rcParams["text.parse_math"] = False  # a name with $ is no formula; no text here is one
warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font|constrained_layout not")  # odd or long names
# Seven colours of Okabe and Ito's, without yellow; marker and line style differ too, so that grey print is enough.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLES = ["-", "--", "-.", ":"]
BOOK = "book, 1/(1-α+α/k)"
WIDEST = 60  # points for all markers at one place: less than what lies between two places
DPI = 130


Value = tuple[float, float | None, float | None]  # a number and its 95 % interval, None where it has none


class Series(NamedTuple):
    """One entry of a legend."""

    label: str
    values: dict[Any, Value]  # place on the x axis -> value
    look: int = 0  # its colour and marker
    style: str = ""  # a prediction's line; empty: measured


class Panel(NamedTuple):
    """One pair of axes."""

    series: list[Series]
    x_label: str
    title: str = ""
    ticks: dict[Any, str] | None = None  # of the x axis; None: at every place
    log: bool = False  # the x axis


def plain(pairs: Iterable[tuple[Any, float | None]]) -> dict[Any, Value]:
    """Turn (place, number) pairs into values without intervals; None is left out."""
    return {place: (number, None, None) for place, number in pairs if number is not None}


def with_interval(row: Any) -> Value:
    return row.speedup, row.speedup_low, row.speedup_high


def blank(n: int, width: float, height: float, **shared) -> tuple[Figure, list]:
    """Return a figure and its n pairs of axes, each so many inches wide and high, two in a row from four on."""
    columns = n if n < 4 else 2
    rows = -(-n // columns)
    size = (max(6.4, width * columns), height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **shared)
    for axis in axes.flat[:n]:
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[n:]:
        axis.remove()
    return figure, list(axes.flat[:n])


def draw(panels: list[Panel], width: float = 4.6, height: float = 4.2) -> Figure:
    """Return a figure of panels. They show one quantity and have one y axis, not below 0."""
    figure, axes = blank(max(1, len(panels)), width, height, sharey=True)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel)
    axes[0].set_ylim(bottom=max(0.0, axes[0].get_ylim()[0]))
    return figure


def _draw_panel(axis, panel: Panel) -> None:
    """Draw the measured values first, so that they stand first in the legend. It leaves out what begins with "_"."""
    given = [series for series in panel.series if series.values]
    shown = [one._replace(label=" " * one.label.startswith("_") + one.label, look=one.look % 7) for one in given]
    measured, lines = ([one for one in shown if bool(one.style) == is_line] for is_line in (False, True))
    step = min(20.0, WIDEST / max(1, len(measured)))
    for i, series in enumerate(measured):
        _markers(axis, series, (i - (len(measured) - 1) / 2) * step)
    named = set[str]()
    for series in lines:  # the first one of a name stands in the legend
        label = "_" if series.label in named else series.label
        named.add(series.label)
        values = [value for value, *_ in series.values.values()]
        look: dict[str, Any] = {"marker": "_" * (len(values) == 1), "markersize": 12, "color": COLOURS[series.look]}
        axis.plot(list(series.values), values, series.style, label=label, **look)
    if panel.log:
        axis.set_xscale("log", base=2)
    ticks = panel.ticks or {place: f"{place:g}" for place in sorted({x for series in shown for x in series.values})}
    axis.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axis.update_datalim([(place, 1.0) for place in ticks])  # all panels of a figure have the same places
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(panel.x_label)
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel("speedup over the baseline (decoding)")
    axis.margins(x=0.12, y=0.15)  # room for what stands beside its place, and for the numbers
    axis.axhline(1, color="black", linewidth=1)
    legend_above(axis, panel.title)


def _markers(axis, series: Series, right: float) -> None:
    """Draw values with their intervals so many points beside their places, and the number above each."""
    moved = axis.transData + ScaledTranslation(right / 72, 0, axis.figure.dpi_scale_trans)
    look: dict[str, Any] = {"color": COLOURS[series.look], "transform": moved, "zorder": 3}
    values = [value for value, *_ in series.values.values()]
    axis.plot(list(series.values), values, MARKERS[series.look], label=series.label, **look)
    intervals = [(x, *ends) for x, (_, *ends) in series.values.items() if None not in ends]
    if intervals:
        axis.vlines(*zip(*intervals, strict=True), linewidth=1, **look)
    # A marker that is drawn beside its place does not widen the axes by itself.
    axis.update_datalim([(x, y) for x, value in series.values.items() for y in value if y is not None])
    for x, (value, _, high) in series.values.items():
        note(axis, x, high or value, f"{value:.2f}", 5, right, color=look["color"], va="bottom", rotation=90)


def logarithmic(axis, name: str, ticks: Iterable[float], form: str) -> None:
    """Make the "x" or "y" axis logarithmic, with those of these ticks that its values reach."""
    getattr(axis, f"set_{name}scale")("log")
    side = getattr(axis, f"{name}axis")
    low, high = getattr(axis, f"get_{name}lim")()
    shown = [tick for tick in ticks if low <= tick <= high]
    side.set_ticks(shown, labels=[form.format(tick) for tick in shown])
    side.set_minor_locator(NullLocator())


def legend_above(axis, title: str) -> None:
    """Draw the legend with its title on top of the axis, where no line can cross it, in the order of drawing."""
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0.2}
    axis.legend(ncols=2, title=title, frameon=False, fontsize=8, title_fontsize=10, alignment="left", **place)


def note(axis, x: float, y: float, text: str, up: float = 7, right: float = 0, **look) -> None:
    """Write a text beside a point, on white so that lines do not cross it."""
    box = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.8}
    look = {"ha": "center", "fontsize": 7.5, "bbox": box, "zorder": 5} | look
    axis.annotate(text, (x, y), (right, up), textcoords="offset points", **look)


def save(figure: Figure, run: Head, folder: Path, name: str, beside: Iterable[Head] = ()) -> Path:
    """Write the figure of these runs as folder/name.png, signed, with a line above it where speeds are rough."""
    runs = [run, *beside]
    if factor := max(filter(None, map(rough_factor, runs)), key=float, default=None):
        title = "\n".join(filter(None, [f"{ROUGH} {factor}", figure.get_suptitle()]))
        figure.suptitle(title, fontsize=9, color="#B00020")
    figure.supxlabel("\n".join(dict.fromkeys(map(small_print, runs))), fontsize=7, color="#555555")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return write_whole(folder / f"{name}.png", buffer.getvalue())
