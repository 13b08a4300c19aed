"""The why-ladder of a row taken apart, and how far predictions miss: views of rows, nothing is measured here.

A row's ladder holds speedups, from the book's formula through ever more complete models to the measured value. The
ratio of each rung to the one before is what that one effect is worth; the ratios multiply to measured / book.
"""

from itertools import pairwise
from statistics import median

from speclab.records.rows import Row

EFFECTS = {  # what one rung of the ladder adds
    "bonus and partial drafts": "partly right drafts and the bonus token count",
    "draft cost": "the draft takes time for every token it proposes",
    "verification": "a target pass over k + 1 tokens may take longer than one over a token",
    "overhead": "accepting, rolling back, and the loop around them take time",
    "real acceptance": "right drafts come in streaks, drafts may be shorter than k, and texts end",
    "all else": "what the effects before it do not account for: draws of this run, and noise",
}
RUNGS = ("book formula", *EFFECTS)
# Columns of a row that predict its speedup, best informed first -> what tables and pictures call them.
PREDICTORS = {
    "accounting": "accounting",
    "forecast": "forecast",
    "leviathan": "Leviathan",
    "book_formula": "book(α)",
    "book_formula_drafted_fraction": "book(f)",
}


def factors(row: Row) -> dict[str, float]:
    """Return the factor by which each of EFFECTS multiplies the speedup; empty for a row without a ladder. The last two
    rungs are the row's forecast and its speedup, which older records name otherwise."""
    by_name = {rung.name: rung.speedup for rung in row.ladder or []}
    if not by_name or row.forecast is None:
        return {}
    speedups = [*(by_name[name] for name in RUNGS[:-2]), row.forecast, row.speedup]
    return {name: after / before for name, (before, after) in zip(EFFECTS, pairwise(speedups), strict=True)}


def prediction_rows(rows: list[Row]) -> list[Row]:
    """Return the speculative rows whose errors count: each prompt once, so either the kinds of prompt or "all"."""
    speculative = [row for row in rows if row.draft]
    kinds = [row for row in speculative if row.prompt_kind not in ("all", "not looping")]
    return kinds or [row for row in speculative if row.prompt_kind == "all"]


def prediction_errors(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return a dict: predictor -> {"n": rows it predicts, "median": of |error|, "max": of |error|}, of all given rows
    (`prediction_rows`). The error is predicted / measured - 1. Predictors without rows are left out."""
    summary = {}
    for predictor in PREDICTORS:
        pairs = [(getattr(row, predictor), row.speedup) for row in rows]
        if misses := [abs(predicted / measured - 1) for predicted, measured in pairs if predicted is not None]:
            summary[predictor] = {"n": len(misses), "median": median(misses), "max": max(misses)}
    return summary
