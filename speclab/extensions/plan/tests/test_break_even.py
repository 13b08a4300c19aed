"""The break-even acceptance against theorems and by search."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclab.extensions.plan.__main__ import break_even_acceptance
from speclab.theory.formulas import model_speedup

given_cases = settings(max_examples=100)


@given_cases
@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_break_even_without_overhead_is_the_drafts_cost(c, longest):
    """Leviathan et al., corollary 3.9: free verification pays if alpha > c, and then k = 1 already does."""
    assert break_even_acceptance(c, lambda width: 1, 0, longest) == pytest.approx(c, abs=2e-6)


@given_cases
@given(st.floats(0, 0.5), st.floats(0, 0.4), st.floats(0, 2), st.integers(1, 16), st.floats(0, 1))
def test_break_even_divides_loss_from_gain(c, per_token, o, longest, replay):
    """Just above, some k is not slower; just below, all are; None only if even perfect drafts lose."""

    def best(alpha: float) -> float:
        rest = {k: o + replay * (1 - alpha**k) for k in range(1, longest + 1)}
        return max(model_speedup(alpha, k, c, 1 + per_token * k, one) for k, one in rest.items())

    alpha = break_even_acceptance(c, lambda width: 1 + per_token * (width - 1), o, longest, replay)
    if alpha is None:
        assert best(1) < 1
    else:
        assert best(alpha) >= 1
        assert alpha <= 2e-6 or best(alpha - 2e-6) < 1


def test_break_even_at_the_edges():
    """One draft token: alpha = c + v + o - 1. With a fixed overhead longer drafts pay earlier."""
    assert break_even_acceptance(0.1, lambda width: 1.2, 0.3, longest=1) == pytest.approx(0.6, abs=2e-6)
    longer = break_even_acceptance(0.0, lambda width: 1.0, 0.8, longest=16)
    assert longer < 0.5 < break_even_acceptance(0.0, lambda width: 1.0, 0.8, longest=1)
    assert break_even_acceptance(0.01, lambda width: width, 0.0) is None
    assert break_even_acceptance(0.0, lambda width: 1.0, 0.0) == 0
    assert break_even_acceptance(0.0, lambda width: 2.0, 0.0, longest=1) == 1  # only what is always right
