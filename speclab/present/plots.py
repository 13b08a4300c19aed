"""Pictures of a run record: measured values are markers, formulas are lines, the line at 1.0 is no gain."""

import functools
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from speclab.models import padding
from speclab.present.words import hardware, short_names
from speclab.system.files import write_whole
from speclab.theory.curves import Value, decoding
from speclab.theory.formulas import book_formula
from speclab.theory.ladder import EFFECTS, PREDICTORS, factors, prediction_errors, prediction_rows

# Okabe and Ito's colours without yellow; marker and line style differ too, so that grey print is enough.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLES = ["-", "--", "-.", ":"]
HATCHES = ["", "//", "..", "xx"]
SPEEDUPS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16]  # ticks of a logarithmic axis


def comparison(run: dict, folder: Path, name: str) -> Iterator[Callable[[], Path]]:
    """The pictures of a comparison, each as what writes it and returns its path.

    A picture without anything to show is left out.
    """
    rows = [r for r in run["rows"] if r["prompt_kind"] == "all" and r["draft"]]
    if not rows:
        return
    pictures = {"speedup": _bars, "draft-length": _against_k, "accepted-lengths": _histogram}
    for what, paint in pictures.items():
        if what == "draft-length" and len({r["draft_length"] for r in rows}) < 2:
            continue
        paint_all = functools.partial(_by_temperature, paint, rows, legend_above=what == "draft-length")
        yield lambda what=what, paint_all=paint_all: save(paint_all(), run, folder, f"{name}-{what}")
    chosen = waterfall_rows(rows)
    if chosen:
        yield lambda: save(_why(chosen), run, folder, f"{name}-why")
    shown = prediction_rows(run["rows"])
    if prediction_errors(shown):
        yield lambda: save(_predicted(shown), run, folder, f"{name}-predicted")


def _by_temperature(paint: Callable, rows: list[dict], legend_above: bool) -> plt.Figure:
    """A panel for every temperature, painted by `paint`."""
    temperatures = list(dict.fromkeys(r["temperature"] for r in rows))
    methods = list(dict.fromkeys(r["method"] for r in rows))  # a method looks the same in every panel
    figure, axes = panels(len(temperatures), 5.2 * len(temperatures) + 0.6, 4.2 + legend_above * 0.6)
    for axis, temperature in zip(axes, temperatures, strict=True):
        paint(axis, [r for r in rows if r["temperature"] == temperature], methods)
        axis.set_title("greedy" if temperature == 0 else f"temperature {temperature:g}")
    if legend_above:
        _legend_above(figure, axes[0], n_columns=len(methods))
    return figure


def panels(n: int, width: float, height: float, **shared) -> tuple:
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
    """Measured values with their intervals, in the look of the i-th method."""
    look = {"fmt": MARKERS[i % len(MARKERS)], "color": COLOURS[i % len(COLOURS)], "capsize": 3} | look
    axis.errorbar(xs, [v.value for v in values], error_bars(values), label=label, **look)


def save(figure, run: dict, folder: Path, name: str) -> Path:
    """Write the figure as folder/name.png, signed, whole or not at all, and close it."""
    figure.supxlabel(small_print(run), fontsize=7, color="#555555")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    plt.close(figure)
    return write_whole(folder / f"{name}.png", buffer.getvalue())


def _legend_above(figure, axis, n_columns: int) -> None:
    """The axis's legend above the whole figure, in the order of the names: there no line can cross it."""
    handles, names = axis.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda i: names[i].partition(",")[0])
    figure.legend(
        [handles[i] for i in order],
        [names[i] for i in order],
        loc="outside upper center",
        ncols=min(n_columns, 3),
        frameon=False,
        fontsize=8,
    )


def small_print(run: dict) -> str:
    """Model, machine, number format, time and commit of any record: the line under a picture."""
    commit = (run["versions"]["commit"] or "")[:8]
    target, dtype = (run["settings"][name] for name in ("target", "dtype"))
    target += " (padded)" * padding.is_lab_size(target)
    return f"{target} on {hardware(run)}, {dtype}; {run['created']}, commit {commit}"


