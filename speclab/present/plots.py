"""The pictures of a comparison: measured values are markers, formulas are lines, the line at 1.0 is no gain."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from speclab.present import figures
from speclab.present.explanations import LEGEND
from speclab.present.figures import COLOURS, MARKERS, STYLES, colour, line, no_gain, note
from speclab.present.tables import short_names
from speclab.theory.curves import Value, decoding
from speclab.theory.ladder import EFFECTS, PREDICTORS, factors, prediction_errors, prediction_rows

SPEEDUPS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]  # ticks of a logarithmic axis
GREY = "#BBBBBB"


def comparison(run: dict, folder: Path, name: str) -> Iterator[Callable[[], Path]]:
    """The pictures of a comparison, each as what writes it and returns its path.

    A picture without anything to show is left out.
    """
    rows = [row for row in run["rows"] if row["prompt_kind"] == "all" and row["draft"]]
    if not rows:
        return
    chosen, predicted = waterfall_rows(rows), prediction_rows(run["rows"])
    pictures = {"speedup": lambda: _by_temperature(_speedups, rows)}
    if len({row["draft_length"] for row in rows}) > 1:
        pictures["draft-length"] = lambda: _by_temperature(_against_draft_length, rows, legend=True)
    pictures["accepted-lengths"] = lambda: _by_temperature(_accepted_lengths, rows)
    if chosen:
        pictures["why"] = lambda: _why(chosen)
    if prediction_errors(predicted):
        pictures["predicted"] = lambda: _predicted(predicted)
    for what, paint in pictures.items():
        yield functools.partial(_write, paint, run, folder, f"{name}-{what}")


def _write(paint: Callable[[], figures.Figure], run: dict, folder: Path, name: str) -> Path:
    return figures.save(paint(), run, folder, name)


def _by_temperature(paint: Callable, rows: list[dict], legend: bool = False) -> figures.Figure:
    """A panel for every temperature, painted by `paint`."""
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))  # a method looks the same in every panel
    figure, axes = figures.panels(len(temperatures), 5.2 * len(temperatures) + 0.6, 4.2 + legend * 0.6)
    for axis, temperature in zip(axes, temperatures, strict=True):
        paint(axis, [row for row in rows if row["temperature"] == temperature], methods)
        axis.set_title("greedy" if temperature == 0 else f"temperature {temperature:g}")
    if legend:
        figures.legend_above(figure, axes[0], min(len(methods), 3))
    return figure


def _speedups(axis, rows: list[dict], methods: list[str]) -> None:
    labelled = set()
    for place, row in enumerate(rows):
        label = None if row["method"] in labelled else row["method"]
        labelled.add(row["method"])
        figures.bars(axis, [place], [decoding(row)], methods.index(row["method"]), label)
        note(axis, place, 0, f"{row['speedup']:.2f}", 6, fontsize=10)
    no_gain(axis)
    axis.set_xticks(range(len(rows)), [f"k={row['draft_length']}" for row in rows])
    axis.set_ylabel(figures.SPEEDUP)
    axis.margins(y=0.2)
    axis.legend(frameon=False, ncols=len(methods), loc="upper center")


def _against_draft_length(axis, rows: list[dict], methods: list[str]) -> None:
    names = short_names(methods, 20)
    for i, method in enumerate(methods):
        curve = sorted((row for row in rows if row["method"] == method), key=lambda row: row["draft_length"])
        if curve:
            lengths = [row["draft_length"] for row in curve]
            figures.markers(axis, lengths, [decoding(row) for row in curve], i, f"{names[method]}, measured")
            line(
                axis,
                curve,
                "draft_length",
                "book_formula",
                STYLES[1::2][i % 2],
                colour(i),
                f"{names[method]}, 1/(1-α+α/k)",
            )
            line(axis, curve, "draft_length", "forecast", STYLES[::2][i % 2], colour(i), f"{names[method]}, forecast")
    no_gain(axis)
    axis.xaxis.set_major_locator(FixedLocator(sorted({row["draft_length"] for row in rows})))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("draft length k")
    axis.set_ylabel(figures.SPEEDUP)


def _accepted_lengths(axis, rows: list[dict], methods: list[str]) -> None:
    longest = max(row["draft_length"] for row in rows)
    series = {}
    for method in methods:
        some = [row for row in rows if row["method"] == method and row["draft_length"] == longest]
        counts: Counter[int] = Counter()
        for row in some:
            counts.update(dict(enumerate(row["accepted_lengths"] or [])))
        rounds = max(1, sum(counts.values()))
        shares = {n: Value(counts[n] / rounds, None, None) for n in range(longest + 1)} if some else {}
        series[f"{method}, {rounds} rounds"] = shares
    figures.grouped_bars(axis, series, lambda share: f"{share:.0%}", size=6)
    axis.set_xticks(range(longest + 1))
    axis.set_xlabel(f"drafted tokens accepted in a round, k = {longest}")
    axis.set_ylabel("share of rounds")
    axis.legend(frameon=False, fontsize=8)


# --- why --------------------------------------------------------------------------------------------------------------


def waterfall_rows(rows: list[dict]) -> list[tuple[str, dict]]:
    """What to take apart at the lowest temperature: (title, row) of the fastest row of four drafts at most, and of the
    slowest row.
    """
    rows = [row for row in rows if row["ladder"]]
    rows = [row for row in rows if row["temperature"] == min(row["temperature"] for row in rows)]
    best: dict[str, dict] = {}
    for row in sorted(rows, key=lambda row: -row["speedup"]):
        best.setdefault(row["method"], row)
    chosen = [("fastest of its draft", row) for row in list(best.values())[:4]]
    if len(rows) > len(chosen):
        chosen.append(("slowest of all", min(rows, key=lambda row: row["speedup"])))
    return chosen


def _why(chosen: list[tuple[str, dict]]) -> figures.Figure:
    """One waterfall for each row, side by side on one scale."""
    figure, axes = figures.panels(len(chosen), 3.1 * len(chosen) + 2.1, 4.9, sharex=True, sharey=True)
    for axis, (title, row) in zip(axes, chosen, strict=True):
        _waterfall(axis, row)
        name = short_names([row["method"]], 26)[row["method"]]
        axis.set_title(f"{title}\n{name} k={row['draft_length']}", fontsize=10)
        axis.set_xlabel("speedup (logarithmic)", fontsize=9)
    low, high = axes[0].get_xlim()
    for axis in axes:
        axis.set_xlim(low, high * (high / low) ** 0.16)  # room for the numbers right of the bars
        speedup_ticks(axis.xaxis, low, high)
    names = [name for name, *_ in LEGEND.values()]
    axes[0].set_yticks(range(len(EFFECTS) + 3), ["book formula", *names, "measured", "end to end"])
    axes[0].invert_yaxis()
    temperature = chosen[0][1]["temperature"]
    where = f"temperature {temperature:g}" if temperature else "greedy"
    figure.suptitle(f"From 1/(1-α+α/k) to the measured speedup, {where}", fontsize=11)
    return figure


def _waterfall(axis, row: dict) -> None:
    """Book formula on top, then a bar for every factor, then the measured speedup and the one with prefill counted."""
    here = row["ladder"][0]["speedup"]
    steps = [(1.0, here, f"{here:.2f}x", GREY)]  # from, to, its number, its colour
    for factor in (factors(row) or {}).values():
        steps.append((here, here * factor, f"×{factor:.2f}", COLOURS[0] if factor >= 1 else COLOURS[1]))
        here *= factor
    for value in (row["speedup"], row["speedup_with_prefill"]):
        steps.append((1.0, value, f"{value:.2f}x", GREY))
    for place, (start, end, text, color) in enumerate(steps):
        hatch = {COLOURS[0]: "//", COLOURS[1]: ".."}.get(color)
        axis.barh(place, end - start, left=start, height=0.66, color=color, hatch=hatch, edgecolor="white")
        outline = "#555555" if color == GREY else color  # a bar as thin as a hair stays visible
        axis.barh(place, end - start, left=start, height=0.66, fill=False, edgecolor=outline)
        note(axis, max(start, end), place, text, 0, 5, ha="left", va="center", fontsize=8)
        if place < len(steps) - 2:  # where the next bar starts
            axis.plot([end, end], [place + 0.33, place + 0.67], color="black", linewidth=0.8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.tick_params(labelsize=9)


def speedup_ticks(axis, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis (`axes.xaxis` or `axes.yaxis`), between the given ends."""
    axis.set_major_locator(FixedLocator([v for v in SPEEDUPS if low <= v <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


# --- how well predicted -----------------------------------------------------------------------------------------------


def _predicted(rows: list[dict]) -> figures.Figure:
    """Every row once for each predictor, predicted over measured."""
    figure, (axis,) = figures.panels(1, 6.2, 6.4)
    errors = prediction_errors(rows)
    speedups = [row["speedup"] for row in rows] + [row[p] for row in rows for p in errors if row[p] is not None]
    low, high = min(speedups) / 1.08, max(speedups) * 1.08
    for i, predictor in enumerate(errors):
        label = f"{PREDICTORS[predictor]}: {errors[predictor]['median']:.1%}"
        look = {"linestyle": "none", "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
        # The best informed on top.
        line(axis, rows, "speedup", predictor, MARKERS[i], COLOURS[i], label, zorder=9 - i, **look)
    ends = np.array([low, high])
    axis.fill_between(ends, ends * 0.9, ends * 1.1, color="#DDDDDD", label="within 10 %")
    axis.plot(ends, ends, color="black", linewidth=1)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axis.set_xlabel("measured speedup")
    axis.set_ylabel("predicted speedup")
    for side in (axis.xaxis, axis.yaxis):
        speedup_ticks(side, low, high)
    figures.legend_above(figure, axis, 3, title="median |predicted / measured - 1|", title_fontsize=8)
    kinds = ", ".join(dict.fromkeys(row["prompt_kind"] for row in rows))
    temperatures = ", ".join(f"{t:g}" for t in dict.fromkeys(row["temperature"] for row in rows))
    axis.set_title(f"{len(rows)} rows: prompts {kinds}; temperature {temperatures}", fontsize=10)
    return figure
