"""What rounds of a batch cost, in numbers that are known."""

import doctest
import itertools
import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.batch import pass_costs
from speclab.extensions.batch.pass_costs import A100, H100, LLAMA_8B, Model, PassCosts, step_time

COSTS = PassCosts((1, 2, 8), (1.0, 1.1, 2.0), 100, per_place=0.001, per_pair=0.0001)


def test_doctests():
    result = doctest.testmod(pass_costs)
    assert result.attempted > 0
    assert result.failed == 0


def test_passes_over_one_text_are_what_was_timed():
    for width, seconds in zip(COSTS.widths, COSTS.seconds, strict=True):
        assert COSTS.of(1, width, 100) == pytest.approx(seconds)


def test_a_pass_over_several_texts():
    """The weights as for one text with as many tokens; every text reads its own cache, no token another text's."""
    assert COSTS.of(4, 2, 100) == pytest.approx(2.0 + 0.001 * 300)
    assert COSTS.of(1, 8, 300) == pytest.approx(2.0 + 0.001 * 200 + 0.0001 * 8 * 200)
    assert COSTS.of(4, 2, 300) == pytest.approx(2.0 + 0.001 * 1100 + 0.0001 * 8 * 200)
    assert COSTS.of(4, 4, 100) == pytest.approx(2.0 + 8 * 0.15 + 0.001 * 300), "beyond the widest pass: a straight line"
    assert COSTS.of(1, 4, 100) == pytest.approx(1.1 + 2 * 0.15)


@given(st.floats(0, 1e-3), st.floats(0, 1e-4))
def test_costs_of_places_are_found_again(per_place, per_pair):
    short = {1: 1.0, 5: 1.2, 20: 2.0}
    long = {width: seconds + 900 * (per_place + per_pair * width) for width, seconds in short.items()}
    found = pass_costs.costs_of_places(short, long, 900)
    assert found == pytest.approx((per_place, per_pair), abs=1e-9)


def test_costs_of_places_are_never_negative():
    assert pass_costs.costs_of_places({1: 1.0, 5: 2.0}, {1: 1.5, 5: 2.1}, 100) == pytest.approx((0.003, 0.0))
    place, pair = pass_costs.costs_of_places({1: 1.0, 5: 2.0}, {1: 1.0, 5: 3.0}, 100)
    assert place == 0.0
    assert pair > 0


@pytest.mark.parametrize("machine", [A100, H100])
def test_reading_and_arithmetic_meet_where_the_data_sheet_says(machine):
    """Weights of two bytes: from flops / bandwidth tokens on a pass costs more with each one."""
    meet = machine.flops / machine.bandwidth
    one = step_time(machine, LLAMA_8B, 1, 0, 0)
    assert step_time(machine, LLAMA_8B, 0.99 * meet, 0, 0) == one
    assert step_time(machine, LLAMA_8B, 2 * meet, 0, 0) == pytest.approx(2 * one)


def test_the_cache_is_read_once_for_all_tokens_of_a_text():
    """MagicDec: a long context costs a round what it costs a step, so speculation gains more with it."""
    model = Model("", 1e9, 1e5, 1e5)
    short, long = ([step_time(A100, model, 64 * w, 64 * c, 64 * c * w) for w in (1, 5)] for c in (10, 100_000))
    assert long[1] / long[0] == pytest.approx(1, abs=0.01)
    assert short[1] / short[0] > 2


@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=3), st.integers(1, 3), st.sampled_from([1.0, 0.7, 0.3]))
def test_tokens_in_lockstep(acceptance, n_texts, drafts):
    """Against the sum over what all texts may keep.

    A text without a draft gets one token, and does not count for the others.
    """
    survival = [drafts * left for left in itertools.accumulate(acceptance, operator.mul)]
    ends = [drafts, *survival, 0.0]
    chances: dict[int | None, float] = {None: 1 - drafts}  # of what a text keeps; None: it has no draft
    chances |= {n: before - after for n, (before, after) in enumerate(itertools.pairwise(ends))}
    mean = 0.0
    for kept in itertools.product(chances, repeat=n_texts):
        of_first = 0 if kept[0] is None else min(n for n in kept if n is not None)
        mean += math.prod(chances[n] for n in kept) * (of_first + 1)
    assert pass_costs.lockstep_tokens(survival, n_texts, drafts) == pytest.approx(mean)


def test_a_draft_catches_up_where_one_text_of_the_batch_does():
    assert pass_costs.catches_up(0.5, 1) == 0.5
    assert pass_costs.catches_up(0.5, 3) == 0.875