def _bars(axis, rows: list[dict], methods: list[str]) -> None:
    for i, row in enumerate(rows):
        which = methods.index(row["method"])
        axis.bar(
            i,
            row["speedup"],
            color=COLOURS[which % len(COLOURS)],
            hatch=HATCHES[which % 4],
            edgecolor="white",
            yerr=error_bars([decoding(row)]),
            capsize=3,
            label=row["method"] if row is next(r for r in rows if r["method"] == row["method"]) else None,
        )
        box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
        axis.annotate(f"{row['speedup']:.2f}", (i, 0), (0, 6), textcoords="offset points", ha="center", bbox=box)
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xticks(range(len(rows)), [f"k={r['draft_length']}" for r in rows])
    axis.set_ylabel("speedup over the baseline (decoding)")
    axis.margins(y=0.2)
    axis.legend(frameon=False, ncols=len(methods), loc="upper center")


def _against_k(axis, rows: list[dict], methods: list[str]) -> None:
    names = short_names(methods, 20)
    for method in dict.fromkeys(r["method"] for r in rows):
        i = methods.index(method)
        mine = sorted((r for r in rows if r["method"] == method), key=lambda r: r["draft_length"])
        colour = COLOURS[i % len(COLOURS)]
        markers(axis, [r["draft_length"] for r in mine], list(map(decoding, mine)), i, f"{names[method]}, measured")
        known = [(r["draft_length"], r["acceptance_rate"]) for r in mine if r["acceptance_rate"] is not None]
        if known:
            axis.plot(
                [k for k, _ in known],
                [book_formula(a, k) for k, a in known],
                STYLES[1::2][i % 2],
                color=colour,
                label=f"{names[method]}, 1/(1-α+α/k)",
            )
        known = [(r["draft_length"], r["forecast"]) for r in mine if r["forecast"] is not None]
        if known:
            axis.plot(*zip(*known, strict=True), STYLES[::2][i % 2], color=colour, label=f"{names[method]}, forecast")
    axis.axhline(1, color="black", linewidth=1)
    axis.xaxis.set_major_locator(FixedLocator(sorted({r["draft_length"] for r in rows})))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("draft length k")
    axis.set_ylabel("speedup over the baseline (decoding)")


