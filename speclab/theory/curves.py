"""What a sweep's points say, as numbers: crossings, regions, fits. Sentences, tables and pictures draw on these. Pure.

A point is a row of the record with its place in the sweep: `x`, and `series` for the curve it belongs to.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from speclab.theory import attribution
from speclab.theory.formulas import book_formula, omega_star, overhead_per_round

NEAR = 0.05  # the book's formula counts as right where it is at most this far from the measurement
X_IS_DRAFT_LENGTH, X_IS_TEMPERATURE = ("draft-length", "definitions"), ("temperature",)
X_IS_DRAFT = ("draft-kind", "mismatch")


class Value(NamedTuple):
    """A speedup and its 95 % interval, None where fewer than three prompts were measured."""

    value: float
    low: float | None
    high: float | None


def decoding(point: dict) -> Value:
    """Speedup of decoding alone."""
    return Value(point["speedup"], point["speedup_low"], point["speedup_high"])


def end_to_end(point: dict) -> Value:
    """Speedup with both sides' prefill counted. Its interval is decoding's, with the seconds of prefill taken as known.

    baseline = speedup x seconds, and the baseline's prefill is what is missing to `speedup_with_prefill`.
    """
    decode, whole = point["seconds"], point["seconds"] + point["prefill_seconds"]
    prefill = point["speedup_with_prefill"] * whole - point["speedup"] * decode
    low, high = (None if b is None else (b * decode + prefill) / whole for b in decoding(point)[1:])
    return Value(point["speedup_with_prefill"], low, high)


def verdict(point: dict, value: Callable[[dict], Value] = decoding) -> str:
    """The verdict on any of a point's speedups; the record's own stands where decoding drowned in the run's noise."""
    if value is decoding and point["verdict"] == "unclear":
        return "unclear"
    return attribution.verdict(*value(point), point["repeat_noise"])


def apart(one: Value, other: Value) -> bool:
    """True if the intervals do not overlap. Prompts are shared, so this is the careful side."""
    if one.low is None or other.low is None:
        return False
    return one.low > other.high or other.low > one.high


def labeller(sweep: dict) -> Callable[[dict], str]:
    """What a point's curve is called: its draft, and k and T where the sweep has several without turning them."""
    name, points = sweep["sweep"], sweep["points"]
    several_k = name not in X_IS_DRAFT_LENGTH and len({p["draft_length"] for p in points}) > 1
    several_t = name not in X_IS_TEMPERATURE and len({p["temperature"] for p in points}) > 1

    def label(point: dict) -> str:
        words = [str(point["x"] if name in X_IS_DRAFT else point["series"])]
        words += [f"k={point['draft_length']}"] * several_k + [f"T={point['temperature']:g}"] * several_t
        return ", ".join(words)

    return label


def curves(sweep: dict) -> dict[str, list[dict]]:
    """Label -> its points, along x where x is a number, in the record's order where it is a name."""
    label, found = labeller(sweep), {}
    for point in sweep["points"]:
        found.setdefault(label(point), []).append(point)
    if all(not isinstance(p["x"], str) for p in sweep["points"]):
        found = {name: sorted(points, key=lambda p: p["x"]) for name, points in found.items()}
    return found


# --- curves -----------------------------------------------------------------------------------------------------------


def crossings(xs: list[float], ys: list[float], level: float) -> list[float]:
    """Where the broken line through the points passes `level`, from left to right."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if (y0 - level) * (y1 - level) < 0:
            found.append(x0 + (level - y0) / (y1 - y0) * (x1 - x0))
        elif y0 == level != y1:
            found.append(x0)
    return found + [xs[-1]] * bool(xs and ys[-1] == level)


def within(xs: list[float], ys: list[float], bound: float) -> list[tuple[float, float]]:
    """The stretches of x on which the broken line through the points stays in -bound … bound."""
    found: list[tuple[float, float]] = []
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if y0 == y1:
            start, end = (0.0, 1.0) if abs(y0) <= bound else (1.0, 0.0)
        else:
            ends = sorted(((-bound - y0) / (y1 - y0), (bound - y0) / (y1 - y0)))
            start, end = max(0.0, ends[0]), min(1.0, ends[1])
        if start >= end:
            continue
        low, high = x0 + start * (x1 - x0), x0 + end * (x1 - x0)
        if found and math.isclose(found[-1][1], low, abs_tol=1e-12):
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


# --- draft length -----------------------------------------------------------------------------------------------------


def best(points: list[dict]) -> dict | None:
    """The drafting point with the highest measured speedup."""
    return max((p for p in points if p["draft_length"]), key=lambda p: p["speedup"], default=None)


def rivals(points: list[dict], winner: dict) -> list[dict]:
    """Other drafting points whose speedup lies inside the winner's interval."""
    low = winner["speedup_low"]
    return [p for p in points if low is not None and p is not winner and p["draft_length"] and p["speedup"] >= low]


def falls_below_one(points: list[dict]) -> dict | None:
    """The first point behind the best from which on every measured value is below 1."""
    top = best(points)
    behind = [p for p in points if top and p["x"] >= top["x"]]
    for i, point in enumerate(behind):
        if all(p["speedup"] < 1 for p in behind[i:]):
            return point
    return None


def misses(points: Iterable[dict], predictor: str) -> list[float]:
    """predicted / measured - 1 of every point that has a prediction."""
    return [p[predictor] / p["speedup"] - 1 for p in points if p[predictor] is not None]


def typical_and_largest(errors: list[float]) -> tuple[float, float] | None:
    """Median and largest |error|."""
    sizes = [abs(e) for e in errors]
    return (median(sizes), max(sizes)) if sizes else None


