"""Acceptance by position: rates are fractions of counts, and break-even, best length and ceiling belong together."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.core.counts import Counts
from speclab.extensions.servers import positions
from speclab.system.paths import ROOT
from speclab.theory.formulas import expected_tokens_per_round

ROUNDS = st.lists(st.integers(0, 5), min_size=1, max_size=40)  # kept tokens of rounds that drafted five each
COSTS = st.floats(1.001, 5.9)


def counted(kept: list[int]) -> list[int]:
    return [sum(n > place for n in kept) for place in range(5)]


@given(ROUNDS)
def test_the_rates_are_those_of_the_rounds_one_by_one(kept):
    at, n = counted(kept), len(kept)
    marginal, conditional = positions.marginal_rates(n, at), positions.conditional_rates(n, at)
    assert positions.tokens_per_round(marginal) == pytest.approx(1 + sum(kept) / n)
    product = 1.0
    for place, rate in enumerate(conditional):
        reached = [number for number in kept if number >= place]
        assert rate == (sum(number > place for number in reached) / len(reached) if reached else None)
        product *= rate or 0.0
        assert product == pytest.approx(marginal[place])


@given(ROUNDS)
def test_alpha_is_the_mean_of_the_conditional_rates_weighted_by_the_tests(kept):
    at = counted(kept)
    counts = Counts(len(kept), 5 * len(kept), sum(kept), len(kept) - at[-1])
    tested = [len(kept), *at[:-1]]
    rates = positions.conditional_rates(len(kept), at)
    mean = sum(n * rate for n, rate in zip(tested, rates, strict=True) if rate is not None) / sum(tested)
    assert counts.acceptance_rate == pytest.approx(mean)


@given(st.integers(1, 12), st.floats(0.2, 20))
def test_at_the_break_even_a_round_brings_what_it_costs(k, cost):
    alpha = positions.break_even_acceptance(k, cost)
    if cost > k + 1:
        assert alpha is None
        assert positions.break_even_fraction(k, cost) > 1
        assert positions.ceiling(k, cost) < 1
    elif cost > 1:
        assert expected_tokens_per_round(alpha, k) == pytest.approx(cost)
        assert 1 + k * positions.break_even_fraction(k, cost) == pytest.approx(cost)
    else:
        assert alpha == positions.break_even_fraction(k, cost) == 0


@given(ROUNDS, COSTS)
def test_the_best_length_is_the_best_of_all_and_no_draft_passes_the_ceiling(kept, cost):
    marginal, price = positions.marginal_rates(len(kept), counted(kept)), positions.linear_cost(5, cost)
    best = positions.best_length(marginal, price)
    speedups = {k: positions.tokens_per_round(marginal[:k]) / price(k) for k in range(6)}
    assert best.speedup == pytest.approx(max(speedups.values()))
    assert best.speedup == pytest.approx(speedups[best.draft_length])
    assert all(speedups[k] < best.speedup for k in range(best.draft_length))
    assert speedups[5] <= positions.ceiling(5, cost) * (1 + 1e-12)


def test_formulas_and_counts_import_without_torch():
    """So a command that asks a server starts at once, also where torch is not installed."""
    names = ["positions", "formulas", "forecast", "costs", "attribution", "ladder", "noise", "drift"]
    modules = ", ".join(["speclab.core.counts", "speclab.records.log", *(f"speclab.theory.{name}" for name in names)])
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
