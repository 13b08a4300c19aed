"""Solution 13: the batch and the knee."""

import math
from typing import NamedTuple


class Machine(NamedTuple):
    bandwidth: float  # bytes a second
    flops: float  # products and sums a second


class Model(NamedTuple):
    weights: float  # how many; two bytes each
    place_bytes: float  # keys and values of one token


def step_time(machine: Machine, model: Model, n_texts: int, width: int, context: int) -> float:
    reading = 2 * model.weights / machine.bandwidth
    arithmetic = 2 * model.weights * n_texts * width / machine.flops
    cache = n_texts * context * model.place_bytes / machine.bandwidth
    return max(reading, arithmetic) + cache


def best_k(
    machine: Machine, target: Model, draft: Model, n_texts: int, context: int, survival: list[float]
) -> tuple[int, float]:
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
    if speedups[0] <= 1:
        return batches[0]
    for i in range(1, len(batches)):
        if speedups[i] <= 1:
            share = (speedups[i - 1] - 1) / (speedups[i - 1] - speedups[i])
            low, high = math.log(batches[i - 1]), math.log(batches[i])
            return math.exp(low + share * (high - low))
    return None
