"""The pictures of a comparison: measured values are markers, formulas are lines, the line at 1.0 is no gain."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from speclab.present.pictures import figures
from speclab.present.pictures.figures import STYLES, Figure, Panel, Series, draw, note, plain, with_interval
from speclab.present.screen import drafted, first_rows, full_rows, step_seconds, target_name
from speclab.present.tables import short, temperature_name
from speclab.records.files import ComparisonRun
from speclab.records.rows import AUTO, Row, lookup_shares
from speclab.theory.ladder import EFFECTS, factors

WIDTHS = [1, 2, 3, 5, 7, 9, 13, 17]  # ticks of the picture of limits
SPEEDS = [n * 10**e for e in range(6) for n in (1, 2, 5)]
SPEEDUPS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]  # ticks of a logarithmic axis
GAIN, LOSS, GREY = figures.COLOURS[0], figures.COLOURS[1], "#BBBBBB"
Painter = Callable[[list[ComparisonRun]], Figure | None]
PREDICTIONS = {"forecast": "forecast", "book_formula": figures.BOOK}


def comparison(run: ComparisonRun, folder: Path, name: str) -> list[partial[Path | None]]:
    """Return the pictures of a comparison, of which the speedups and the limits show its short runs, too: each is
    painted and written when it is called, so that what fails in one costs no other file.  -> its path, if any"""
    painters: dict[str, Painter] = {"speedup": lambda parts: draw(speedup_panels(parts), 5.4, 4.6)}
    painters |= {"why": lambda parts: _why(drafted(run))} | ({"limits": _limits} if len(run.parts) == 3 else {})
    return [partial(_write, paint, run, folder, f"{name}-{what}") for what, paint in painters.items()]


def _write(paint: Painter, run: ComparisonRun, folder: Path, name: str) -> Path | None:
    figure = paint(run.parts) if drafted(run) else None
    others = filter(None, [] if name.endswith("-why") else [run.eager, run.padded])
    return figures.save(figure, run, folder, name, others) if figure else None


def speedup_panels(runs: list[ComparisonRun]) -> list[Panel]:
    """Draw the speedup against k, with the forecast and the book's formula: a panel for every temperature, run and
    number of texts at a time, a colour and a marker for each draft. Rows on auto stand at a place of their own."""
    named = [(target_name(run) * (len(runs) > 1), row) for run in runs for row in drafted(run)]
    rows = [row for _, row in named]
    ticks = {k: f"{k:g}" for k in sorted({row.draft_length for row in rows if not row.auto})}
    auto = max(ticks, default=0) + 2
    ticks |= {auto: "auto"} if any(row.auto for row in rows) else {}
    methods = dict.fromkeys(row.method.removesuffix(AUTO) for row in rows)
    panels = []
    places = dict.fromkeys((row.temperature, name, row.n_texts) for name, row in named)
    for temperature, name, n in sorted(places, key=lambda place: place[0]):
        series, batch = list[Series](), f"B = {n}" * any(row.n_texts > 1 for row in rows)
        title = ", ".join(filter(None, [name, temperature_name(temperature), batch]))
        here = (row for own, row in named if (row.temperature, own, row.n_texts) == (temperature, name, n))
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


def _limits(runs: list[ComparisonRun]) -> Figure:
    """Draw how many tokens a second passes of each run read at its first temperature, by the tokens of a pass; a dotted
    line is what reading the weights would allow. The legend has the fastest draft, whose pass has a larger marker.
    Beside it stands in which share of its rounds the lookup of a hybrid drafts."""
    arm = ("hybrid", runs[0].rows[0].temperature)
    shares = [
        {k: of["all"] for (*own, k, at), of in lookup_shares(run.raw).items() if (*own, at) == arm} for run in runs
    ]
    figure, [axis, *more] = figures.blank(1 + any(shares), 5.4, 4.4)
    for axis_of_shares in more:
        _lookups(axis_of_shares, runs, shares)
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
    return figure


def _lookups(axis, runs: list[ComparisonRun], shares: list[dict[int, float]]) -> None:
    """Draw in which share of its rounds the lookup of `hybrid` drafts: a bar for each run and fixed k."""
    for i, (run, found, color, hatch) in enumerate(zip(runs, shares, figures.COLOURS, ("", "//", ".."), strict=False)):
        places = [k + (i - 1) * 0.55 for k in found]
        axis.bar(places, found.values(), 0.5, color=color, hatch=hatch, edgecolor="white", label=target_name(run))
        for place, share in zip(places, found.values(), strict=True):
            figures.note(axis, place, share, f"{share:.0%}", 6)
    axis.set_xticks(sorted({k for found in shares for k in found}))
    axis.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axis.set_xlabel("draft length k")
    axis.set_ylabel("share of the rounds")
    figures.legend_above(axis, "Rounds in which the lookup of hybrid drafts")


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
