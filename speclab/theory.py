"""Formulas of speculative decoding: counts first, ratios second. Pure: no torch, no clock, no file.

Letters, the same in text, code, tables and plots:

    alpha   acceptance rate of a tested position (`acceptance_rate`)
    f       drafted fraction, accepted / drafted (`drafted_fraction`)
    tau     tokens per target pass (`tokens_per_round`)
    k       draft length
    c       cost of one draft step, v cost of a target pass of width k + 1, o everything else in a round;
            all in units of one decode step of the target
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Counts:
    """What happened in the rounds of one or more decodings, the prefill token apart."""

    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_rejected: int = 0
    n_emitted: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # accepted drafts in a round -> rounds

    def add(self, round_: Any) -> None:
        """Book a round (`tokens`, `n_drafted`, `n_accepted`, `n_rejected`, `prefill`)."""
        if round_.prefill:
            return
        self.n_rounds += 1
        self.n_drafted += round_.n_drafted
        self.n_accepted += round_.n_accepted
        self.n_rejected += round_.n_rejected
        self.n_emitted += len(round_.tokens)
        self.accepted_lengths[round_.n_accepted] += 1

    def merge(self, other: "Counts") -> None:
        """Add another decoding's counts to these."""
        for name in ("n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.accepted_lengths.update(other.accepted_lengths)

    @property
    def acceptance_rate(self) -> float | None:
        """alpha: accepted / tested, the maximum-likelihood estimate of a censored geometric. None: nothing tested.

        A round tests its drafts one by one up to the first refusal; drafts behind a refusal were never tested. Dividing
        by everything drafted gives f, a different and smaller number.
        """
        return _ratio(self.n_accepted, self.n_accepted + self.n_rejected)

    @property
    def drafted_fraction(self) -> float | None:
        """f: accepted / drafted. What serving engines print as acceptance rate. None: nothing drafted."""
        return _ratio(self.n_accepted, self.n_drafted)

    @property
    def tokens_per_round(self) -> float | None:
        """tau: tokens per target pass, between 1 and k + 1. None: no round."""
        return _ratio(self.n_emitted, self.n_rounds)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def book_formula(acceptance: float, draft_length: int) -> float:
    """The book's speedup 1 / (1 - a + a / k): Amdahl's law, share `acceptance` sped up k-fold.

    Blind to the draft's cost, to the cost of verifying and to the bonus token; at k = 1 it always says 1, and it grows
    with k for ever. Exact only where rounds are all or nothing and `acceptance` is the share of output tokens that came
    from fully accepted rounds. With alpha = per-position acceptance and free drafting it is a lower bound.

    >>> [round(book_formula(a, k), 2) for a, k in [(0.7, 4), (0.8, 4), (0.7, 8), (0.8, 8)]]
    [2.11, 2.5, 2.58, 3.33]
    """
    _check(acceptance, draft_length, smallest=1)
    return 1 / (1 - acceptance + acceptance / draft_length)


def expected_tokens_per_round(acceptance: float, draft_length: int) -> float:
    """tau if every tested position accepts independently: (1 - a^(k+1)) / (1 - a).  Leviathan et al. 2211.17192, eq. 1

    >>> round(expected_tokens_per_round(0.8, 8), 2)
    4.33
    """
    _check(acceptance, draft_length)
    return sum(acceptance**i for i in range(draft_length + 1))


def expected_drafted_fraction(acceptance: float, draft_length: int) -> float:
    """f under the same assumption: (tau - 1) / k."""
    _check(acceptance, draft_length, smallest=1)
    return (expected_tokens_per_round(acceptance, draft_length) - 1) / draft_length


def leviathan_speedup(acceptance: float, draft_length: int, draft_cost: float) -> float:
    """tau / (1 + k c): a pass of width k + 1 costs one decode step, nothing else costs.  2211.17192, theorem 3.8"""
    return expected_tokens_per_round(acceptance, draft_length) / (1 + draft_length * draft_cost)


def cost_model_speedup(
    tokens_per_round: float, drafted_per_round: float, draft_cost: float, verify_cost: float, overhead: float
) -> float:
    """The accounting identity tau / (k c + v + o), costs in decode steps of the target. No probability in it."""
    return tokens_per_round / (drafted_per_round * draft_cost + verify_cost + overhead)


def _check(acceptance: float, draft_length: int, smallest: int = 0) -> None:
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must lie in 0 … 1, got {acceptance}")
    if draft_length < smallest:
        raise ValueError(f"draft length must be at least {smallest}, got {draft_length}")


SMALLEST_ERROR_SHARE = 0.3  # floor of a resample's standard error, as a share of the sample's own


def ratio_interval(
    numerators: list[float], denominators: list[float], level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """Bootstrap-t interval of sum(numerators) / sum(denominators) over paired prompts; None below 3 prompts.

    Studentised on the log ratio with the delta method's standard error: covers 94-95 % at 10-50 prompts where the
    percentile bootstrap covers 89-94 % (Efron & Tibshirani 1993, ch. 12).
    """
    top, bottom = np.asarray(numerators, float), np.asarray(denominators, float)  # (prompts,)
    n = len(top)
    if n < 3:
        return None
    rows = np.random.default_rng(seed).integers(0, n, (resamples, n))
    estimate, error = _log_ratio(top[None], bottom[None])
    if error[0] <= 1e-12:  # every prompt has the same ratio
        return math.exp(estimate[0]), math.exp(estimate[0])
    estimates, errors = _log_ratio(top[rows], bottom[rows])
    # Where most prompts share one ratio, many resamples hold only those, and a division by their tiny error explodes.
    errors = np.maximum(errors, error * SMALLEST_ERROR_SHARE)
    quantiles = np.quantile((estimates - estimate) / errors, [(1 - level) / 2, (1 + level) / 2])
    low, high = estimate[0] - error[0] * quantiles[::-1]
    return math.exp(low), math.exp(high)


def _log_ratio(top: np.ndarray, bottom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(resamples, prompts) twice -> log of the ratio of sums and its standard error, (resamples,) each"""
    n = top.shape[1]
    tops, bottoms = top.sum(1, keepdims=True), bottom.sum(1, keepdims=True)
    influence = top / tops - bottom / bottoms  # sums to zero over the prompts
    return np.log(tops / bottoms)[:, 0], np.sqrt(n / (n - 1) * (influence**2).sum(1))
