"""The pictures of a comparison: measured values are markers, formulas are lines, the line at 1.0 is no gain."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, draw, note
from speclab.present.pictures.library import Figure, NullLocator
from speclab.present.tables import short_names, temperature_name
from speclab.records.arms import AUTO
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.theory.ladder import EFFECTS, PREDICTORS, factors, prediction_errors, prediction_rows

SPEEDUPS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]  # ticks of a logarithmic axis
GAIN, LOSS, GREY = figures.COLOURS[0], figures.COLOURS[1], "#BBBBBB"


def comparison(run: ComparisonRun, folder: Path, name: str) -> list[functools.partial[Path | None]]:
    """Return the pictures of a comparison: each is painted and written when it is called.  -> its path

    None where there is nothing to show. Nothing is computed before: what fails in a picture costs no other file.
    """
    painters = {"speedup": _speedups, "why": _why, "predicted": _predicted}
    return [functools.partial(_write, paint, run, folder, f"{name}-{what}") for what, paint in painters.items()]


def _write(paint: Callable[[list[Row]], Figure | None], run: ComparisonRun, folder: Path, name: str) -> Path | None:
    figure = paint(run.rows)
    return figures.save(figure, run, folder, name) if figure else None


def _speedups(rows: list[Row]) -> Figure | None:
    panels = speedup_panels(_on_all_prompts(rows))
    return draw(panels, 5.4, 4.6) if panels else None


def _on_all_prompts(rows: list[Row]) -> list[Row]:
    """Return the rows of the drafts over all prompts."""
    return [row for row in rows if row.prompt_kind == "all" and row.draft]


def _groups(rows: list[Row]) -> Iterator[tuple[str, dict[str, list[Row]]]]:
    """Return for each temperature its title and the rows of every draft along k. A draft without rows keeps its place,
    so that it looks the same at every temperature.
    """
    names = short_names([row.method for row in rows], 16)
    for temperature in dict.fromkeys(row.temperature for row in rows):
        here = sorted((row for row in rows if row.temperature == temperature), key=lambda row: row.draft_length)
        by_name = {name: [row for row in here if row.method == method] for method, name in names.items()}
        yield temperature_name(temperature), by_name


def speedup_panels(rows: list[Row]) -> list[Panel]:
    """Draw the speedup against k, with the forecast and the book's formula: a panel for every temperature. Rows on
    auto stand at a place of their own."""
    predictions = {"forecast": "forecast", "book_formula": figures.BOOK}
    fixed = {row.draft_length for row in rows if not row.auto}
    auto = max(fixed, default=0) + 2
    ticks = {k: f"{k:g}" for k in sorted(fixed)}
    if any(row.auto for row in rows):
        ticks[auto] = "auto"
    placed = [
        replace(row, method=row.method.removesuffix(AUTO), draft_length=auto) if row.auto else row for row in rows
    ]
    options: dict[str, Any] = {"ticks": ticks, "apart": (auto,), "spread": 20}
    return [
        figures.all_drafts(by_name, "draft_length", predictions, "draft length k", title=title, **options)
        for title, by_name in _groups(placed)
    ]


# --- why --------------------------------------------------------------------------------------------------------------


def waterfall_rows(rows: list[Row]) -> list[tuple[str, Row]]:
    """The waterfall takes these rows apart, all at the lowest temperature: (title, row) of the fastest row of each of
    up to four drafts, and of the slowest row.
    """
    rows = [row for row in rows if row.ladder]
    rows = [row for row in rows if row.temperature == min(row.temperature for row in rows)]
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: -row.speedup):
        best.setdefault(row.method, row)
    chosen = [("fastest of its draft", row) for row in list(best.values())[:4]]
    if len(rows) > len(chosen):
        chosen.append(("slowest of all", min(rows, key=lambda row: row.speedup)))
    return chosen


def _why(rows: list[Row]) -> Figure | None:
    """Draw one waterfall for each row that is taken apart, side by side on one scale."""
    chosen = waterfall_rows(_on_all_prompts(rows))
    if not chosen:
        return None
    figure, axes = figures.blank(len(chosen), 3.1 + 2.1 / len(chosen), 4.9, sharex=True, sharey=True)
    for axis, (title, row) in zip(axes, chosen, strict=True):
        _waterfall(axis, row)
        name = short_names([row.method], 26)[row.method]
        axis.set_title(f"{title}\n{name} k={row.draft_length}", fontsize=10)
        axis.set_xlabel("speedup (logarithmic)", fontsize=9)
    low, high = axes[0].get_xlim()
    axes[0].set_xlim(low, high * (high / low) ** 0.16)  # room for the numbers right of the bars
    _speedup_ticks(axes[0].xaxis, low, high)
    names = [effect.name for effect in EFFECTS]
    axes[0].set_yticks(range(len(EFFECTS) + 3), ["book formula", *names, "measured", "end to end"])
    axes[0].invert_yaxis()
    where = temperature_name(chosen[0][1].temperature)
    figure.suptitle(f"From 1/(1-α+α/k) to the measured speedup, {where}", fontsize=11)
    return figure


def _waterfall(axis, row: Row) -> None:
    """Draw the book's formula on top, then a bar for every factor, then the measured speedup and the one with
    prefill counted."""
    here, *_ = (rung.speedup for rung in row.ladder or [])  # the book's formula
    steps = [(1.0, here, f"{here:.2f}x", GREY)]  # from, to, its number, its colour
    for factor in factors(row).values():
        steps.append((here, here * factor, f"×{factor:.2f}", GAIN if factor >= 1 else LOSS))
        here *= factor
    steps += [(1.0, value, f"{value:.2f}x", GREY) for value in (row.speedup, row.speedup_with_prefill)]
    for place, (start, end, text, color) in enumerate(steps):
        hatch = {GAIN: "//", LOSS: ".."}.get(color)
        axis.barh(place, end - start, 0.66, start, color=color, hatch=hatch, edgecolor="white", linewidth=0)
        note(axis, max(start, end), place, text, 0, 5, ha="left", va="center", fontsize=8)
        if place < len(steps) - 2:  # where the next bar starts; where this one is too thin to see
            axis.plot([end, end], [place - 0.33, place + 0.67], color="black", linewidth=0.8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.tick_params(labelsize=9)


def _speedup_ticks(axis, low: float, high: float) -> None:
    """Put plain numbers on a logarithmic axis (`axes.xaxis` or `axes.yaxis`), between the given ends."""
    ticks = [value for value in SPEEDUPS if low <= value <= high]
    axis.set_ticks(ticks, labels=[f"{value:g}x" for value in ticks])
    axis.set_minor_locator(NullLocator())


# --- how well predicted -----------------------------------------------------------------------------------------------


def _predicted(rows: list[Row]) -> Figure | None:
    """Draw every row once for each predictor, predicted over measured."""
    rows = prediction_rows(rows)
    errors = prediction_errors(rows)
    if not errors:
        return None
    figure, (axis,) = figures.blank(1, 6.2, 6.4)
    ends = np.array([1.0, 1.0])
    for i, (predictor, miss) in enumerate(errors.items()):
        known = [row for row in rows if getattr(row, predictor) is not None]
        pairs = np.array([(row.speedup, getattr(row, predictor)) for row in known]).T
        ends = np.array([min(ends[0], pairs.min() / 1.08), max(ends[1], pairs.max() * 1.08)])
        # The best informed on top, and hollow and larger ones beneath: predictors that agree are all seen.
        look = {"markersize": 3.5 + 1.2 * i, "markeredgewidth": 1, "zorder": 9 - i}
        face = figures.colour(i) if i == 0 else "none"
        label = f"{PREDICTORS[predictor]}: {miss['median']:.1%}"
        axis.plot(*pairs, figures.MARKERS[i], color=figures.colour(i), markerfacecolor=face, label=label, **look)
    axis.fill_between(ends, ends * 0.9, ends * 1.1, color="#DDDDDD", label="within 10 %")
    axis.plot(ends, ends, color="black", linewidth=1)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axis.set_xlabel("measured speedup")
    axis.set_ylabel("predicted speedup")
    for side in (axis.xaxis, axis.yaxis):
        _speedup_ticks(side, *ends)
    kinds = ", ".join(dict.fromkeys(row.prompt_kind for row in rows))
    temperatures = ", ".join(f"{t:g}" for t in dict.fromkeys(row.temperature for row in rows))
    title = f"{len(rows)} rows: prompts {kinds}; temperature {temperatures}\nmedian |predicted / measured - 1|:"
    figures.legend_above(axis, title)
    return figure
