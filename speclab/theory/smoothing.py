"""Costs that never fall when a draft grows, for decisions that compare draft lengths. Pure.

A calibrated curve has a mean of its own for every length, and the mean of a rarely seen one is noisy. The cheapest
length is then often one whose mean is too low by chance.

verify    Isotonic regression (pool adjacent violators; Ayer et al. 1955) knows only that a wider pass costs no less:
          where the means fall, neighbours share their weighted average. Steps of the hardware stay.
draft     A draft is one step after another, so its seconds grow steadily: a parabola through them, by weighted least
          squares, made isotonic.

The raw curves stay in the record.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from speclab.theory.costs import Costs, RoundTime


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted squares.

    >>> isotonic([1.0, 1.2, 1.0, 1.3], [1, 1, 1, 1])
    [1.0, 1.1, 1.1, 1.3]
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, left_weight, n_left), (right, right_weight, n_right) = pools[-2:]
            both = left_weight + right_weight
            mean = (left * left_weight + right * right_weight) / both
            pools[-2:] = [(mean, both, n_left + n_right)]
    return [mean for mean, _, n in pools for _ in range(n)]


def smoothed(costs: Costs, drafter: str, temperature: float, rounds: Sequence[RoundTime]) -> Costs:
    """`costs` of a drafter at a temperature with both curves isotonic. rounds: what they were fitted to.

    A length weighs as much as the rounds that it was seen in: all rounds for the verification, whose shape is pooled
    but for early exit, and the drafter's own for drafting.
    """
    own = any(r.own_verify for r in rounds if r.drafter == drafter)
    pooled = [r for r in rounds if (r.drafter == drafter if own else not r.own_verify)]
    of_verify = Counter(r.n_drafted + 1 for r in pooled)
    of_draft = Counter(r.n_drafted for r in rounds if (r.drafter, r.temperature) == (drafter, temperature))
    return replace(
        costs,
        verify_at=_curve(costs.verify_at, of_verify, steady=False),
        draft_at=_curve(costs.draft_at, of_draft, steady=True),
    )


def _curve(curve: dict[int, float], seen: Counter[int], steady: bool) -> dict[int, float]:
    places = sorted(curve)
    heights, weights = [curve[place] for place in places], [max(1, seen[place]) for place in places]
    if steady:
        heights = parabola(places, heights, weights)
    return dict(zip(places, isotonic(heights, weights), strict=True))


def parabola(places: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The polynomial of degree 2, or less where there are few values, nearest to them in weighted squares; never
    negative.

    >>> [round(value, 6) for value in parabola([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], [9, 1, 1, 9])]
    [1.0, 2.0, 3.0, 4.0]
    """
    degree = min(2, len(places) - 2)
    if degree < 1:
        return list(values)
    line = np.polynomial.Polynomial.fit(places, values, degree, w=np.sqrt(weights))
    return [max(0.0, float(line(place))) for place in places]
