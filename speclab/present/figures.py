"""What all pictures share: colours, panels, measured markers with intervals, bars, notes, legends, the saved file."""

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from speclab.present.run_lines import small_print
from speclab.system.files import write_whole
from speclab.theory.curves import Value

# Okabe and Ito's colours without yellow; marker and line style differ too, so that grey print is enough.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLES = ["-", "--", "-.", ":"]
HATCHES = ["", "//", "..", "xx"]
SPEEDUP = "speedup over the baseline (decoding)"


def colour(i: int) -> str:
    """The colour of the i-th draft."""
    return COLOURS[i % len(COLOURS)]


def panels(n: int, width: float, height: float, **shared) -> tuple[Figure, list]:
    """A figure with n axes side by side.  -> figure, list of axes"""
    figure, axes = plt.subplots(1, n, figsize=(width, height), squeeze=False, layout="constrained", **shared)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[0])


def error_bars(values: list[Value]) -> list[list[float]] | None:
    """Lengths of error bars below and above; nothing where there is no interval."""
    if all(v.low is None for v in values):
        return None
    low = [0.0 if v.low is None else max(0.0, v.value - v.low) for v in values]
    return [low, [0.0 if v.high is None else max(0.0, v.high - v.value) for v in values]]


def markers(axis, xs: list[float], values: list[Value], i: int, label: str | None, **look) -> None:
    """Measured values with their intervals, in the look of the i-th draft."""
    look = {"fmt": MARKERS[i % len(MARKERS)], "color": colour(i), "capsize": 3} | look
    axis.errorbar(xs, [v.value for v in values], error_bars(values), label=label, **look)


def line(axis, rows: list[dict], x: str, y: str, style: str, color: str, label: str, **look) -> None:
    """One column of the rows against another as a line; rows without a value are left out."""
    known = [row for row in rows if row[y] is not None]
    if known:
        axis.plot([row[x] for row in known], [row[y] for row in known], style, color=color, label=label, **look)


def grouped_bars(
    axis, series: dict[str, dict[int, Value]], written: Callable[[float], str], at_top: bool = True, size: float = 6.5
) -> None:
    """Bars side by side around each place. series: label -> {place: value}; an empty one keeps its colour and room.

    Every value is printed, above its bar and interval or at its foot.
    """
    width = 0.8 / max(1, len(series))
    for i, (label, values) in enumerate(series.items()):
        if values:
            places = [place + (i - (len(series) - 1) / 2) * width for place in values]
            bars(axis, places, list(values.values()), i, label, width)
            for place, value in zip(places, values.values(), strict=True):
                top = value.value if value.high is None else value.high
                note(axis, place, top if at_top else 0, written(value.value), 4, fontsize=size)


def bars(axis, places: list[float], values: list[Value], i: int, label: str | None, width: float = 0.8) -> None:
    """Bars with intervals in the look of the i-th draft."""
    look = {"color": colour(i), "hatch": HATCHES[i % len(HATCHES)], "edgecolor": "white", "capsize": 3}
    axis.bar(places, [v.value for v in values], width, yerr=error_bars(values), label=label, **look)


def note(axis, x: float, y: float, text: str, up: float = 7, right: float = 0, **look) -> None:
    """A text beside a point, on white so that lines do not cross it."""
    box = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none"}
    look = {"ha": "center", "fontsize": 7.5, "bbox": box, "zorder": 5} | look
    axis.annotate(text, (x, y), (right, up), textcoords="offset points", **look)


def no_gain(axis) -> None:
    """The line at 1."""
    axis.axhline(1, color="black", linewidth=1)


def legend_above(figure: Figure, axis, columns: int, **look) -> None:
    """The axis's legend above the whole figure, labels that begin alike side by side: no line can cross it there."""
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    begin = [label.partition(",")[0] for label in handles]
    labels = sorted(handles, key=lambda label: begin.index(label.partition(",")[0]))
    look = {"ncols": columns, "frameon": False, "fontsize": 8} | look
    figure.legend([handles[label] for label in labels], labels, loc="outside upper center", **look)


def save(figure: Figure, run: dict, folder: Path, name: str) -> Path:
    """Write the figure as folder/name.png, signed, whole or not at all, and close it."""
    figure.supxlabel(small_print(run), fontsize=7, color="#555555")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    plt.close(figure)
    return write_whole(folder / f"{name}.png", buffer.getvalue())
