"""The formulas against definitions, limits and simulations."""

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
from speclab.theory.formulas import book_formula, expected_tokens_per_round, ratio_interval

given_cases = settings(max_examples=100)
lengths = st.integers(1, 40)


def test_doctests():
    """The examples in the docstrings are what readers copy."""
    result = doctest.testmod(formulas)
    assert result.attempted > 0
    assert result.failed == 0


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
@given(st.fractions(0, 1, max_denominator=20), st.integers(0, 8))
def test_expected_tokens_per_round_is_the_mean_of_its_law(alpha, k):
    """Against the definition: i drafts are kept with probability alpha^i (1 - alpha), all k with alpha^k; plus one."""
    law = [alpha**i * (1 - alpha) for i in range(k)] + [alpha**k]
    assert sum(law) == 1
    mean = sum((i + 1) * chance for i, chance in enumerate(law))
    assert expected_tokens_per_round(float(alpha), k) == pytest.approx(float(mean), rel=1e-12)


def round_of(n_drafted: int, n_accepted: int) -> Round:
    """A round that nothing cuts."""
    return Round(list(range(n_accepted + 1)), n_drafted, n_accepted, int(n_accepted < n_drafted))


def counted(*rounds: Round) -> Counts:
    counts = Counts()
    for round_ in rounds:
        counts.add(round_)
    return counts


CUT = Round([5, 9], 4, 2, 0, finish="eos")  # the second draft was the EOS: there is no verdict on the rest
COUNTED = [  # rounds; alpha, f, tau, and the lengths that were accepted
    ([round_of(4, 4), round_of(4, 1), round_of(4, 0)], (5 / 7, 5 / 12, 8 / 3), {4: 1, 1: 1, 0: 1}),
    ([Round([7], prefill=True), round_of(0, 0), round_of(3, 0), round_of(0, 0)], (0, 0, 1), {0: 3}),
    ([CUT], (1, 0.5, 2), {2: 1}),
    ([round_of(0, 0)], (None, None, 1), {0: 1}),
    ([], (None, None, None), {}),
]


@pytest.mark.parametrize(("rounds", "ratios", "lengths"), COUNTED)
def test_alpha_f_and_tau_are_three_numbers(rounds, ratios, lengths):
    """They are None where nothing was tested, not 0."""
    counts = counted(*rounds)
    found = counts.acceptance_rate, counts.drafted_fraction, counts.tokens_per_round
    assert found == ratios
    assert counts.accepted_lengths == Counter(lengths)


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


def prompt_times(generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Baseline and speculative seconds of n prompts. Lengths vary, and so does the speedup, around 2."""
    lengths = generator.lognormal(0, 0.4, n)
    return lengths * generator.lognormal(math.log(2), 0.25, n), lengths


PROMPTS = [  # numerators and denominators, and bounds within which the interval must lie
    ([2.0, 4.0, 10.0], [1.0, 2.0, 5.0], 2 - 1e-12, 2 + 1e-12),  # equal ratios: 0 / 0 inside, a point outside
    ([1.0, 1.00001, 2.0], [1.0] * 3, 0, 100),  # a studentised resample divides by almost nothing
    ([1.50, 1.501, 1.502, 1.499, 1.5003, 1.4995, 2.0, 2.2], [1.0] * 8, 1, 10),  # a cluster and two outliers
]


@pytest.mark.parametrize(("tops", "bottoms", "least", "most"), PROMPTS)
def test_intervals_of_strange_prompts_are_of_use(tops, bottoms, least, most):
    low, high = ratio_interval(tops, bottoms)
    assert least < low <= high < most


def test_interval_is_that_of_a_ratio():
    """Seconds or milliseconds, the same ratio; and swapping the arms inverts the interval."""
    top, bottom = prompt_times(np.random.default_rng(2), 15)
    low, high = ratio_interval(top, bottom)
    assert low < top.sum() / bottom.sum() < high
    assert ratio_interval(1000 * top, 1000 * bottom) == pytest.approx((low, high), rel=1e-9)
    assert ratio_interval(3 * top, bottom) == pytest.approx((3 * low, 3 * high), rel=1e-9)
    assert ratio_interval(bottom, top) == pytest.approx((1 / high, 1 / low), rel=1e-9)
    assert ratio_interval(top[:2], bottom[:2]) is None


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


@pytest.mark.parametrize(
    ("data", "truth", "least", "most"), [(fixed_budget, TRUE_FIXED, 0.94, 0.96), (skewed, TRUE_SKEWED, 0.91, 0.97)]
)
def test_coverage_at_24_prompts(data, truth, least, most):
    """94 % to 96 % with data like a comparison's own; less with skewed data, since a sample does not know its tails.
    2000 seeded trials know the coverage to 0.5 points."""
    generator, covered = np.random.default_rng(24), 0
    for trial in range(2000):
        low, high = ratio_interval(*data(generator, 24), resamples=300, seed=trial)
        covered += low <= truth <= high
    assert least <= covered / 2000 <= most
