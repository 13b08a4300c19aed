"""Solution 13: the batch and the knee.

Chapter: docs/chapters/13-batch-knee.md. Check: python check.py 13 --impl solutions
"""

import math
from typing import NamedTuple


class Machine(NamedTuple):
    """A processor as its data sheet has it."""

    bandwidth: float  # bytes a second
    flops: float  # products and sums a second


class Model(NamedTuple):
    """A model by its sizes."""

    weights: float  # how many; two bytes each
    place_bytes: float  # keys and values of one token


def step_time(machine: Machine, model: Model, n_texts: int, width: int, context: int) -> float:
    """Seconds of a pass over `width` tokens of each of `n_texts` texts, `context` tokens before them in each.

    All weights are read once, and every token is multiplied with each of them: a product and a sum. Reading and
    arithmetic go on at the same time, so the longer one counts. Then each text's keys and values are read, once for all
    of its tokens in this pass; attention's arithmetic is left out.

    >>> step_time(Machine(2e12, 300e12), Model(8e9, 1e5), 1, 1, 0)
    0.008
    >>> step_time(Machine(2e12, 300e12), Model(8e9, 1e5), 300, 1, 0)
    0.016
    """
    reading = 2 * model.weights / machine.bandwidth
    arithmetic = 2 * model.weights * n_texts * width / machine.flops
    cache = n_texts * context * model.place_bytes / machine.bandwidth
    return max(reading, arithmetic) + cache


def best_k(
    machine: Machine, target: Model, draft: Model, n_texts: int, context: int, survival: list[float]
) -> tuple[int, float]:
    """The draft length with the most tokens a second for a batch of `n_texts`, and its speedup over plain decoding.

    survival: how likely the first 1, 2, ... drafted tokens of a text are all accepted; no draft is longer than that. A
    round of length k: k passes of the draft over one token of each text, then one of the target over k + 1. Plain
    decoding is length 0 with speedup 1. Of equally fast lengths the shortest is the answer.

    >>> best_k(Machine(2e12, 300e12), Model(8e9, 1e5), Model(1e9, 1e4), 1, 0, [0.8, 0.64])
    (2, 1.952)
    >>> best_k(Machine(2e12, 300e12), Model(8e9, 1e5), Model(1e9, 1e4), 300, 0, [0.8, 0.64])
    (0, 1.0)
    """
    step = step_time(machine, target, n_texts, 1, context)
    drafting = step_time(machine, draft, n_texts, 1, context)
    best, highest = 0, 1.0
    tokens = 1.0  # the target's own token comes whatever happens
    for k, share in enumerate(survival, start=1):
        tokens += share
        round_ = k * drafting + step_time(machine, target, n_texts, k + 1, context)
        speedup = tokens * step / round_
        if speedup > highest:
            best, highest = k, speedup
    return best, highest


def knee(batches: list[int], speedups: list[float]) -> float | None:
    """The batch at which the best speedup falls to 1 for the first time; None where it does not up to the last one.

    batches: ascending. speedups: of each the best over all draft lengths, drafts of no token left out, so that they go
    below 1. Between the first batch that is not above 1 and the one before it the speedup is taken as a straight line
    over the logarithm of the batch; later ones do not matter. Where the first batch gains nothing, it is the answer.

    >>> round(knee([1, 4, 16], [2.0, 1.5, 0.5]), 6), knee([1, 2], [2.0, 1.5]), knee([2, 4], [0.9, 0.8])
    (8.0, None, 2)
    """
    if speedups[0] <= 1:
        return batches[0]
    for i in range(1, len(batches)):
        if speedups[i] <= 1:
            share = (speedups[i - 1] - 1) / (speedups[i - 1] - speedups[i])
            low, high = math.log(batches[i - 1]), math.log(batches[i])
            return math.exp(low + share * (high - low))
    return None
