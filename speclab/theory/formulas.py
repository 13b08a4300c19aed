"""Formulas of speculative decoding; the expected number of rounds of a decoding, and their cost, without running it;
and the interval of a ratio. Pure: numpy, no torch, no clock, no file.

Letters, the same in text, code, tables and plots:

    α       acceptance rate of a tested position (`acceptance_rate`)
    f       drafted fraction, accepted / drafted (`drafted_fraction`)
    tau     tokens per target pass (`tokens_per_round`)
    k       draft length
    c       cost of one draft step, v cost of a target pass of width k + 1, o everything else in a round;
            all in units of one decode step of the target

Once the target's text is known, a drafted token is accepted with a probability that is known too, whatever happened in
the rounds before:

    model draft, sampling   min(1, draft_probs[token] / target_probs[token]) for the token that the target has there
    model draft, greedy     1 where both have the same first choice, else 0
    n-gram                  1 where the proposal is the token that the target has there, else 0

So the baseline's text and one pass of the draft model over it give the exact expectation of every count at every draft
length. No average acceptance rate is involved. That matters: hard places come in groups, and the formula for
independent positions with the same average promises several per cent too much.

A state t is the number of new tokens committed so far. Token 0 comes from prefill, so decoding starts in state 1 and
ends in state N, the length of the text. `accept_probs[t][n]` is the probability that the n-th token (from 0) of a
proposal made in state t is accepted, given that those before it were. Proposals may be shorter than the draft length.

Not covered: accept rules that judge several drafted tokens together, drafts with branches or that learn from the rounds
before, and an end token that stops the text before N tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

AcceptProbs = Sequence[Sequence[float]]  # by state; asked for the first n of a row, a row answers for a draft of n
Cost = Callable[[int, int], float]  # (tokens drafted, state) -> cost of that round, in any unit


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


class Forecast(NamedTuple):
    """Expectations over one decoding, the prefill token apart."""

    cost: float  # in the unit of `round_cost`; without one the number of rounds
    n_rounds: float
    n_drafted: float
    n_tested: float  # accepted and rejected: drafts after a rejection are never tested
    n_accepted: float
    n_rejected: float  # rounds in which not all drafts are accepted


def forecast(
    accept_probs: AcceptProbs,
    draft_length: int,
    round_cost: Cost = lambda n_drafted, state: 1.0,
    full_round_extra: float = 0.0,
    rejected_round_extra: float = 0.0,
) -> Forecast:
    """Return exact expectations of decoding with this draft length, up to as many tokens as there are rows of
    acceptance probabilities, each in 0 … 1: no round drafts more than what is left but one.

    full_round_extra: what a round costs more because the round before accepted all it drafted (at least one): the
    draft then has two tokens to read. A round that drafts nothing does not have this extra, and neither has the first.
    rejected_round_extra: what a round costs more in which not all drafts are accepted: some targets replay then.
    """
    n_tokens = len(accept_probs)
    rows = [accept_probs[t][: min(draft_length, n_tokens - t - 1)] for t in range(1, n_tokens)]
    lengths, visits, full, rejected, survival = _visits(rows)
    costs = np.array([round_cost(int(n), 1 + i) for i, n in enumerate(lengths)], dtype=float)
    accepted = survival[:, 1:].sum(1)
    tested = survival.sum(1) - survival[np.arange(len(rows)), lengths]  # a draft is tested if all before it passed
    return Forecast(
        cost=float(visits @ (costs + full_round_extra * full + rejected_round_extra * rejected)),
        n_rounds=float(visits.sum()),
        n_drafted=float(visits @ lengths),
        n_tested=float(visits @ tested),
        n_accepted=float(visits @ accepted),
        n_rejected=float(visits @ rejected),
    )


def _visits(rows: list[Sequence[float]]) -> tuple[np.ndarray, ...]:
    """Return for every state that a round may begin in, (states,) each: tokens drafted, the probability that a round
    begins there, that it accepts all of at least one and the next round drafts, and that it does not accept all of
    them; and (states, longest + 1) the probability that at least 0, 1, … drafts are accepted."""
    n_states = len(rows)
    lengths = np.array([len(row) for row in rows], dtype=int)
    longest = lengths.max(initial=0)
    survival = np.zeros((n_states, longest + 1))  # 0 past the end of a row
    survival[:, 0] = 1
    for i, row in enumerate(rows):
        survival[i, 1 : len(row) + 1] = row
    if not ((survival >= 0) & (survival <= 1)).all():
        raise ValueError("acceptance probabilities must lie in 0 … 1")
    survival = survival.cumprod(1)
    outcome = survival - np.pad(survival[:, 1:], ((0, 0), (0, 1)))  # probability of exactly 0, 1, … accepted

    # Probability that a round begins in state 1 + i; after the end none does.
    visits = np.zeros(n_states + longest + 1)
    visits[:1] = 1
    for i in range(n_states):
        visits[i + 1 : i + longest + 2] += visits[i] * outcome[i]
    visits = visits[:n_states]

    accepts_all = survival[np.arange(n_states), lengths]  # 1 where nothing is drafted
    follows = np.append(lengths, 0)[np.minimum(np.arange(n_states) + lengths + 1, n_states)] > 0
    full = accepts_all * (lengths > 0) * follows  # the round after a full one may not draft at all
    return lengths, visits, full, 1 - accepts_all, survival


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
