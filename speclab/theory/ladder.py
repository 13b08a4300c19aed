"""The why-ladder of a row taken apart, and how far predictions miss: views of rows, nothing is measured here.

A row's ladder holds speedups, from the book's formula through ever more complete models to the measured value. The
ratio of each rung to the one before is what that one effect is worth; the ratios multiply to measured / book.
"""

import math
from statistics import median

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


def factors(row: dict) -> dict[str, float] | None:
    """Effect -> what it multiplies the speedup by, in the order of EFFECTS. None: the row has no ladder."""
    rungs = {rung["name"]: rung["speedup"] for rung in row.get("ladder") or []}
    if not rungs:
        return None
    values = [rungs["book formula"], *(rungs[name] for name in EFFECTS[:-1]), rungs["measured"]]
    return {name: after / before for name, before, after in zip(EFFECTS, values, values[1:], strict=False)}


def largest_reason(row: dict) -> tuple[str, float] | None:
    """The effect that goes furthest in the direction from the book's formula to the measured value, and its factor.

    Downward for every row slower than the baseline. None: no ladder, or nothing goes that way.
    """
    found = factors(row)
    if found is None:
        return None
    down = row["speedup"] < 1 or row["ladder"][0]["speedup"] > row["speedup"]
    name = (min if down else max)(found, key=found.get)
    return (name, found[name]) if (found[name] < 1 if down else found[name] > 1) else None


def error(row: dict, predictor: str) -> float | None:
    """predicted / measured - 1; None where nothing was predicted."""
    predicted = row.get(predictor)
    return None if predicted is None else predicted / row["speedup"] - 1


def prediction_rows(rows: list[dict]) -> list[dict]:
    """The speculative rows whose errors count: each prompt once, so either the kinds of prompt or "all", not both."""
    speculative = [r for r in rows if r["draft"]]
    kinds = [r for r in speculative if r["prompt_kind"] not in ("all", "not looping")]
    return kinds or [r for r in speculative if r["prompt_kind"] == "all"] or speculative


def prediction_errors(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Predictor -> {"n": rows it speaks of, "median": of |error|, "max": of |error|}; silent predictors are left out.

    All given rows count: choose them with `prediction_rows`.
    """
    summary = {}
    for predictor in PREDICTORS:
        misses = [abs(e) for e in (error(row, predictor) for row in rows) if e is not None]
        if misses:
            summary[predictor] = {"n": len(misses), "median": median(misses), "max": max(misses)}
    return summary


def nearly_cancel(row: dict, share: float = 0.05) -> tuple[tuple[str, float], tuple[str, float]] | None:
    """The largest gain and the largest loss of a row whose book formula is right within `share` in spite of them."""
    found = factors(row)
    if found is None or abs(math.log(row["ladder"][0]["speedup"] / row["speedup"])) > share:
        return None
    gain, loss = max(found, key=found.get), min(found, key=found.get)
    if min(found[gain], 1 / found[loss]) < 1 + share:
        return None
    return (gain, found[gain]), (loss, found[loss])
