"""The pictures of a comparison, and what all pictures of speedups share: a panel is data, and one function draws panels
side by side. Measured values are markers with their intervals and numbers, predictions are lines, and the line at 1 is
no gain."""

import io
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from speclab.present import screen
from speclab.present.tables import short, temperature_name
from speclab.records.files import ComparisonRun, Head
from speclab.records.rows import AUTO, Row, lookup_shares
from speclab.system.files import write_whole
from speclab.theory.attribution import EFFECTS, factors

matplotlib.rcParams["text.parse_math"] = False  # a name with $ is no formula; no text here is one
warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font|constrained_layout not")  # odd or long names
# Seven colours of Okabe and Ito's, without yellow; marker and line style differ too, so that grey print is enough.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLES = ["-", "--", "-.", ":"]
BOOK = "book, 1/(1-α+α/k)"
WIDEST = 60  # points for all markers at one place: less than what lies between two places
DPI = 130
WIDTHS = [1, 2, 3, 5, 7, 9, 13, 17]  # ticks of the picture of limits
SPEEDS = [n * 10**e for e in range(6) for n in (1, 2, 5)]
SPEEDUPS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]  # ticks of a logarithmic axis
GAIN, LOSS, GREY = COLOURS[0], COLOURS[1], "#BBBBBB"
PREDICTIONS = {"forecast": "forecast", "book_formula": BOOK}

Painter = Callable[[list[ComparisonRun]], Figure | None]
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


with_interval = attrgetter("speedup", "speedup_low", "speedup_high")  # of a row: the Value of its speedup


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
    """Return a figure of panels. They show one quantity and have one y axis, not below 0. Measured values are drawn
    first, so that they stand first in the legend, which leaves out what begins with "_"."""
    figure, axes = blank(max(1, len(panels)), width, height, sharey=True)
    for axis, panel in zip(axes, panels, strict=False):
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
    axes[0].set_ylim(bottom=max(0.0, axes[0].get_ylim()[0]))
    return figure


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
    if factor := max(filter(None, map(screen.rough_factor, runs)), key=float, default=None):
        title = "\n".join(filter(None, [f"{screen.ROUGH} {factor}", figure.get_suptitle()]))
        figure.suptitle(title, fontsize=9, color="#B00020")
    figure.supxlabel("\n".join(dict.fromkeys(map(screen.small_print, runs))), fontsize=7, color="#555555")
    return written(figure, folder / f"{name}.png")


