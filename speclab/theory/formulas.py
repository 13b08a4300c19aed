"""Formulas of speculative decoding: counts first, ratios second. Pure: no torch, no clock, no file.

Letters, the same in text, code, tables and plots:

    α       acceptance rate of a tested position (`acceptance_rate`)
    f       drafted fraction, accepted / drafted (`drafted_fraction`)
    tau     tokens per target pass (`tokens_per_round`)
    k       draft length
    c       cost of one draft step, v cost of a target pass of width k + 1, o everything else in a round;
            all in units of one decode step of the target
"""

import math

import numpy as np


def book_formula(acceptance: float, draft_length: int) -> float:
    """Return the book's speedup 1 / (1 - a + a / k): Amdahl's law, share `acceptance` sped up k-fold.

    The book: Chris Fregly, AI Systems Performance Engineering, O'Reilly 2025; the formula stands in the README of the
    speculative-decoding lab in its repository, cfregly/ai-performance-engineering.

    It leaves out the draft's cost, the cost of verifying and the bonus token. At k = 1 it is always 1; it grows with k
    without limit, so it gives no best k. It is exact if drafting is free, a pass of width k + 1 costs one decode step,
    every round is all or nothing (k tokens or 1), and `acceptance` is the share of output tokens in full rounds.

    Fed with alpha, the acceptance of a tested position, it is a strict lower bound for 0 < alpha < 1 while rounds have
    no overhead: 1 > alpha^k (k - (k - 1) alpha).

    >>> [round(book_formula(a, k), 2) for a, k in [(0.7, 4), (0.8, 4), (0.7, 8), (0.8, 8)]]
    [2.11, 2.5, 2.58, 3.33]
    """
    return 1 / (1 - acceptance + acceptance / draft_length)


def expected_tokens_per_round(acceptance: float, draft_length: int) -> float:
    """Return tau if tested positions accept independently: (1 - a^(k+1)) / (1 - a). Leviathan et al. 2211.17192, eq. 1

    >>> round(expected_tokens_per_round(0.8, 8), 2)
    4.33
    """
    return sum(acceptance**i for i in range(draft_length + 1))


def leviathan_speedup(acceptance: float, draft_length: int, draft_cost: float) -> float:
    """Return tau / (1 + k c): a pass over k + 1 costs one decode step, nothing else costs. 2211.17192, theorem 3.8"""
    return expected_tokens_per_round(acceptance, draft_length) / (draft_length * draft_cost + 1)


FEWEST = 3  # prompts with which a ratio has an interval
SMALLEST_ERROR_SHARE = 0.3  # floor of a resample's standard error, as a share of the sample's own


def ratio_interval(
    numerators: list[float], denominators: list[float], resamples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95 % interval of sum(numerators) / sum(denominators) over paired prompts; None below FEWEST.

    It is a bootstrap-t interval of the log ratio with the delta method's standard error (Efron & Tibshirani 1993, ch.
    12). Simulated, it covers 94-96 % from 24 prompts on where all make as many tokens; 92-94 % at 10 to 50 where
    lengths and speedups are very skewed and correlated. Where one prompt in twenty behaves differently, a sample of 24
    often has no such prompt, and the interval covers 75 %.
    """
    top, bottom = np.asarray(numerators, float), np.asarray(denominators, float)  # (prompts,)
    n = len(top)
    if n < FEWEST:
        return None
    rows = np.random.default_rng(seed).integers(0, n, (resamples, n))
    estimate, error = _log_ratio(top[None], bottom[None])
    if error[0] <= 1e-12:  # every prompt has the same ratio
        return math.exp(estimate[0]), math.exp(estimate[0])
    estimates, errors = _log_ratio(top[rows], bottom[rows])
    # Where most prompts share one ratio, many resamples hold only those, and a division by their tiny error explodes.
    errors = np.maximum(errors, error * SMALLEST_ERROR_SHARE)
    quantiles = np.quantile((estimates - estimate) / errors, [0.025, 0.975])
    low, high = estimate[0] - error[0] * quantiles[::-1]
    return math.exp(low), math.exp(high)


def _log_ratio(top: np.ndarray, bottom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(resamples, prompts), twice -> the logs of the ratios of sums and their standard errors, (resamples,) each"""
    n = top.shape[1]
    tops, bottoms = top.sum(1, keepdims=True), bottom.sum(1, keepdims=True)
    influence = top / tops - bottom / bottoms  # sums to zero over the prompts
    return np.log(tops / bottoms)[:, 0], np.sqrt(n / (n - 1) * (influence**2).sum(1))
