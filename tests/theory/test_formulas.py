"""The formulas against printed numbers, limits and simulations."""

import doctest
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.theory import formulas
from speclab.theory.formulas import (
    book_formula,
    cost_model_speedup,
    expected_tokens_per_round,
    leviathan_speedup,
    model_speedup,
    omega_star,
    overhead_per_round,
    ratio_interval,
)

given_cases = settings(max_examples=100)
lengths = st.integers(1, 40)

# alpha and k -> the book's formula, then Leviathan's at c = 0, 0.05, 0.1, 0.2, to two decimals.
COSTS = (0, 0.05, 0.1, 0.2)
GRID = """
        k=2                       k=4                       k=6                       k=8                       k=16
0.50    1.33 1.75/1.59/1.46/1.25  1.60 1.94/1.61/1.38/1.08  1.71 1.98/1.53/1.24/0.90  1.78 2.00/1.43/1.11/0.77  1.88 2.00/1.11/0.77/0.48
0.60    1.43 1.96/1.78/1.63/1.40  1.82 2.31/1.92/1.65/1.28  2.00 2.43/1.87/1.52/1.10  2.11 2.47/1.77/1.37/0.95  2.29 2.50/1.39/0.96/0.60
0.70    1.54 2.19/1.99/1.82/1.56  2.11 2.77/2.31/1.98/1.54  2.40 3.06/2.35/1.91/1.39  2.58 3.20/2.28/1.78/1.23  2.91 3.33/1.85/1.28/0.79
0.80    1.67 2.44/2.22/2.03/1.74  2.50 3.36/2.80/2.40/1.87  3.00 3.95/3.04/2.47/1.80  3.33 4.33/3.09/2.40/1.66  4.00 4.89/2.72/1.88/1.16
0.90    1.82 2.71/2.46/2.26/1.94  3.08 4.10/3.41/2.93/2.28  4.00 5.22/4.01/3.26/2.37  4.71 6.13/4.38/3.40/2.36  6.40 8.33/4.63/3.20/1.98
0.95    1.90 2.85/2.59/2.38/2.04  3.48 4.52/3.77/3.23/2.51  4.80 6.03/4.64/3.77/2.74  5.93 7.40/5.28/4.11/2.84  9.14 11.64/6.47/4.48/2.77
"""  # noqa: E501


# --- formulas ---------------------------------------------------------------------------------------------------------


def test_doctests():
    """The examples in the docstrings are what readers copy."""
    result = doctest.testmod(formulas)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_printed_grid():
    """Every cell, to the last printed digit."""
    _, header, *rows = GRID.rstrip().split("\n")
    ks = [int(word.removeprefix("k=")) for word in header.split()]
    n_cells = 0
    for row in rows:
        alpha, *cells = row.split()
        for k, book, leviathan in zip(ks, cells[::2], cells[1::2], strict=True):
            assert f"{book_formula(float(alpha), k):.2f}" == book
            assert "/".join(f"{leviathan_speedup(float(alpha), k, c):.2f}" for c in COSTS) == leviathan
            n_cells += 1
    assert n_cells == 30


@pytest.mark.parametrize(("alpha", "k", "printed"), [(0.7, 4, 2.1), (0.8, 4, 2.5), (0.7, 8, 2.5), (0.8, 8, 3.3)])
def test_the_books_table_line_by_line(alpha, k, printed):
    """Three lines are the formula cut to one decimal; at (0.7, 8) it gives 2.58, so neither 2.5 nor its rounding."""
    value = book_formula(alpha, k)
    if (alpha, k) == (0.7, 8):
        assert (f"{value:.2f}", f"{value:.1f}") == ("2.58", "2.6")
        assert abs(value - printed) > 0.05
    else:
        assert f"{value:.1f}" == f"{printed}"
        assert abs(value - printed) < 0.05


@given_cases
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 12))
def test_when_the_books_formula_is_exact(full_rounds, k):
    """Rounds of k tokens or 1, free drafts, no bonus; acceptance is the share of tokens from full rounds. In fractions.

    Every round costs one decode step, so the speedup is tokens per round.
    """
    tokens = sum(k if full else 1 for full in full_rounds)
    share = Fraction(k * sum(full_rounds), tokens)
    assert book_formula(share, k) == Fraction(tokens, len(full_rounds))


