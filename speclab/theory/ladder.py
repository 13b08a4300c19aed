"""The why-ladder of a row taken apart, and how far predictions miss: views of rows, nothing is measured here.

A row's ladder holds speedups, from the book's formula through ever more complete models to the measured value. The
ratio of each rung to the one before is what that one effect is worth; the ratios multiply to measured / book.
"""

from itertools import pairwise
from statistics import median

from speclab.records.rows import Row
from speclab.theory.attribution import RUNGS

UNEXPLAINED = "unexplained"  # the rung from the complete model to the measured value
EFFECTS = (*RUNGS[1 : RUNGS.index("measured")], UNEXPLAINED)
# Columns of a row that predict its speedup, best informed first -> what tables and pictures call them.
PREDICTORS = {
    "accounting": "accounting",
    "forecast": "forecast",
    "leviathan": "Leviathan",
    "book_formula": "book(α)",
    "book_formula_drafted_fraction": "book(f)",
}


def factors(row: Row) -> dict[str, float]:
    """Effect -> what it multiplies the speedup by, in the order of EFFECTS; empty where the row has no ladder."""
    speedups = [rung.speedup for rung in row.ladder or []]
    return {name: after / before for name, (before, after) in zip(EFFECTS, pairwise(speedups), strict=False)}


def prediction_rows(rows: list[Row]) -> list[Row]:
    """The speculative rows whose errors count: each prompt once, so either the kinds of prompt or "all", not both."""
    speculative = [row for row in rows if row.draft]
    kinds = [row for row in speculative if row.prompt_kind not in ("all", "not looping")]
    return kinds or [row for row in speculative if row.prompt_kind == "all"] or speculative


def prediction_errors(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Predictor -> {"n": rows it predicts, "median": of |error|, "max": of |error|}; others are left out.

    The error is predicted / measured - 1.

    All given rows count: choose them with `prediction_rows`.
    """
    summary = {}
    for predictor in PREDICTORS:
        pairs = [(getattr(row, predictor), row.speedup) for row in rows]
        misses = [abs(predicted / measured - 1) for predicted, measured in pairs if predicted is not None]
        if misses:
            summary[predictor] = {"n": len(misses), "median": median(misses), "max": max(misses)}
    return summary
