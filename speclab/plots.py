"""Pictures of a run record: measured values are markers, formulas are lines, the line at 1.0 is no gain."""

import io
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator

from speclab.record import lengths_histogram, write_whole
from speclab.theory import book_formula

# Okabe and Ito's colours without yellow; marker and line style differ too, so that grey print is enough.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
STYLES = ["-", "--", "-.", ":"]


def comparison(run: dict, folder: Path, name: str) -> Iterator[Path]:
    """Write the pictures of a comparison; yields their paths."""
    rows = [r for r in run["rows"] if r["prompt_kind"] == "all" and r["draft"]]
    pictures = {"speedup": _bars, "draft-length": _against_k, "accepted-lengths": _histogram}
    for what, paint in pictures.items():
        if what == "draft-length" and len({r["draft_length"] for r in rows}) < 2:
            continue
        temperatures = list(dict.fromkeys(r["temperature"] for r in rows))
        figure, axes = plt.subplots(
            1, len(temperatures), figsize=(5.2 * len(temperatures) + 0.6, 4.2), squeeze=False, layout="constrained"
        )
        for axis, temperature in zip(axes[0], temperatures, strict=True):
            paint(axis, [r for r in rows if r["temperature"] == temperature])
            axis.set_title("greedy" if temperature == 0 else f"temperature {temperature:g}")
            axis.spines[["top", "right"]].set_visible(False)
        figure.supxlabel(_small_print(run), fontsize=7, color="#555555")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
        plt.close(figure)
        path = folder / f"{name}-{what}.png"
        write_whole(path, buffer.getvalue())
        yield path


def _small_print(run: dict) -> str:
    machine = run["machine"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    commit = (run["versions"]["commit"] or "")[:8]
    return f"{run['rows'][0]['target']} on {where}, {run['rows'][0]['dtype']}; {run['created']}, commit {commit}"


def _bars(axis, rows: list[dict]) -> None:
    methods = list(dict.fromkeys(r["method"] for r in rows))
    for i, row in enumerate(rows):
        which = methods.index(row["method"])
        error = None
        if row["speedup_low"] is not None:
            error = [[max(0, row["speedup"] - row["speedup_low"])], [max(0, row["speedup_high"] - row["speedup"])]]
        axis.bar(
            i,
            row["speedup"],
            color=COLOURS[which % len(COLOURS)],
            hatch=["", "//", "..", "xx"][which % 4],
            edgecolor="white",
            yerr=error,
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


def _against_k(axis, rows: list[dict]) -> None:
    for i, method in enumerate(dict.fromkeys(r["method"] for r in rows)):
        mine = sorted((r for r in rows if r["method"] == method), key=lambda r: r["draft_length"])
        colour = COLOURS[i % len(COLOURS)]
        lengths = [r["draft_length"] for r in mine]
        low = [r["speedup"] - (r["speedup_low"] or r["speedup"]) for r in mine]
        high = [(r["speedup_high"] or r["speedup"]) - r["speedup"] for r in mine]
        axis.errorbar(
            lengths,
            [r["speedup"] for r in mine],
            yerr=[[max(0, v) for v in low], [max(0, v) for v in high]],
            fmt=MARKERS[i % len(MARKERS)],
            color=colour,
            capsize=3,
            label=f"{method}, measured",
        )
        known = [(r["draft_length"], r["acceptance_rate"]) for r in mine if r["acceptance_rate"] is not None]
        if known:
            axis.plot(
                [k for k, _ in known],
                [book_formula(a, k) for k, a in known],
                STYLES[i % len(STYLES)],
                color=colour,
                label=f"{method}, 1/(1-α+α/k)",
            )
    axis.axhline(1, color="black", linewidth=1)
    axis.xaxis.set_major_locator(FixedLocator(sorted({r["draft_length"] for r in rows})))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("draft length k")
    axis.set_ylabel("speedup over the baseline (decoding)")
    axis.legend(frameon=False, fontsize=8)


def _histogram(axis, rows: list[dict]) -> None:
    methods = list(dict.fromkeys(r["method"] for r in rows))
    longest = max(r["draft_length"] for r in rows)
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        counts = lengths_histogram([r for r in rows if r["method"] == method and r["draft_length"] == longest])
        rounds = max(1, sum(counts.values()))
        places = [n + (i - (len(methods) - 1) / 2) * width for n in range(longest + 1)]
        shares = [counts[n] / rounds for n in range(longest + 1)]
        axis.bar(
            places,
            shares,
            width,
            color=COLOURS[i % len(COLOURS)],
            hatch=["", "//", "..", "xx"][i % 4],
            edgecolor="white",
            label=f"{method}, {rounds} rounds",
        )
        for place, share in zip(places, shares, strict=True):
            axis.annotate(f"{share:.0%}", (place, share), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axis.set_xticks(range(longest + 1))
    axis.set_xlabel(f"drafted tokens accepted in a round, k = {longest}")
    axis.set_ylabel("share of rounds")
    axis.legend(frameon=False, fontsize=8)