@given_cases
@given(st.fractions(0, 1, max_denominator=1000).filter(lambda a: 0 < a < 1), lengths)
def test_the_lower_bound_is_strict_in_fractions(alpha, k):
    """As close to 0 and 1 as you like, where floats no longer tell. Both are 1 at 0; at 1 it is k to k + 1."""
    tau = sum(alpha**i for i in range(k + 1))
    assert alpha**k * (k - (k - 1) * alpha) < 1
    assert book_formula(alpha, k) < tau
    assert book_formula(Fraction(0), k) == 1
    assert book_formula(Fraction(1), k) == k


@given_cases
@given(st.floats(0, 0.99), lengths)
def test_omega_star_is_the_printed_closed_form(alpha, k):
    """Two roads: the overhead that makes tau / (1 + omega) the book's value, and the formula in the text."""
    closed = alpha * (1 - alpha**k * (k - (k - 1) * alpha)) / (k * (1 - alpha))
    assert omega_star(alpha, k) == pytest.approx(closed, abs=1e-9)


@pytest.mark.parametrize(
    ("alpha", "k", "printed"), [(0.7, 4, 0.317), (0.8, 4, 0.345), (0.7, 8, 0.240), (0.8, 8, 0.299)]
)
def test_omega_star_divides_too_low_from_too_high(alpha, k, printed):
    """Below it the book promises too little, above it too much, wherever the overhead comes from."""
    omega = omega_star(alpha, k)
    assert round(omega, 3) == printed
    for share, sign in [(0.99, 1), (1.01, -1)]:
        for c, v, o in [(share * omega / k, 1, 0), (0, 1 + share * omega, 0), (0, 1, share * omega)]:
            assert overhead_per_round(k, c, v, o) == pytest.approx(share * omega)
            assert sign * (model_speedup(alpha, k, c, v, o) - book_formula(alpha, k)) > 0
    assert omega_star(1, k) == pytest.approx(1 / k)
    assert omega_star(0, k) == 0


def test_model_speedup_is_tau_over_the_round():
    """Four drafts of 0.1, a pass of 1.2 and 0.05 beside: 1.65 steps a round, 0.65 of them overhead."""
    assert overhead_per_round(4, 0.1, 1.2, 0.05) == pytest.approx(0.65)
    assert model_speedup(0.8, 4, 0.1, 1.2, 0.05) == pytest.approx(3.3616 / 1.65)
    assert model_speedup(0.8, 0, 0.1, 1, 0) == 1
    assert model_speedup(0.8, 4, 0.1, 1, 0) == leviathan_speedup(0.8, 4, 0.1)


@given_cases
@given(st.fractions(0, 1, max_denominator=20), st.integers(0, 8))
def test_expected_tokens_per_round_is_the_mean_of_its_law(alpha, k):
    """Against the definition: i drafts are kept with probability alpha^i (1 - alpha), all k with alpha^k; plus one."""
    law = [alpha**i * (1 - alpha) for i in range(k)] + [alpha**k]
    assert sum(law) == 1
    mean = sum((i + 1) * chance for i, chance in enumerate(law))
    assert expected_tokens_per_round(float(alpha), k) == pytest.approx(float(mean), rel=1e-12)


def test_cost_model_is_an_accounting_identity():
    """A hand-made run: 10 rounds, 40 drafted, 30 tokens; 20 ms a decode step. Times in ms add up to its denominator."""
    baseline = 30 * 20
    speculative = 40 * 2 + 10 * 26 + 10 * 3  # draft steps of 2, passes of 26, 3 around them
    assert cost_model_speedup(30 / 10, 40 / 10, 2 / 20, 26 / 20, 3 / 20) == pytest.approx(baseline / speculative)


@pytest.mark.parametrize("formula", [book_formula, expected_tokens_per_round])
@pytest.mark.parametrize(("acceptance", "k"), [(-0.01, 4), (1.01, 4), (80, 4), (math.nan, 4), (0.5, -1)])
def test_impossible_arguments_are_refused(formula, acceptance, k):
    """80 for 80 % is the likeliest slip; it would give a negative speedup."""
    with pytest.raises(ValueError, match=r"acceptance must|draft length must"):
        formula(acceptance, k)
    with pytest.raises(ValueError, match=r"acceptance must|draft length must"):
        leviathan_speedup(acceptance, k, 0.1)


