"""How sure a plan is of its best length: the work that its seconds are made of, what a prompt adds, the intervals."""

from dataclasses import replace

import numpy as np
import pytest

from speclab.core.proposals import model_accept_probs
from speclab.extensions.plan.intervals import Work, added, interval, work_of_text
from speclab.theory.attribution import round_cost
from speclab.theory.forecast import forecast
from speclab.theory.formulas import ratio_interval
from tests.theory.test_costs import MODEL, NGRAM

# --- work -------------------------------------------------------------------------------------------------------------


def texts(seed: int) -> list[tuple[int, list]]:
    dice = np.random.default_rng(seed)
    return [(int(dice.integers(20, 300)), model_accept_probs(dice.uniform(size=n))) for n in (1, 2, 9, 40)]


@pytest.mark.parametrize("costs", [MODEL, NGRAM, replace(MODEL, replay=0.003)], ids=["model", "ngram", "recurrent"])
@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_the_seconds_of_work_are_those_of_the_forecast(costs, k):
    """Added up first and priced then, or the other way round; lookups that find nothing too."""
    total, expected = Work(np.zeros(9), 0.0, 0.0, 0.0, 0.0), 0.0
    for n_prompt, rows in [*texts(1), (50, [[], [0.5, 0.2], [], [1.0], [0.3, 0.9, 1.0]])]:
        extra = {"full_round_extra": costs.draft_catch, "rejected_round_extra": costs.replay}
        one = forecast(rows, len(rows), k, round_cost(costs, n_prompt), **extra).cost
        work = work_of_text(rows, n_prompt, k, longest=8)
        assert work.seconds(costs) == pytest.approx(one, rel=1e-12)
        total, expected = total + work, expected + one
    assert total.seconds(costs) == pytest.approx(expected, rel=1e-12)
    assert (total - work).seconds(costs) == pytest.approx(expected - one, rel=1e-9)


# --- what a prompt adds -----------------------------------------------------------------------------------------------


def sums(work: np.ndarray, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(prompts, sums) twice -> seconds of all prompts (sums,), and without each prompt (prompts, sums).

    A price is the mean of what the prompts paid, as a calibration makes it.
    """
    n, all_work, all_prices = len(work), work.sum(0), prices.sum(0)
    return all_work * all_prices / n, (all_work - work) * (all_prices - prices) / (n - 1)


def test_at_one_price_a_prompt_adds_the_seconds_of_its_text():
    work, prices = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 9.0]]), np.array([[2.0, 0.5]] * 3)
    assert added(*sums(work, prices)) == pytest.approx(work * prices)


def test_of_equal_texts_a_prompt_adds_what_it_paid():
    """Three texts of 2 rounds, at 3, 6 and 9 seconds: 36 together, and 30, 24 and 18 without one of them."""
    work, prices = np.full((3, 1), 2.0), np.array([[3.0], [6.0], [9.0]])
    total, without = sums(work, prices)
    assert (total.tolist(), without.ravel().tolist()) == ([36.0], [30.0, 24.0, 18.0])
    assert added(total, without).ravel().tolist() == [6.0, 12.0, 18.0]


def test_a_prompt_never_adds_less_than_nothing():
    """The rest alone would pay more than all: no logarithm of that. The interval stays finite."""
    total, without = np.array([30.0, 30.0]), np.array([[31.0, 20.0], [10.0, 20.0], [19.0, 20.0]])
    of_each = added(total, without)
    assert of_each[0, 0] == pytest.approx(0.01)
    assert np.isfinite(interval(of_each[:, 0], of_each[:, 1])).all()


# --- the interval -----------------------------------------------------------------------------------------------------


def test_prompts_that_agree_leave_no_width():
    assert interval(np.array([2.0, 4.0, 10.0]), np.array([1.0, 2.0, 5.0])) == pytest.approx((2.0, 2.0))


def test_there_is_no_interval_with_two_prompts():
    assert interval(np.array([2.0, 4.0]), np.array([1.0, 2.0])) == (None, None)
    assert interval(np.array([]), np.array([])) == (None, None)


def test_the_interval_is_the_one_of_every_speedup():
    tops, bottoms = np.array([2.0, 3.0, 2.5, 4.0]), np.array([1.0, 1.1, 1.2, 1.5])
    assert interval(tops, bottoms) == ratio_interval(tops.tolist(), bottoms.tolist())


def test_lengths_that_share_their_noise_are_told_apart():
    """Prompts differ by a factor of 30, but both lengths with them; one of the two is 2 % slower."""
    shared, dice = np.geomspace(1, 30, 12), np.random.default_rng(0)
    low, high = interval(shared * 1.02 * (1 + 0.004 * dice.standard_normal(12)), shared)
    assert 1 < low < 1.02 < high < 1.03


def told_apart(n: int, text: float, calibration: float, chosen: bool, slower: float = 1.0, plans: int = 40) -> float:
    """How often lengths are told apart from the first of eight, or, if `chosen`, from the one that seems fastest.

    Every prompt has its own rounds at every length (spread `text`) and its own seconds of a round (`calibration`), of
    which the others know the mean. The other lengths take `slower` times as long.
    """
    dice, found = np.random.default_rng(1), []
    for _ in range(plans):
        work = np.exp(0.2 * dice.standard_normal((n, 1)) + text * dice.standard_normal((n, 8)))
        prices = np.exp(calibration * dice.standard_normal((n, 8)))
        prices[:, 1:] *= slower
        total, without = sums(work, prices)
        of_each, best = added(total, without), int(total.argmin()) if chosen else 0
        ends = [interval(of_each[:, k], of_each[:, best]) for k in range(8) if k != best]
        found += [not low <= 1 <= high for low, high in ends]
    return sum(found) / len(found)


@pytest.mark.parametrize(("n", "text", "calibration"), [(3, 0.05, 0.0), (3, 0.03, 0.15), (12, 0.03, 0.15)])
def test_equals_are_told_apart_as_rarely_as_the_docstring_says(n, text, calibration):
    """Seeded, so it raises no false alarm of its own."""
    assert 0.02 <= told_apart(n, text, calibration, chosen=False) <= 0.08
    assert 0.05 <= told_apart(n, text, calibration, chosen=True) <= 0.16


def test_a_length_that_is_clearly_slower_is_told_apart():
    """By 20 %, where costs scatter by 15 % over twelve prompts."""
    assert told_apart(12, 0.03, 0.15, chosen=False, slower=1.2, plans=20) > 0.6
    assert told_apart(12, 0.03, 0.15, chosen=False, slower=1.5, plans=20) > 0.98