def _histogram(axis, rows: list[dict], methods: list[str]) -> None:
    longest = max(r["draft_length"] for r in rows)
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        if not any(r["method"] == method for r in rows):
            continue
        counts: Counter[int] = Counter()
        for row in (r for r in rows if r["method"] == method and r["draft_length"] == longest):
            counts.update(dict(enumerate(row["accepted_lengths"] or [])))
        rounds = max(1, sum(counts.values()))
        places = [n + (i - (len(methods) - 1) / 2) * width for n in range(longest + 1)]
        shares = [counts[n] / rounds for n in range(longest + 1)]
        axis.bar(
            places,
            shares,
            width,
            color=COLOURS[i % len(COLOURS)],
            hatch=HATCHES[i % 4],
            edgecolor="white",
            label=f"{method}, {rounds} rounds",
        )
        for place, share in zip(places, shares, strict=True):
            axis.annotate(f"{share:.0%}", (place, share), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axis.set_xticks(range(longest + 1))
    axis.set_xlabel(f"drafted tokens accepted in a round, k = {longest}")
    axis.set_ylabel("share of rounds")
    axis.legend(frameon=False, fontsize=8)


# --- why --------------------------------------------------------------------------------------------------------------


def waterfall_rows(rows: list[dict]) -> list[tuple[str, dict]]:
    """What to take apart at the lowest temperature: (title, row) of the best and the worst row of a draft model, the
    best of prompt lookup and the best of the dial, where they are."""
    rows = [r for r in rows if r["ladder"]]
    rows = [r for r in rows if r["temperature"] == min(r["temperature"] for r in rows)]
    families = {"model": [], "lookup": [], "dial": []}
    for row in sorted(rows, key=lambda r: r["speedup"]):
        word = row["draft"].partition(":")[0]
        families["lookup" if word == "ngram" else "dial" if word == "dial" else "model"].append(row)
    models, lookups, dials = families.values()
    chosen = [("best of the draft model", models[-1:]), ("worst of the draft model", models[:-1][:1])]
    chosen += [("best of prompt lookup", lookups[-1:]), ("best of the dial", dials[-1:])]
    return [(title, found[0]) for title, found in chosen if found]


def _why(chosen: list[tuple[str, dict]]):
    """One waterfall for each row, side by side on one scale.  -> figure"""
    figure, axes = panels(len(chosen), 3.1 * len(chosen) + 2.1, 4.9, sharex=True, sharey=True)
    for axis, (title, row) in zip(axes, chosen, strict=True):
        _waterfall(axis, row)
        axis.set_title(
            f"{title}\n{short_names([row['method']], 26)[row['method']]} k={row['draft_length']}", fontsize=10
        )
        axis.set_xlabel("speedup (logarithmic)", fontsize=9)
    low, high = axes[0].get_xlim()
    for axis in axes:
        axis.set_xlim(low, high * (high / low) ** 0.16)  # room for the numbers right of the bars
        speedup_ticks(axis.xaxis, low, high)
    axes[0].set_yticks(range(len(EFFECTS) + 3), ["book formula", *EFFECTS, "measured", "with prefill"])
    axes[0].invert_yaxis()
    temperature = chosen[0][1]["temperature"]
    figure.suptitle(
        f"From 1/(1-α+α/k) to the measured speedup, {f'temperature {temperature:g}' if temperature else 'greedy'}",
        fontsize=11,
    )
    return figure


def _waterfall(axis, row: dict) -> None:
    """Book formula on top, then a bar for every factor, then the measured value and that with the prompt's passes."""
    here = row["ladder"][0]["speedup"]
    bars = [(1.0, here, f"{here:.2f}x", None)]  # from, to, its number, factor
    for factor in factors(row).values():
        bars.append((here, here * factor, f"×{factor:.2f}", factor))
        here *= factor
    for value in (row["speedup"], row["speedup_with_prefill"]):
        bars.append((1.0, value, f"{value:.2f}x", None))
    for place, (start, end, text, factor) in enumerate(bars):
        colour, hatch = (
            ("#BBBBBB", None) if factor is None else (COLOURS[0], "//") if factor >= 1 else (COLOURS[1], "..")
        )
        axis.barh(place, end - start, left=start, height=0.66, color=colour, hatch=hatch, edgecolor="white")
        outline = "#555555" if factor is None else colour  # a bar as thin as a hair stays visible
        axis.barh(place, end - start, left=start, height=0.66, fill=False, edgecolor=outline)
        axis.annotate(
            text,
            (max(start, end), place),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"},
        )
        if place < len(bars) - 2:  # where the next bar starts
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


def _predicted(rows: list[dict]):
    """Every row once for each predictor, predicted over measured.  -> figure"""
    figure, (axis,) = panels(1, 6.2, 6.4)
    errors = prediction_errors(rows)
    everything = [r["speedup"] for r in rows] + [r[p] for r in rows for p in errors if r[p] is not None]
    low, high = min(everything) / 1.08, max(everything) * 1.08
    axis.fill_between([low, high], [low * 0.9, high * 0.9], [low * 1.1, high * 1.1], color="#DDDDDD", label="±10 %")
    axis.plot([low, high], [low, high], color="black", linewidth=1)
    for i, predictor in reversed(list(enumerate(PREDICTORS))):  # the best informed on top
        points = [(r["speedup"], r[predictor]) for r in rows if r[predictor] is not None]
        if points:
            axis.plot(
                *zip(*points, strict=True),
                MARKERS[i],
                color=COLOURS[i],
                markersize=5.5,
                markeredgecolor="white",
                markeredgewidth=0.5,
                label=f"{PREDICTORS[predictor]}: {errors[predictor]['median']:.1%}",
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axis.set_xlabel("measured speedup")
    axis.set_ylabel("predicted speedup")
    for side in (axis.xaxis, axis.yaxis):
        speedup_ticks(side, low, high)
    handles, names = axis.get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        names[::-1],
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=8,
        title="median |predicted / measured - 1|",
        title_fontsize=8,
    )
    axis.set_title(f"{len(rows)} rows: {_kinds(rows)}", fontsize=10)
    return figure


def _kinds(rows: list[dict]) -> str:
    kinds = list(dict.fromkeys(r["prompt_kind"] for r in rows))
    temperatures = ", ".join(f"{t:g}" for t in dict.fromkeys(r["temperature"] for r in rows))
    return f"prompts {', '.join(kinds)}; temperature {temperatures}"