def test_draft_length_0():
    """Plain decoding makes one token a round; the book's formula has no value there."""
    assert expected_tokens_per_round(0.7, 0) == 1
    assert leviathan_speedup(0.7, 0, 0.1) == 1
    with pytest.raises(ValueError, match="at least 1"):
        book_formula(0.7, 0)


# --- counts -----------------------------------------------------------------------------------------------------------


def round_of(n_drafted: int, n_accepted: int) -> Round:
    """A round that nothing cuts."""
    return Round(list(range(n_accepted + 1)), n_drafted, n_accepted, int(n_accepted < n_drafted))


def counted(*rounds: Round) -> Counts:
    counts = Counts()
    for round_ in rounds:
        counts.add(round_)
    return counts


def test_alpha_f_and_tau_are_three_numbers():
    """Accepted 4, 1, 0 of 4 each: 5 of 7 tested, 5 of 12 drafted, 8 tokens in 3 rounds."""
    counts = counted(round_of(4, 4), round_of(4, 1), round_of(4, 0))
    assert counts.acceptance_rate == 5 / 7
    assert counts.drafted_fraction == 5 / 12
    assert counts.tokens_per_round == 8 / 3
    assert counts.accepted_lengths == Counter({4: 1, 1: 1, 0: 1})
    assert (counts.n_rounds, counts.n_drafted, counts.n_accepted, counts.n_rejected) == (3, 12, 5, 2)


def test_a_round_cut_by_eos():
    """The second draft was the EOS: 2 kept, 2 emitted, no verdict on the rest, so nothing rejected."""
    counts = counted(Round([5, 9], 4, 2, 0, finish="eos"))
    assert counts.acceptance_rate == 1
    assert counts.drafted_fraction == 0.5
    assert counts.tokens_per_round == 2


def test_ratios_of_nothing_are_none():
    """Not 0 and not an exception: with k = 0 nothing is tested, and reports say so."""
    assert Counts().acceptance_rate is Counts().drafted_fraction is Counts().tokens_per_round is None
    plain = counted(round_of(0, 0))
    assert plain.acceptance_rate is None
    assert plain.drafted_fraction is None
    assert plain.tokens_per_round == 1


rounds_of_8 = st.lists(st.integers(0, 8).map(lambda n: round_of(8, n)), min_size=1, max_size=30)


@given_cases
@given(rounds_of_8)
def test_tau_is_1_plus_k_f(rounds):
    """Holds without any assumption while nothing is cut. f <= alpha, because f's denominator has the untested too."""
    counts = counted(*rounds)
    assert counts.tokens_per_round == pytest.approx(1 + 8 * counts.drafted_fraction, rel=1e-12)
    assert counts.drafted_fraction <= counts.acceptance_rate
    assert sum(counts.accepted_lengths.values()) == counts.n_rounds
    assert sum(n * rounds for n, rounds in counts.accepted_lengths.items()) == counts.n_accepted


@given_cases
@given(rounds_of_8, rounds_of_8)
def test_merged_counts_are_the_counts_of_everything(first, second):
    """Pooling prompts by merging must weight them by their rounds, and leave the other counts alone."""
    merged, other = counted(*first), counted(*second)
    merged.merge(other)
    assert merged == counted(*first, *second)
    assert other == counted(*second)


# --- intervals --------------------------------------------------------------------------------------------------------


