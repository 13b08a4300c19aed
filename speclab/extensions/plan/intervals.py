"""How sure is a plan of the draft length that it takes? Pure.

What a plan expects rests on a few prompts: their texts and the calibration that ran beside them. A draft length that
looks best may be so by chance, so every other one is held against it: its expected seconds over those of the best, with
a 95 % interval over prompts. Two lengths share most of their noise, so their quotient is known much better than either.

How the interval is made: what a prompt adds to an expectation is the expectation of all prompts less that of all
others, where costs are calibrated without the prompt, too. So it holds the seconds of the prompt's own text, and what
its calibration did to the seconds of all texts. `ratio_interval` then resamples prompts, the same for both lengths.

What it covers, simulated for eight lengths that are equally fast, with 3 to 30 prompts (test_intervals.py):
a length is told apart from one that was named before in 3 to 7 % of all plans. The best was not named before, noise
made it the best, and from it a length is told apart in 7 to 14 %. Where only the seconds of the texts were resampled,
and prompts scatter by 15 % in the costs of a length, it would be more than half.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from speclab.theory.costs import Costs
from speclab.theory.forecast import AcceptProbs, expected_rounds
from speclab.theory.formulas import ratio_interval

FEWEST = 3  # prompts with which there is an interval
SMALLEST_SHARE = 0.001  # of an average prompt: what a prompt adds is never less, so that sums have a logarithm


# --- costs of many rounds at once -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """The expected work of a decoding, in the terms that seconds are linear in. Works of several texts add up."""

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
        """Return the expected seconds of all of it, as theory/forecast.py adds them up round by round."""
        seconds_by_length = [costs.round_seconds(n, 0) for n in range(len(self.by_length))]
        growing = costs.verify_slope * self.context + costs.draft_slope * self.drafted_context
        return (
            float(self.by_length @ seconds_by_length)
            + growing
            + costs.draft_catch * self.full
            + costs.replay * self.rejected
        )


def work_of_text(probs: AcceptProbs, n_prompt: int, draft_length: int, longest: int) -> Work:
    """Return the work of decoding one text after `n_prompt` tokens. longest: the largest draft length of the works to
    add up."""
    n_drafted, visits, full, rejected = expected_rounds(probs, len(probs), draft_length)
    contexts = n_prompt + np.arange(len(visits))  # of the rounds that begin in state 1, 2, …
    return Work(
        np.bincount(n_drafted, visits, longest + 1),
        float(visits @ contexts),
        float((visits * n_drafted) @ contexts),
        float(visits @ full),
        float(visits @ rejected),
    )


# --- how sure it is ---------------------------------------------------------------------------------------------------


def added(everything: ArrayLike, without: ArrayLike) -> np.ndarray:
    """Return the amount that each prompt adds to sums of seconds.

    everything (sums,): the sums over all prompts. without (prompts, sums): the same without each prompt.  -> (prompts,
    sums)
    """
    total, rest = np.asarray(everything, float), np.asarray(without, float)
    return np.maximum(total - rest, SMALLEST_SHARE / max(1, len(rest)) * total)


def interval(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of sum(numerators) / sum(denominators), (prompts,) each; None twice with fewer than
    FEWEST."""
    return ratio_interval(numerators.tolist(), denominators.tolist()) or (None, None)
