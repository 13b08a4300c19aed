"""Which draft length a plan takes: the work that its seconds are made of, the bands, and the decision."""

import doctest
import math
from dataclasses import replace

import numpy as np
import pytest

from speclab.theory import planning
from speclab.theory.attribution import round_cost
from speclab.theory.forecast import forecast, model_accept_probs
from speclab.theory.planning import Choice, Work, bands, choose, student, work_of_text
from tests.theory.test_costs import MODEL, NGRAM

LENGTHS = [0, 1, 2, 3, 4, 5, 6]
TRUE = [0.96, 1.30, 1.55, 1.66, 1.67, 1.60, 1.40]


def test_the_examples():
    result = doctest.testmod(planning)
    assert result.failed == 0 < result.attempted


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


# --- bands ------------------------------------------------------------------------------------------------------------


def jackknifed(of_prompts: np.ndarray) -> list[list[float]]:
    """exp of the mean of logarithms without each prompt."""
    logs = np.log(of_prompts)
    return np.exp((logs.sum(0) - logs) / (len(logs) - 1)).tolist()


def prompts_with(own: float, shared: float, n: int = 12, seed: int = 0) -> np.ndarray:
    """(prompts, lengths) speedups: each prompt moves all lengths alike by `shared`, and each by `own`."""
    dice = np.random.default_rng(seed)
    noise = shared * dice.standard_normal((n, 1)) + own * dice.standard_normal((n, len(TRUE)))
    noise -= noise.mean(0)
    return np.array(TRUE) * np.exp(noise)


def test_the_band_of_a_mean_is_students():
    """The jackknife of a mean is its standard error."""
    of_prompts = prompts_with(own=0.1, shared=0.2, n=9)
    error = np.log(of_prompts).std(0, ddof=1) / 3
    for band, true, one in zip(bands(TRUE, jackknifed(of_prompts)), TRUE, error, strict=True):
        assert math.log(band.high / true) == pytest.approx(student(8) * one)
        assert math.log(true / band.low) == pytest.approx(student(8) * one)


def test_there_is_no_band_with_two_prompts():
    assert bands(TRUE, [TRUE, TRUE]) is None
    assert bands(TRUE, []) is None
    assert bands(TRUE, [TRUE] * 3) is not None


# --- the decision -----------------------------------------------------------------------------------------------------


def taken(own: float, shared: float, speedups: list[float] = TRUE, lengths: list[int] = LENGTHS, n: int = 12) -> Choice:
    left_out = np.array(jackknifed(prompts_with(own, shared, n))) / TRUE * np.array(speedups)
    return choose(lengths, speedups, left_out.tolist())


def test_the_shortest_that_cannot_be_told_apart_is_taken():
    assert taken(own=0.02, shared=0.0) == Choice(take=3, best=4, same=(3, 4), pays="yes")


def test_lengths_that_share_their_noise_are_told_apart():
    """Prompts differ by 20 %, but all lengths with them."""
    assert taken(own=0.001, shared=0.2) == Choice(take=4, best=4, same=(4, 4), pays="yes")


def test_noise_makes_more_lengths_equal():
    assert taken(own=0.2, shared=0.0).same[0] < 3
    assert taken(own=0.2, shared=0.0).take < 3


def test_the_stretch_ends_at_the_first_worse_length():
    """k = 1 is so noisy that it could be anything; k = 2 is worse for sure, so 1 is not taken."""
    left_out = np.tile(np.array(TRUE), (12, 1))
    left_out[:, 1] *= np.exp(0.2 * (-1.0) ** np.arange(12))
    assert choose(LENGTHS, TRUE, left_out.tolist()) == Choice(4, 4, (4, 4), "yes")


def test_a_gain_within_the_noise_of_none_is_not_recommended():
    """v(k + 1) came out below 1 by chance: 1.02x at k = 5, but prompts scatter by 10 %."""
    speedups = [0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 0.95]
    chosen = taken(own=0.02, shared=0.1, speedups=speedups)
    assert chosen.pays == "unclear"
    assert chosen.best == 5
    assert taken(own=0.002, shared=0.002, speedups=speedups).pays == "yes"


def test_of_equals_one_whose_gain_is_sure_is_taken():
    """k = 1 cannot be told apart from k = 2, and its own band reaches below 1."""
    left_out = np.tile([1.1, 1.2], (10, 1))
    left_out[:, 0] *= np.exp(0.02 * (-1.0) ** np.arange(10))
    assert choose([1, 2], [1.1, 1.2], left_out.tolist()) == Choice(1, 1, (0, 1), "yes")


def test_plain_decoding_is_the_best_where_nothing_is_faster():
    slower = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    assert taken(own=0.001, shared=0.0, speedups=slower) == Choice(0, 0, (0, 0), "no")
    assert choose(LENGTHS, slower, []) == Choice(0, 0, (0, 0), "no")
    assert choose([2, 4], [0.9, 0.8], []).pays == "no"


def test_plain_decoding_is_never_among_equals():
    speedups = [1.0, 1.001, 1.002, 1.001, 1.0, 0.9, 0.9]
    assert taken(own=0.1, shared=0.0, speedups=speedups).same[0] == 1


def test_without_bands_the_best_is_taken():
    assert choose(LENGTHS, TRUE, [TRUE] * 2) == Choice(4, 4, (4, 4), "yes")