def written(figure: Figure, path: Path) -> Path:
    """Write the figure as it is, the same bytes each time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return write_whole(path, buffer.getvalue())


def comparison(run: ComparisonRun, folder: Path, name: str) -> list[partial[Path | None]]:
    """Return the pictures of a comparison, of which the speedups and the limits show its short runs, too: each is
    painted and written when it is called, so that what fails in one costs no file before it.  -> its path, if any"""
    painters: dict[str, Painter] = {"speedup": lambda parts: draw(speedup_panels(parts), 5.4, 4.6)}
    painters |= {"why": lambda parts: _why(screen.drafted(run))} | ({"limits": _limits} if len(run.parts) == 3 else {})
    return [partial(_write, paint, run, folder, f"{name}-{what}") for what, paint in painters.items()]


def _write(paint: Painter, run: ComparisonRun, folder: Path, name: str) -> Path | None:
    figure = paint(run.parts) if screen.drafted(run) else None
    others = filter(None, [] if name.endswith("-why") else [run.eager, run.padded])
    return save(figure, run, folder, name, others) if figure else None


def speedup_panels(runs: list[ComparisonRun]) -> list[Panel]:
    """Draw the speedup against k, with the forecast and the book's formula: a panel for every temperature and run, a
    colour and a marker for each draft. Rows on auto stand at a place of their own. Of a batch it is drawn against the
    number of texts at a time, and each k has a colour, too."""
    named = [(screen.target_name(run) * (len(runs) > 1), row) for run in runs for row in screen.drafted(run)]
    rows, of_batch = [row for _, row in named], any(row.n_texts > 1 for _, row in named)
    longest = max((row.draft_length for row in rows if not row.auto), default=0)

    def place(row: Row) -> int:
        return row.n_texts if of_batch else longest + 2 if row.auto else row.draft_length

    def arm(row: Row) -> tuple[str, str]:
        return row.method.removesuffix(AUTO), (", auto" if row.auto else f", k = {row.draft_length}") * of_batch

    ticks = {place(row): "auto" if row.auto and not of_batch else str(place(row)) for row in sorted(rows, key=place)}
    arms, panels = dict.fromkeys(map(arm, rows)), []
    places = dict.fromkeys((row.temperature, name) for name, row in named)
    for temperature, name in sorted(places, key=lambda one: one[0]):
        here = sorted((row for own, row in named if (row.temperature, own) == (temperature, name)), key=place)
        series = list[Series]()
        for look, one in enumerate(arms):
            of_arm = [row for row in here if arm(row) == one]
            values = {place(row): with_interval(row) for row in of_arm}
            series.append(Series(short(one[0], 16) + one[1], values, look))
            for (key, label), style in zip(PREDICTIONS.items(), STYLES, strict=False):
                known = plain((place(row), getattr(row, key)) for row in of_arm if of_batch or not row.auto)
                series.append(Series(label, known, look, style))
        title = ", ".join(filter(None, [name, temperature_name(temperature)]))
        panels.append(Panel(series, "texts at a time" if of_batch else "draft length k", title, ticks, of_batch))
    return panels


def _limits(runs: list[ComparisonRun]) -> Figure:
    """Draw how many tokens a second passes of each run read at its first temperature, by the tokens of a pass; a dotted
    line is what reading the weights would allow. The legend has the fastest draft, whose pass has a larger marker.
    Beside it stands in which share of its rounds the lookup of a hybrid drafts."""
    arm = ("hybrid", runs[0].rows[0].temperature)
    shares = [
        {k: of["all"] for (*own, k, at), of in lookup_shares(run.raw).items() if (*own, at) == arm} for run in runs
    ]
    figure, [axis, *more] = blank(1 + any(shares), 5.4, 4.4)
    for axis_of_shares in more:
        _lookups(axis_of_shares, runs, shares)
    for run, color, marker in zip(runs, COLOURS, MARKERS, strict=False):
        whole, step = [row for row in screen.full_rows(run) if not row.auto], screen.step_seconds(run)
        passes = {row.draft_length + 1: row.verify_cost or 0.0 for row in whole} | {1: 1.0}  # tokens -> steps
        speeds, label = {m: m / (passes[m] * step) for m in sorted(passes)}, screen.target_name(run)
        fixed = [row for row in screen.first_rows(run) if row.draft_length and not row.auto]
        if best := max(fixed, key=lambda row: row.speedup, default=None):
            if speed := speeds.get(best.draft_length + 1):
                axis.plot([best.draft_length + 1], [speed], marker, color=color, markersize=11)
            label += f": {short(best.method, 12)} k = {best.draft_length}, {best.speedup:.2f}x"
        axis.plot([*speeds], [*speeds.values()], f"{marker}-", color=color, label=label)
        if run.bandwidth and run.weight_bytes:
            axis.plot([*speeds], [m * run.bandwidth / run.weight_bytes for m in speeds], ":", color=color)
    logarithmic(axis, "x", WIDTHS, "{}")
    logarithmic(axis, "y", SPEEDS, "{:,}")
    axis.set_xlabel("tokens of a pass")
    axis.set_ylabel("tokens a second that passes read")
    legend_above(axis, "Passes, and the fastest draft; dotted: as fast as weights are read")
    return figure


def _lookups(axis, runs: list[ComparisonRun], shares: list[dict[int, float]]) -> None:
    """Draw in which share of its rounds the lookup of `hybrid` drafts: a bar for each run and fixed k."""
    for i, (run, found, color, hatch) in enumerate(zip(runs, shares, COLOURS, ("", "//", ".."), strict=False)):
        places, label = [k + (i - 1) * 0.55 for k in found], screen.target_name(run)
        axis.bar(places, found.values(), 0.5, color=color, hatch=hatch, edgecolor="white", label=label)
        for place, share in zip(places, found.values(), strict=True):
            note(axis, place, share, f"{share:.0%}", 6)
    axis.set_xticks(sorted({k for found in shares for k in found}))
    axis.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axis.set_xlabel("draft length k")
    axis.set_ylabel("share of the rounds")
    legend_above(axis, "Rounds in which the lookup of hybrid drafts")


def _why(rows: list[Row]) -> Figure | None:
    """Draw the fastest row that has a ladder, at the lowest temperature: the book's formula on top, a bar for every
    factor, then the measured speedup and the one with prefill counted."""
    known = [row for row in rows if factors(row) and row.book_formula]
    if not known:
        return None
    row = min(known, key=lambda row: (row.temperature, -row.speedup))
    here = row.book_formula or 1.0
    steps = [(1.0, here, f"{here:.2f}x", GREY)]  # from, to, its number, its colour
    for factor in factors(row).values():
        steps.append((here, here * factor, f"×{factor:.2f}", GAIN if factor >= 1 else LOSS))
        here *= factor
    steps += [(1.0, value, f"{value:.2f}x", GREY) for value in (row.speedup, row.speedup_with_prefill)]
    figure, [axis] = blank(1, 6.4, 4.2)
    for place, (start, end, text, color) in enumerate(steps):
        hatch = {GAIN: "//", LOSS: ".."}.get(color)
        axis.barh(place, end - start, 0.66, start, color=color, hatch=hatch, edgecolor="white", linewidth=0)
        note(axis, max(start, end), place, text, 0, 5, ha="left", va="center", fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.use_sticky_edges = False
    axis.margins(x=0.15)  # room for the numbers right of the bars
    logarithmic(axis, "x", SPEEDUPS, "{:g}x")
    axis.set_xlabel("speedup (logarithmic)")
    axis.set_yticks(range(len(steps)), ["book formula", *EFFECTS, "measured", "end to end"])
    axis.invert_yaxis()
    where = f"{short(row.method, 26)} k = {row.draft_length}, {temperature_name(row.temperature)}"
    figure.suptitle(f"From 1/(1-α+α/k) to the measured speedup: {where}", fontsize=10)
    return figure