def prompt_times(generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Baseline and speculative seconds of n prompts. Lengths vary, and so does the speedup, around 2."""
    lengths = generator.lognormal(0, 0.4, n)
    return lengths * generator.lognormal(math.log(2), 0.25, n), lengths


def test_equal_ratios_give_a_point():
    """No spread between prompts: 0 / 0 inside the studentised bootstrap, a point outside."""
    low, high = ratio_interval([2.0, 4.0, 10.0], [1.0, 2.0, 5.0])
    assert low == high == pytest.approx(2, rel=1e-12)


def test_interval_contains_the_estimate_and_widens_with_the_level():
    """Swapped or unreflected quantiles put the interval beside the estimate or turn it round."""
    generator = np.random.default_rng(1)
    for n in (10, 20, 50):
        for _ in range(5):
            top, bottom = prompt_times(generator, n)
            estimate = top.sum() / bottom.sum()
            narrow, wide = ratio_interval(top, bottom, level=0.8), ratio_interval(top, bottom, level=0.99)
            assert wide[0] < narrow[0] < estimate < narrow[1] < wide[1]


def test_interval_is_that_of_a_ratio():
    """Seconds or milliseconds, the same ratio; and swapping the arms inverts the interval."""
    top, bottom = prompt_times(np.random.default_rng(2), 15)
    low, high = ratio_interval(top, bottom)
    assert ratio_interval(1000 * top, 1000 * bottom) == pytest.approx((low, high), rel=1e-9)
    assert ratio_interval(3 * top, bottom) == pytest.approx((3 * low, 3 * high), rel=1e-9)
    assert ratio_interval(bottom, top) == pytest.approx((1 / high, 1 / low), rel=1e-9)


def test_interval_depends_on_its_data_and_seed_alone():
    """A report must come out the same twice; the order of equal prompts and numpy's global state do not count."""
    top, bottom = prompt_times(np.random.default_rng(3), 15)
    np.random.seed(1)
    first = ratio_interval(list(top), list(bottom))
    np.random.seed(2)
    assert ratio_interval(top, bottom) == first
    assert ratio_interval(top, bottom, seed=1) != first
    assert ratio_interval(top, bottom, seed=1) == pytest.approx(first, rel=0.05)


KINDS = np.log([1.3, 1.6, 2.4])  # prose, code, copying: speedups as far apart as in the reference runs


def fixed_budget(generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """A comparison's own data: the same number of tokens for every prompt, of one of three kinds.

    Both arms share the machine's mood (the lognormal of 0.1); the rest of the speculative time is skewed.
    """
    mood = generator.lognormal(0, 0.1, n)
    return mood, mood / np.exp(generator.choice(KINDS, n) + generator.normal(0, 0.15, n))


def skewed(generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Harder: lengths as spread as chat answers, and long ones are sped up more."""
    z, w = generator.normal(size=(2, n))
    lengths = np.exp(0.4 * z)
    return lengths * 2 * np.exp(0.25 * (0.5 * z + math.sqrt(0.75) * w)), lengths


TRUE_FIXED = 1 / (np.exp(-KINDS).mean() * math.exp(0.15**2 / 2))
TRUE_SKEWED = 2 * math.exp(0.25**2 / 2 + 0.5 * 0.4 * 0.25)


def coverage(data, truth: float, n: int, trials: int, resamples: int = 300) -> float:
    generator, covered = np.random.default_rng(n), 0
    for trial in range(trials):
        low, high = ratio_interval(*data(generator, n), resamples=resamples, seed=trial)
        covered += low <= truth <= high
    print(f"{data.__name__}, {n} prompts: {100 * covered / trials:.1f} % of {trials}")
    return covered / trials


def test_coverage_at_24_prompts():
    """94 % to 96 % with data like a comparison's own. 2000 seeded trials know the coverage to 0.5 points."""
    assert 0.94 <= coverage(fixed_budget, TRUE_FIXED, 24, 2000) <= 0.96


@pytest.mark.full
@pytest.mark.parametrize(("data", "truth"), [(fixed_budget, TRUE_FIXED), (skewed, TRUE_SKEWED)], ids=["even", "skewed"])
@pytest.mark.parametrize("n", [10, 24, 50])
def test_coverage_at_other_sizes(data, truth, n):
    """With skewed data or 10 prompts it falls short by up to 2 points: a sample does not know its tails."""
    least, most = (0.94, 0.96) if data is fixed_budget and n >= 24 else (0.92, 0.97)
    assert least <= coverage(data, truth, n, 20_000, resamples=500) <= most


def test_interval_of_near_equal_prompts_and_an_outlier_is_finite():
    """Three prompts, two with the same speedup to 1e-5: a studentised resample divides by almost nothing."""
    low, high = ratio_interval([1.0, 1.00001, 2.0], [1.0, 1.0, 1.0])
    assert 0 < low < high < 100


def test_interval_of_a_cluster_and_two_outliers_is_of_use():
    """Eight prompts, speedups between 1.4995 and 2.2: no bound of 95 % belongs far outside of what was seen."""
    low, high = ratio_interval([1.50, 1.501, 1.502, 1.499, 1.5003, 1.4995, 2.0, 2.2], [1.0] * 8)
    assert 1 < low < high < 10


# --- the interval of alpha --------------------------------------------------------------------------------------------
