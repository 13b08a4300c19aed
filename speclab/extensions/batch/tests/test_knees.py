"""Where speculation stops paying, in numbers that are known."""

import doctest

import pytest

from speclab.extensions.batch import knees
from speclab.extensions.batch.knees import Knee, best_k, knee


def test_doctests():
    result = doctest.testmod(knees)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_knee_is_interpolated_on_a_logarithmic_axis():
    assert knee({4: 1.5, 16: 0.5}).n_texts == pytest.approx(8)
    assert knee({1: 1.2, 2: 1.0, 4: 0.8}).n_texts == pytest.approx(2)
    assert knee({1: 1.1}) == Knee(None)


def test_the_knee_is_the_last_fall():
    """The smallest batch alone decides nothing, and a speedup of 1 is no loss."""
    assert knee({1: 0.9, 2: 1.5, 8: 0.5}).n_texts == pytest.approx(4)
    assert knee({1: 1.5, 2: 0.9, 4: 1.5, 16: 0.5}).n_texts == pytest.approx(8), "the first fall was not the last one"
    assert knee({1: 1.0}) == knee({1: 1.0, 2: 1.0}) == Knee(None)
    assert knee({1: 1.5, 2: 0.9, 4: 1.2}) == Knee(None), "the largest batch pays"
    assert knee({1: 0.9, 2: 0.99}) == Knee(None, True)


def test_no_draft_may_be_best():
    assert best_k({0: 10.0, 2: 9.0, 4: 9.5}) == 0
    assert best_k({4: 12.0, 2: 12.0, 0: 10.0}) == 2
