"""The cost of a round of a batch, and the batch at which speculation stops paying. Numbers only: no torch, no clock.

A pass over n texts of w tokens each multiplies every weight with n * w tokens, and every text has keys and values of
its own to read. So, with C tokens of context in each text,

    t(n, w, C) = t(1, n * w, C0) + a * (n * C - C0) + b * n * w * (C - C0)

t(1, m, C0)   a pass over one text of m tokens: the weights are read once for all, and arithmetic grows with m
a             seconds to read keys and values of one place of one text, bytes / bandwidth
b             seconds of attention's arithmetic for one token that reads one place

While reading the weights takes most of the time, more tokens in a pass cost nothing, and drafted tokens are verified
for free. A large batch removes this gain: from n * w = flops / bandwidth on (for weights of two bytes) every drafted
token costs what a token of another text would. A long context restores it: a is paid once for a text, not for every
token. MagicDec, arXiv 2408.11049.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from speclab.extensions.batch.batch_record import MachineEntry
from speclab.theory.knees import knee_of


@dataclass(frozen=True)
class PassCosts:
    """The costs of the passes of a model.

    widths, seconds: passes over one text after `context` tokens, in ascending order. Between two widths, and beyond the
    last one, the curve is a straight line. per_place: seconds to read the keys and values of one place. per_pair:
    seconds of attention for one token that reads one place.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    context: float
    per_place: float
    per_pair: float

    def of(self, n_texts: int, width: int, context: float) -> float:
        """The seconds of a pass over `width` tokens of each of `n_texts` texts with `context` tokens each."""
        places = n_texts * context - self.context
        pairs = n_texts * width * (context - self.context)
        return max(0.0, self._of_one(n_texts * width) + self.per_place * places + self.per_pair * pairs)

    def _of_one(self, width: int) -> float:
        if width <= self.widths[-1] or len(self.widths) == 1:
            return float(np.interp(width, self.widths, self.seconds))
        (w0, w1), (s0, s1) = self.widths[-2:], self.seconds[-2:]
        return s1 + (width - w1) * (s1 - s0) / (w1 - w0)


def costs_of_places(short: Mapping[int, float], long: Mapping[int, float], n_more: int) -> tuple[float, float]:
    """The seconds for a place, and for a token that reads a place, from passes over one text.

    short, long: width -> seconds after a context, and after `n_more` tokens more; the same two widths or more. A
    straight line through the differences; neither is negative.

    >>> costs_of_places({1: 1.0, 5: 2.0}, {1: 1.3, 5: 2.7}, 100)
    (0.002, 0.001)
    """
    widths = sorted(short)
    more = [(long[width] - short[width]) / n_more for width in widths]
    per_pair, per_place = np.polyfit(widths, more, 1)
    if per_place < 0 or per_pair < 0:  # noise: all of it belongs to the other one
        if per_place < per_pair:
            per_place, per_pair = 0.0, max(0.0, float(np.dot(widths, more) / np.dot(widths, widths)))
        else:
            per_place, per_pair = max(0.0, float(np.mean(more))), 0.0
    return round(float(per_place), 15), round(float(per_pair), 15)


class Machine(NamedTuple):
    """The speed of a processor, from its data sheet."""

    name: str
    flops: float  # a second, dense, in the weights' format
    bandwidth: float  # bytes a second


class Model(NamedTuple):
    """The sizes of a model, with two bytes for each number."""

    name: str
    n_weights: float  # that every pass reads
    bytes_per_place: float  # keys and values of a token
    flops_per_pair: float  # attention's products for one token that reads one place


A100 = Machine("A100 80 GB SXM", 312e12, 2.039e12)
H100 = Machine("H100 SXM", 989e12, 3.35e12)
# From the published configurations: weights without the embedding; layers * kv heads * head width; layers * width.
LLAMA_8B = Model("Llama 3.1 8B", 7.5e9, 2 * 2 * 32 * 8 * 128, 4 * 32 * 4096)
LLAMA_1B = Model("Llama 3.2 1B", 1.24e9, 2 * 2 * 16 * 8 * 64, 4 * 16 * 2048)


def step_time(machine: Machine, model: Model, n_tokens: float, n_places: float, n_pairs: float) -> float:
    """Seconds of a pass from the data sheet: the longer of reading the weights and multiplying with them, then
    attention, which reads `n_places` places and makes `n_pairs` pairs of a token and a place.

    >>> round(1e3 * step_time(A100, LLAMA_8B, 1, 0, 0), 2), round(1e3 * step_time(A100, LLAMA_8B, 512, 0, 0), 2)
    (7.36, 24.62)
    """
    weights = max(2 * model.n_weights / machine.bandwidth, 2 * model.n_weights * n_tokens / machine.flops)
    attention = max(
        n_places * model.bytes_per_place / machine.bandwidth, n_pairs * model.flops_per_pair / machine.flops
    )
    return weights + attention


def lockstep_tokens(survival: Sequence[float], n_texts: int, drafts: float = 1.0) -> float:
    """The tokens that each text gets in a round where all keep as many as the one that keeps fewest.

    survival: how likely the first 1, 2, ... tokens of a text are drafted and all accepted; texts do not depend on each
    other. drafts: how likely a text has a draft at all; one without keeps no other from going on.

    >>> lockstep_tokens([0.8, 0.6], 1), round(lockstep_tokens([0.8, 0.6], 2), 2)
    (2.4, 2.0)
    >>> round(lockstep_tokens([0.4, 0.3], 2, drafts=0.5), 2)
    1.6
    """
    return 1 + sum(share * (1 - drafts + share) ** (n_texts - 1) for share in survival)


def catches_up(full_share: float, n_texts: int) -> float:
    """The probability that some text of a batch had its whole draft accepted, so that a draft model lacks two of its
    tokens."""
    return 1 - (1 - full_share) ** n_texts


# --- the batches at which speculation stops paying on machines that are known only from a data sheet ------------------

ON_MACHINES = (512, 4096, 16384)  # tokens of context
MACHINE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def on_machines(draft: str, survival: list[float]) -> list[MachineEntry]:
    """Data sheets predict this for a target of 8 billion weights with a draft of one billion, at this acceptance.

    survival: how likely the first 1, 2, ... drafted tokens are all accepted.
    """
    target, small = LLAMA_8B, LLAMA_1B
    entries = []
    for machine in (A100, H100):
        for context in ON_MACHINES:

            def seconds(model: Model, n: int, width: int, machine=machine, context=context) -> float:
                return step_time(machine, model, n * width, n * context, n * width * context)

            speedups = {}
            for n in MACHINE_BATCHES:
                for k in range(1, len(survival) + 1):
                    tokens = lockstep_tokens(survival[:k], 1)
                    round_ = k * seconds(small, n, 1) + seconds(target, n, k + 1)
                    speedups[n, k] = tokens * seconds(target, n, 1) / round_
            knee = knee_of(draft, context, "predicted", speedups)
            entries.append(
                MachineEntry(
                    machine=machine.name,
                    models=f"{target.name} with {small.name}",
                    context=context,
                    batch=knee.batch,
                    below=knee.below,
                    best=knee.best,
                )
            )
    return entries
