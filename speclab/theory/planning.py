"""Which draft length to take, from expected speedups that are known only roughly. Pure.

What a plan expects rests on a few prompts: their texts and the calibration that ran beside them. The jackknife (Efron &
Tibshirani 1993, ch. 11) leaves out one prompt at a time, texts and calibration together, and expects anew; how far that
moves the logarithm of a speedup, or of the quotient of two, gives its standard error. Two lengths share most of their
noise, so their quotient is known much better than either.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from speclab.theory.costs import Costs
from speclab.theory.forecast import AcceptProbs, expected_rounds

FEWEST = 3  # prompts with which there is a band
LEVEL = 1.959964  # of a normal distribution: 95 %


# --- costs of many rounds at once -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What a decoding is expected to do, in the terms that seconds are linear in. Works of several texts add up."""

    by_length: np.ndarray  # (longest + 1,) rounds that draft 0 … longest tokens
    context: float  # of all rounds together: tokens in the target's cache
    drafted_context: float  # the same, times the tokens drafted
    full: float  # rounds after which the draft has one more token to take in
    rejected: float  # rounds in which not all drafts are accepted, after which recurrent layers replay

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __sub__(self, other: "Work") -> "Work":
        return Work(*(a - b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def seconds(self, costs: Costs) -> float:
        """Expected seconds of all of it; what theory/forecast.py adds up round by round."""
        of_round = [costs.round_seconds(n, 0) for n in range(len(self.by_length))]
        growing = costs.verify_slope * self.context + costs.draft_slope * self.drafted_context
        return float(self.by_length @ of_round) + growing + costs.draft_catch * self.full + costs.replay * self.rejected


def work_of_text(probs: AcceptProbs, n_prompt: int, draft_length: int, longest: int) -> Work:
    """Work of decoding one text after `n_prompt` tokens. longest: the largest draft length of the works to add up."""
    n_drafted, visits, full, rejected = expected_rounds(probs, len(probs), draft_length)
    contexts = n_prompt + np.arange(len(visits))  # of the rounds that begin in state 1, 2, …
    return Work(
        np.bincount(n_drafted, visits, longest + 1),
        float(visits @ contexts),
        float((visits * n_drafted) @ contexts),
        float(visits @ full),
        float(visits @ rejected),
    )


# --- the choice -------------------------------------------------------------------------------------------------------


class Band(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Choice(NamedTuple):
    """What to do. `pays`: whether the taken length is faster than plain decoding, as far as that is known."""

    take: int  # index of the length
    best: int  # index of the length with the highest expectation
    same: tuple[int, int]  # first and last index of the stretch around it that cannot be told apart from it
    pays: Literal["yes", "unclear", "no"]


def student(degrees: int) -> float:
    """The 97.5 % point of Student's t, within 3.1 % from 2 degrees of freedom on (Cornish and Fisher 1960).

    >>> [round(student(n), 2) for n in (5, 11, 29)]
    [2.57, 2.2, 2.05]
    """
    z, n = LEVEL, degrees
    terms = (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return z + terms + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)


def margin(left_out: np.ndarray) -> np.ndarray:
    """Half of the 95 % interval of estimates, from the same estimates with one prompt left out at a time.

    left_out (prompts, estimates)  -> (estimates,)
    """
    n = len(left_out)
    return student(n - 1) * np.sqrt((n - 1) * left_out.var(0))


def bands(speedups: Sequence[float], left_out: Sequence[Sequence[float]]) -> list[Band] | None:
    """The interval of each expected speedup; None with fewer than FEWEST prompts.

    speedups: one for each length. left_out: the same for each prompt that was left out.
    """
    if len(left_out) < FEWEST:
        return None
    half = margin(np.log(np.asarray(left_out, float)))
    return [Band(s * math.exp(-h), s * math.exp(h)) for s, h in zip(speedups, half, strict=True)]


def choose(lengths: Sequence[int], speedups: Sequence[float], left_out: Sequence[Sequence[float]]) -> Choice:
    """The shortest length that cannot be told apart from the best, and is faster than plain decoding if any is.

    lengths: increasing. The stretch of equals ends, on both sides of the best, at the first length that is worse; a
    length of 0 is plain decoding and never among them. Without bands the best is taken, and `pays` is what it seems.
    """
    best = max(range(len(lengths)), key=lambda i: speedups[i])
    of_lengths = bands(speedups, left_out)
    if of_lengths is None:
        return Choice(best, best, (best, best), "yes" if lengths[best] and speedups[best] > 1 else "no")
    logs = np.log(np.asarray(left_out, float))  # (prompts, lengths)
    behind = np.log(speedups[best]) - np.log(np.asarray(speedups))  # (lengths,)
    same = behind <= margin(logs[:, [best]] - logs)
    first = last = best
    while first > 0 and same[first - 1] and lengths[first - 1] and lengths[best]:
        first -= 1
    while last + 1 < len(lengths) and same[last + 1]:
        last += 1
    faster = [i for i in range(first, last + 1) if lengths[i] and of_lengths[i].low > 1]
    if faster:
        return Choice(faster[0], best, (first, last), "yes")
    pays: Literal["unclear", "no"] = "unclear" if lengths[best] and speedups[best] > 1 else "no"
    return Choice(first if pays == "unclear" else best, best, (first, last), pays)
