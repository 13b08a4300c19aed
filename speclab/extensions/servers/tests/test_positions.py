"""Break-even and best length belong together."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import positions
from speclab.extensions.servers.vllm import vllm_requirements
from speclab.theory.formulas import expected_tokens_per_round


@pytest.mark.parametrize("module", [positions, vllm_requirements])
def test_the_examples_in_the_docstrings_are_right(module):
    found = doctest.testmod(module)
    assert (found.attempted > 0, found.failed) == (True, 0)


@given(st.integers(1, 12), st.floats(0.2, 20))
def test_at_the_break_even_a_round_brings_what_it_costs(k, cost):
    alpha = positions.break_even_acceptance(k, cost)
    if cost > k + 1:
        assert alpha is None
    elif cost > 1:
        assert expected_tokens_per_round(alpha, k) == pytest.approx(cost)
    else:
        assert alpha == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.floats(1.001, 5.9))
def test_the_best_length_is_the_best_of_all_and_no_draft_passes_the_ceiling(kept, cost):
    marginal = [sum(n > place for n in kept) / len(kept) for place in range(5)]
    best = positions.best_length(marginal, 5, cost)
    speedups = {k: (1 + sum(marginal[:k])) / (1 + (cost - 1) * k / 5) for k in range(6)}
    assert best.speedup == pytest.approx(max(speedups.values()))
    assert best.speedup == pytest.approx(speedups[best.draft_length])
    assert all(speedups[k] < best.speedup for k in range(best.draft_length))
    assert speedups[5] <= 6 / cost * (1 + 1e-12)
