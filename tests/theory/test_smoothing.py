"""Costs that never fall: the isotonic curve against brute force, and the weights that a calibration gives it."""

import doctest
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclab.theory import smoothing
from speclab.theory.costs import RoundTime
from speclab.theory.smoothing import isotonic, parabola, smoothed
from tests.theory.test_costs import MODEL

curves = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 9)), min_size=1, max_size=7)


def test_the_example():
    result = doctest.testmod(smoothing)
    assert result.failed == 0 < result.attempted


def best_of_all_blocks(values: list[float], weights: list[int]) -> float:
    """The least weighted squares of any non-decreasing sequence: it is constant on blocks, at their averages."""
    least, n = np.inf, len(values)
    for cuts in itertools.product([False, True], repeat=n - 1):
        blocks, begin = [], 0
        for i, cut in enumerate([*cuts, True], 1):
            if cut:
                blocks.append(slice(begin, i))
                begin = i
        means = [np.average(values[block], weights=weights[block]) for block in blocks]
        if all(a <= b + 1e-12 for a, b in itertools.pairwise(means)):
            fit = np.concatenate([[m] * (b.stop - b.start) for m, b in zip(means, blocks, strict=True)])
            least = min(least, float((weights * (values - fit) ** 2).sum()))
    return least


@settings(max_examples=100)
@given(curves)
def test_nothing_that_never_falls_is_nearer(points):
    values, weights = (np.array(side, float) for side in zip(*points, strict=True))
    found = np.array(isotonic(values.tolist(), weights.tolist()))
    assert (np.diff(found) >= -1e-12).all()
    assert found @ weights == pytest.approx(values @ weights)
    error = float((weights * (values - found) ** 2).sum())
    assert error == pytest.approx(best_of_all_blocks(values, weights), rel=1e-9, abs=1e-9)


def test_what_never_falls_stays_as_it_is():
    assert isotonic([1.0, 1.0, 3.0, 7.0], [1, 9, 1, 1]) == [1.0, 1.0, 3.0, 7.0]


def times(drafter: str, temperature: float, n_drafted: int, how_often: int) -> list[RoundTime]:
    return [RoundTime(drafter, temperature, 100, n_drafted, 1, {})] * how_often


def test_a_lucky_length_counts_as_often_as_it_was_seen():
    """Width 3 was cheap in two rounds out of eight; the other draft's rounds count for verifying, not for drafting."""
    costs = replace(MODEL, verify_at={2: 0.010, 3: 0.006, 4: 0.012}, draft_at={1: 0.002, 2: 0.001, 3: 0.004})
    rounds = [*times("model", 0.0, 1, 3), *times("model", 0.0, 2, 1), *times("ngram", 0.0, 1, 3)]
    rounds += [*times("model", 0.8, 2, 1), *times("model", 0.0, 3, 5)]
    smooth = smoothed(costs, "model", 0.0, rounds)
    mean = (6 * 0.010 + 2 * 0.006) / 8
    assert smooth.verify_at == pytest.approx({2: mean, 3: mean, 4: 0.012})
    # A straight line through (1, 0.002) three times, (2, 0.001) once and (3, 0.004) five times: means 20/9 and 0.003.
    line = {n: 1e-3 * (3 + 18 / 17 * (n - 20 / 9)) for n in (1, 2, 3)}
    assert smooth.draft_at == pytest.approx(line)
    assert replace(smooth, verify_at=costs.verify_at, draft_at=costs.draft_at) == costs
    assert costs.verify_at[3] == 0.006, "the raw curve is left as it was"


def test_drafting_grows_steadily_and_a_first_step_may_cost_more():
    """A bump of 30 % at one of sixteen lengths is nearly gone; what is a parabola stays one, also without a slope."""
    places = list(range(1, 17))
    truth = [0.001 + 0.0012 * n - 1e-5 * n * n for n in places]
    assert parabola(places, truth, [3] * 16) == pytest.approx(truth)
    bumped = [value * (1.3 if n == 5 else 1) for n, value in zip(places, truth, strict=True)]
    assert parabola(places, bumped, [3] * 16) == pytest.approx(truth, rel=0.1)
    assert parabola(places, [0.0] * 8 + [1e-5] * 8, [1] * 16)[0] == 0.0
    assert parabola([1, 2], [3.0, 1.0], [1, 1]) == [3.0, 1.0]
    assert parabola([4], [3.0], [1]) == [3.0]
