"""The pictures of a comparison: measured values are markers, formulas are lines, the line at 1.0 is no gain."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from speclab.present.pictures import figures
from speclab.present.pictures.figures import STYLES, Figure, Panel, Series, draw, note, plain, with_interval
from speclab.present.screen import first_rows, full_rows, step_seconds, target_name
from speclab.present.tables import short, temperature_name
from speclab.records.files import ComparisonRun
from speclab.records.rows import AUTO, Row
from speclab.theory.ladder import EFFECTS, factors

WIDTHS = [1, 2, 3, 5, 7, 9, 13, 17]  # ticks of the picture of limits
SPEEDS = [n * 10**e for e in range(6) for n in (1, 2, 5)]
SPEEDUPS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]  # ticks of a logarithmic axis
GAIN, LOSS, GREY = figures.COLOURS[0], figures.COLOURS[1], "#BBBBBB"
PREDICTIONS = {"forecast": "forecast", "book_formula": figures.BOOK}


def comparison(run: ComparisonRun, folder: Path, name: str) -> list[partial[Path | None]]:
    """Return the pictures of a comparison, and one of it beside its short runs: each is painted and written when it is
    called, so that what fails in one costs no other file.  -> its path, or None where there is nothing to show"""
    painters = {"speedup": lambda rows: draw(speedup_panels(rows), 5.4, 4.6), "why": _why}
    steps = [partial(_write, paint, run, folder, f"{name}-{what}") for what, paint in painters.items()]
    if run.eager and run.padded:
        steps.append(partial(_limits, [run.eager, run, run.padded], folder, f"{name}-limits"))
    return steps


def _write(paint: Callable[[list[Row]], Figure | None], run: ComparisonRun, folder: Path, name: str) -> Path | None:
    rows = [row for row in run.rows if row.prompt_kind == "all" and row.draft]
    figure = paint(rows) if rows else None
    return figures.save(figure, run, folder, name) if figure else None


def speedup_panels(rows: list[Row]) -> list[Panel]:
    """Draw the speedup against k, with the forecast and the book's formula: a panel for every temperature and number of
    texts at a time, a colour and a marker for each draft. Rows on auto stand at a place of their own."""
    ticks = {k: f"{k:g}" for k in sorted({row.draft_length for row in rows if not row.auto})}
    auto = max(ticks, default=0) + 2
    ticks |= {auto: "auto"} if any(row.auto for row in rows) else {}
    methods = dict.fromkeys(row.method.removesuffix(AUTO) for row in rows)
    panels = []
    for temperature, n in dict.fromkeys((row.temperature, row.n_texts) for row in rows):
        series, title = [], temperature_name(temperature) + f", B = {n}" * any(row.n_texts > 1 for row in rows)
        here = (row for row in rows if (row.temperature, row.n_texts) == (temperature, n))
        of_panel = sorted(here, key=lambda row: row.draft_length)
        for look, method in enumerate(methods):
            of_draft = [row for row in of_panel if row.method.removesuffix(AUTO) == method]
            values = {auto if row.auto else row.draft_length: with_interval(row) for row in of_draft}
            series.append(Series(short(method, 16), values, look))
            for (key, label), style in zip(PREDICTIONS.items(), STYLES, strict=False):
                known = plain((row.draft_length, getattr(row, key)) for row in of_draft if not row.auto)
                series.append(Series(label, known, look, style))
        panels.append(Panel(series, "draft length k", title=title, ticks=ticks))
    return panels


def _limits(runs: list[ComparisonRun], folder: Path, name: str) -> Path | None:
    """Draw how many tokens a second passes of each run read at its first temperature, by the tokens of a pass; a dotted
    line is what reading the weights would allow. The legend has the fastest draft, whose pass has a larger marker."""
    figure, [axis] = figures.blank(1, 6.4, 4.2)
    for run, color, marker in zip(runs, figures.COLOURS, figures.MARKERS, strict=False):
        whole, step = [row for row in full_rows(run) if not row.auto], step_seconds(run)
        passes = {row.draft_length + 1: row.verify_cost or 0.0 for row in whole} | {1: 1.0}  # tokens -> steps
        speeds, label = {m: m / (passes[m] * step) for m in sorted(passes)}, target_name(run)
        fixed = [row for row in first_rows(run) if row.draft_length and not row.auto]
        if best := max(fixed, key=lambda row: row.speedup, default=None):
            if speed := speeds.get(best.draft_length + 1):
                axis.plot([best.draft_length + 1], [speed], marker, color=color, markersize=11)
            label += f": {short(best.method, 12)} k = {best.draft_length}, {best.speedup:.2f}x"
        axis.plot([*speeds], [*speeds.values()], f"{marker}-", color=color, label=label)
        if run.bandwidth and run.weight_bytes:
            axis.plot([*speeds], [m * run.bandwidth / run.weight_bytes for m in speeds], ":", color=color)
    figures.logarithmic(axis, "x", WIDTHS, "{}")
    figures.logarithmic(axis, "y", SPEEDS, "{:,}")
    axis.set_xlabel("tokens of a pass")
    axis.set_ylabel("tokens a second that passes read")
    figures.legend_above(axis, "Passes, and the fastest draft; dotted: as fast as weights are read")
    return figures.save(figure, runs[1], folder, name, beside=[runs[0], *runs[2:]])


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
    figure, [axis] = figures.blank(1, 6.4, 4.2)
    for place, (start, end, text, color) in enumerate(steps):
        hatch = {GAIN: "//", LOSS: ".."}.get(color)
        axis.barh(place, end - start, 0.66, start, color=color, hatch=hatch, edgecolor="white", linewidth=0)
        note(axis, max(start, end), place, text, 0, 5, ha="left", va="center", fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.use_sticky_edges = False
    axis.margins(x=0.15)  # room for the numbers right of the bars
    figures.logarithmic(axis, "x", SPEEDUPS, "{:g}x")
    axis.set_xlabel("speedup (logarithmic)")
    axis.set_yticks(range(len(steps)), ["book formula", *EFFECTS, "measured", "end to end"])
    axis.invert_yaxis()
    where = f"{short(row.method, 26)} k = {row.draft_length}, {temperature_name(row.temperature)}"
    figure.suptitle(f"From 1/(1-α+α/k) to the measured speedup: {where}", fontsize=10)
    return figure
