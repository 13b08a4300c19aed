"""The results of a sweep as numbers: verdicts, crossings, regions. Tables and pictures draw on these. Pure.

A point is a row of the record with its place in the sweep: `x`, and `series` for the curve it belongs to.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from speclab.extensions.sweeps.sweep_record import Point, SweepRun
from speclab.present.tables import no_interval, verdict_of
from speclab.records.rows import Row
from speclab.theory import attribution
from speclab.theory.attribution import Value, decoding
from speclab.theory.formulas import book_formula, omega_star, overhead_per_round

NEAR = 0.05  # the book's formula counts as right where it is at most this far from the measurement
X_IS_DRAFT_LENGTH, X_IS_TEMPERATURE = ("draft-length", "definitions"), ("temperature",)
X_IS_DRAFT = ("draft-kind", "mismatch")


def end_to_end(point: Row) -> Value:
    """Return the speedup with both sides' prefill counted. Its interval is decoding's, with the seconds of prefill
    taken as known.

    baseline = speedup x seconds, and the baseline's prefill is what is missing to `speedup_with_prefill`.
    """
    decode, whole = point.seconds, point.seconds + point.prefill_seconds
    prefill = point.speedup_with_prefill * whole - point.speedup * decode
    low, high = (None if end is None else (end * decode + prefill) / whole for end in decoding(point)[1:])
    return Value(point.speedup_with_prefill, low, high)


def verdict(point: Point, value: Callable[[Point], Value] = decoding) -> str:
    """Return the verdict on any of a point's speedups; where the record says "unclear" of decoding, that stays.

    Where the prompts are too few for an interval, there is no verdict, and the number of prompts is returned in words.
    """
    if verdict_of(point) is None and point.verdict:
        return no_interval(point.n_prompts)
    if value is decoding and point.verdict == "unclear":
        return "unclear"
    return attribution.verdict(*value(point), point.repeat_noise)


def labeller(sweep: SweepRun) -> Callable[[Point], str]:
    """Return a function that names a point's curve: its draft, and k and T where the sweep has several that are not its
    x."""
    name, points = sweep.sweep, sweep.points
    several_k = name not in X_IS_DRAFT_LENGTH and len({p.draft_length for p in points}) > 1
    several_t = name not in X_IS_TEMPERATURE and len({p.temperature for p in points}) > 1

    def label(point: Point) -> str:
        parts = [str(point.x if name in X_IS_DRAFT else point.series)]
        parts += [f"k={point.draft_length}"] * several_k + [f"T={point.temperature:g}"] * several_t
        return ", ".join(parts)

    return label


def curves(sweep: SweepRun) -> dict[str, list[Point]]:
    """Return a dict: label -> its points, along x where x is a number, in the record's order where it is a name."""
    label = labeller(sweep)
    groups: dict[str, list[Point]] = {}
    for point in sweep.points:
        groups.setdefault(label(point), []).append(point)
    if sweep.sweep in X_IS_DRAFT:
        return groups
    return {name: sorted(points, key=lambda point: point.x) for name, points in groups.items()}


# --- along a curve ----------------------------------------------------------------------------------------------------


def crossings(xs: list[float], ys: list[float], level: float) -> list[float]:
    """Return the places where the broken line through the points passes `level`, from left to right."""
    places = []
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if (y0 - level) * (y1 - level) < 0:
            places.append(x0 + (level - y0) / (y1 - y0) * (x1 - x0))
        elif y0 == level != y1:
            places.append(x0)
    if ys and ys[-1] == level:
        places.append(xs[-1])
    return places


def best(points: list[Point]) -> Point | None:
    """Return the drafting point with the highest measured speedup."""
    return max((point for point in points if point.draft_length), key=lambda point: point.speedup, default=None)


def by_acceptance(points: list[Point]) -> dict[float, Point]:
    """Return a dict: measured alpha -> the drafting point, along alpha."""
    known = {p.acceptance_rate: p for p in points if p.acceptance_rate is not None and p.draft_length}
    return {alpha: known[alpha] for alpha in sorted(known)}


def break_even(points: list[Point]) -> Value | None:
    """Return the alpha at which the measured speedup passes 1 upwards, and where its interval's two ends do.

    None: it never does. An end is None where that end of the interval does not pass 1 in the measured range.
    """
    known = by_acceptance(points)

    def first(key: str) -> float | None:
        values = [getattr(point, key) for point in known.values()]
        if not values or None in values or values[0] >= 1:
            return None
        return next(iter(crossings(list(known), values, 1)), None)

    alpha = first("speedup")
    return None if alpha is None else Value(alpha, first("speedup_high"), first("speedup_low"))


def near_book(points: list[Point]) -> list[tuple[float, float]]:
    """Return the stretches of alpha on which the book's formula is within NEAR of the measurement.

    Between two points the error, book / measured - 1, is taken as a straight line: both curves bend, and in their
    ratio most of the bending is gone.
    """
    known = by_acceptance(points)
    alphas, errors = list(known), [book_formula(a, p.draft_length) / p.speedup - 1 for a, p in known.items()]
    edges = {*alphas[:1], *alphas[-1:], *crossings(alphas, errors, NEAR), *crossings(alphas, errors, -NEAR)}
    middles = pairwise(sorted(edges))
    return [(low, high) for low, high in middles if abs(np.interp((low + high) / 2, alphas, errors)) < NEAR]


def omega_crossings(points: list[Point]) -> list[float]:
    """Return the alphas at which omega equals omega*: there the two things that the book's formula leaves out
    cancel."""
    surplus = {}
    for alpha, point in by_acceptance(points).items():
        cost = omega(point)
        if cost is not None:
            surplus[alpha] = cost - omega_star(alpha, point.draft_length)
    return crossings(list(surplus), list(surplus.values()), 0)


# --- of one point -----------------------------------------------------------------------------------------------------


def omega(point: Point) -> float | None:
    """Return omega = k c + (v - 1) + o: the cost of a round beyond one decode step, in such steps; k is the number
    really drafted."""
    if point.verify_cost is None or point.overhead is None:
        return None
    drafted = point.n_drafted / point.n_rounds
    return overhead_per_round(drafted, point.draft_cost or 0.0, point.verify_cost, point.overhead)


def round_cost(point: Point) -> float | None:
    """Return the cost of a round in decode steps of the target. A round pays where it brings more tokens than that."""
    cost = omega(point)
    return None if cost is None else 1 + cost


def step_seconds(point: Point) -> float:
    """Return the seconds of one baseline step, t_1."""
    return point.speedup * point.seconds / point.n_tokens


def output_share(point: Point) -> float | None:
    """Return s = 1 - 1 / tau: the share of the output that came from the draft, when no round was cut."""
    return 1 - 1 / point.tokens_per_round if point.tokens_per_round else None


def survival(point: Point) -> list[float]:
    """Return A_1 … A_k: the share of rounds in which at least that many drafted tokens were accepted."""
    lengths = point.accepted_lengths or []
    rounds = sum(lengths)
    return [sum(lengths[i:]) / rounds for i in range(1, len(lengths))] if rounds else []


def book_fed(point: Point) -> dict[str, float]:
    """Return the book's formula fed with each of the meanings of acceptance: "α", "f" and "s" -> speedup."""
    k = point.draft_length
    rates = {"α": point.acceptance_rate, "f": point.drafted_fraction, "s": output_share(point)}
    return {name: book_formula(rate, k) for name, rate in rates.items() if rate is not None and k}