# --- acceptance -------------------------------------------------------------------------------------------------------


class Agreement(NamedTuple):
    """A stretch of alpha on which the book's formula is near, and the place on it where it is nearest."""

    low: float
    high: float
    alpha: float
    miss: float  # book / measured - 1 there
    omega: float | None
    omega_star: float


def by_acceptance(points: list[dict]) -> list[dict]:
    """The drafting points with a measured alpha, along alpha, one for each alpha."""
    known = {p["acceptance_rate"]: p for p in points if p["acceptance_rate"] is not None and p["draft_length"]}
    return [known[alpha] for alpha in sorted(known)]


def omega(point: dict) -> float | None:
    """k c + (v - 1) + o: what a round costs beyond one decode step, in such steps; k is what was really drafted."""
    if point["verify_cost"] is None:
        return None
    drafted = point["n_drafted"] / point["n_rounds"]
    return overhead_per_round(drafted, point["draft_cost"] or 0.0, point["verify_cost"], point["overhead"])


def agreements(points: list[dict], near: float = NEAR) -> list[Agreement]:
    """Where along alpha the book's formula is within `near` of the measurement.

    Between two points the relative miss book / measured - 1 is taken as a straight line: both curves bend, and in
    their ratio most of the bending is gone.
    """
    points = by_acceptance(points)
    alphas, errors = [p["acceptance_rate"] for p in points], misses(points, "book_formula")
    found = []
    for low, high in within(alphas, errors, near):
        places = [low, high, *(a for a in alphas + crossings(alphas, errors, 0) if low <= a <= high)]
        nearest = min(places, key=lambda a: abs(np.interp(a, alphas, errors)))
        found.append(_agreement(points, low, high, nearest))
    return found


def nearest_agreement(points: list[dict]) -> Agreement | None:
    """The point at which the book's formula misses by the least; None without a prediction."""
    known = [p for p in by_acceptance(points) if p["book_formula"] is not None]
    if not known:
        return None
    alpha = min(known, key=lambda p: abs(p["book_formula"] / p["speedup"] - 1))["acceptance_rate"]
    return _agreement(known, alpha, alpha, alpha)


def _agreement(points: list[dict], low: float, high: float, alpha: float) -> Agreement:
    alphas, costs = [p["acceptance_rate"] for p in points], [omega(p) for p in points]
    cost = None if None in costs else float(np.interp(alpha, alphas, costs))
    miss = float(np.interp(alpha, alphas, misses(points, "book_formula")))
    return Agreement(low, high, alpha, miss, cost, omega_star(alpha, points[0]["draft_length"]))


def break_even(points: list[dict]) -> tuple[float, float | None, float | None] | None:
    """The alpha at which the measured speedup passes 1 upwards, and where its interval's two ends do.

    None: it never does. An end is None where that end of the interval does not pass 1 in the measured range.
    """
    points = by_acceptance(points)
    alphas = [p["acceptance_rate"] for p in points]

    def first(key: str) -> float | None:
        values = [p[key] for p in points]
        if None in values:
            return None
        rising = [a for a in crossings(alphas, values, 1) if a > alphas[0] and values[0] < 1]
        return rising[0] if rising else None

    alpha = first("speedup")
    return None if alpha is None else (alpha, first("speedup_high"), first("speedup_low"))


# --- costs ------------------------------------------------------------------------------------------------------------


def round_cost(point: dict) -> float | None:
    """What a round costs, in decode steps of the target: it pays where it brings more tokens than that."""
    cost = omega(point)
    return None if cost is None else 1 + cost


def step_seconds(point: dict) -> float:
    """Seconds of one baseline step, t_1."""
    return point["speedup"] * point["seconds"] / point["n_tokens"]


# --- definitions ------------------------------------------------------------------------------------------------------


def output_share(point: dict) -> float | None:
    """s = 1 - 1 / tau: the share of the output that came from the draft, when no round was cut."""
    return 1 - 1 / point["tokens_per_round"] if point["tokens_per_round"] else None


def survival(point: dict) -> list[float]:
    """A_1 … A_k: the share of rounds in which at least that many drafted tokens were accepted."""
    lengths = point["accepted_lengths"] or []
    rounds = sum(lengths)
    return [sum(lengths[i:]) / rounds for i in range(1, len(lengths))] if rounds else []


def book_fed(point: dict) -> dict[str, float]:
    """The book's formula fed with each of the meanings of acceptance: "α", "f" and "s" -> speedup."""
    k = point["draft_length"]
    rates = {"α": point["acceptance_rate"], "f": point["drafted_fraction"], "s": output_share(point)}
    return {name: book_formula(rate, k) for name, rate in rates.items() if rate is not None and k}


class Proportional(NamedTuple):
    """speedup = slope x alpha x k, fitted through the origin by least squares."""

    slope: float
    correlation: float | None  # of speedup and alpha k; None where one of them never changes
    errors: list[float]  # fitted / measured - 1, point by point


def proportional(points: list[dict]) -> Proportional | None:
    """How well "speedup is proportional to acceptance x draft length" fits; None below two points with acceptance."""
    known = [p for p in points if p["acceptance_rate"] and p["draft_length"]]
    if len(known) < 2:
        return None
    x = np.array([p["acceptance_rate"] * p["draft_length"] for p in known])
    y = np.array([p["speedup"] for p in known])
    slope = float(x @ y / (x @ x))
    varies = x.std() > 0 and y.std() > 0
    return Proportional(slope, float(np.corrcoef(x, y)[0, 1]) if varies else None, list(slope * x / y - 1))
