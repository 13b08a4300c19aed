"""A draft length for every number of requests at a time, from speedups that are known."""

import doctest
import itertools

from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import schedules
from speclab.extensions.servers.schedules import schedule


def test_doctests():
    result = doctest.testmod(schedules)
    assert result.attempted > 0
    assert result.failed == 0


@given(
    st.dictionaries(
        st.integers(1, 64), st.dictionaries(st.integers(1, 5), st.floats(0.1, 3), min_size=1), min_size=1, max_size=6
    )
)
def test_a_schedule_has_the_best_k_of_every_level_and_no_gaps(speedups):
    """As vLLM wants it: from 1 on, in order, without overlaps; and no longer than needed."""
    ranges = schedule(speedups)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == max(speedups)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))
    assert all(before[2] != after[2] for before, after in itertools.pairwise(ranges))
    for level, of_k in speedups.items():
        (k,) = (k for first, last, k in ranges if first <= level <= last)
        best = max(of_k.values())
        assert (k == 0) if best <= 1 else (of_k[k] == best)


def test_a_level_stands_for_the_sizes_after_the_one_before():
    assert schedule({4: {2: 1.5}, 8: {2: 0.9}}) == [(1, 4, 2), (5, 8, 0)]
