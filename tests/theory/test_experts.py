"""The union of chosen experts and what it costs, against enumeration and by hand."""

import itertools

import pytest

from speclab.theory.experts import Bytes, bytes_ratio, expected_union, pass_seconds


@pytest.mark.parametrize(("n", "k", "m"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2), (6, 2, 1)])
def test_the_expected_union_is_the_mean_over_all_choices(n, k, m):
    sets = list(itertools.combinations(range(n), k))
    sizes = [len(set().union(*chosen)) for chosen in itertools.product(sets, repeat=m)]
    assert expected_union(n, k, m) == pytest.approx(sum(sizes) / len(sizes), rel=1e-12)


def test_published_factors():
    """Mixtral, 8 experts of which 2: 3.05 times as many at 5 tokens; 256 of which 8: 4.7 times."""
    assert expected_union(8, 2, 5) / 2 == pytest.approx(3.05, abs=0.005)
    assert expected_union(256, 8, 5) / 8 == pytest.approx(4.7, abs=0.01)


def test_bytes_by_hand():
    read = Bytes(mlps=100, others=50, places=10)
    assert bytes_ratio(read, 2, 2) == 1
    assert bytes_ratio(read, 2, 6) == pytest.approx((60 + 600) / (60 + 200))
    assert bytes_ratio(Bytes(0, 50, 10), 2, 6) == 1, "without MLPs nothing grows"


def test_a_pass_is_made_of_passes_without_experts():
    read = Bytes(mlps=60, others=30, places=10)
    widths, dense = [1, 2, 4], [1.0, 1.0, 2.0]
    assert pass_seconds(widths, dense, read, 1, 1, 1) == pytest.approx(1.0)
    assert pass_seconds(widths, dense, read, 2, 2, 1) == pytest.approx(0.4 + 2 * 0.6)
    # 4 tokens, 2 experts each, all 4 of them: 2 tokens for each; the rest is a pass over 4
    assert pass_seconds(widths, dense, read, 2, 4, 4) == pytest.approx(0.4 * 2.0 + 4 * 0.6 * 1.0)
    # the same two experts for all: 4 tokens for each
    assert pass_seconds(widths, dense, read, 2, 2, 4) == pytest.approx(0.4 * 2.0 + 2 * 0.6 * 2.0)
