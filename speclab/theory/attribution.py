"""Why the measured speedup is what it is: two predictions and a ladder of factors. Pure: counts and costs in.

accounting  the rounds that were made, priced with calibrated costs. It is wrong only where the costs are.
forecast    the baseline's text, one pass of the draft over it, and the same costs. It sees no timed speculative run.

The ladder starts at the book's formula and changes one assumption at a time until it reaches the measurement; the
factor between two rungs is what that assumption is worth, and the last one is what none of them explains. Costs are
those of speclab/theory/costs.py, expectations those of speclab/theory/forecast.py.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from speclab.records.rows import Decoded, Noise, RoundCounts, Row, Rung
from speclab.theory.costs import Costs, catch_ups
from speclab.theory.forecast import AcceptProbs, Forecast, forecast
from speclab.theory.formulas import book_formula, expected_tokens_per_round, leviathan_speedup, ratio_interval
from speclab.theory.ladder import RUNGS


class Value(NamedTuple):
    """A number and its 95 % interval, None where fewer than three prompts were measured."""

    value: float
    low: float | None
    high: float | None


def decoding(row: Row) -> Value:
    """Return the speedup of decoding alone."""
    return Value(row.speedup, row.speedup_low, row.speedup_high)


Text = tuple[int, ...]  # new tokens


@dataclass
class PredictedSeconds:
    """The predicted seconds of one arm on one prompt, summed over repeats."""

    baseline: float = 0.0
    draft: float = 0.0  # seconds of the drafts in the rounds that were made
    verify: float = 0.0
    overhead: float = 0.0
    expected: float = 0.0  # seconds of the rounds that the forecast expects; 0 where there is no forecast
    expected_rounds: float = 0.0

    def __iadd__(self, other: "PredictedSeconds") -> "PredictedSeconds":
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        return self


def price(
    line: Decoded,
    baseline: Decoded,
    costs: Costs,
    accept_probs: Callable[[Text], AcceptProbs] | None = None,
    rounds_along: Callable[[Text], list[RoundCounts]] | None = None,
    lookup_costs: Costs | None = None,
) -> PredictedSeconds:
    """Compute both predictions for one arm on one prompt.

    accept_probs gives the draft's acceptance probabilities along a text of the baseline; rounds_along the rounds along
    it, for a draft whose proposals depend on the rounds before. Without either there is no forecast. lookup_costs: of
    the rounds in which the lookup of a hybrid draft proposes; without them a text along which it does has no forecast.
    """
    part = PredictedSeconds()
    for text, rounds in zip(baseline.texts, line.rounds, strict=True):
        part.baseline += sum(costs.step_seconds(line.n_prompt + i) for i in range(len(text) - 1))
        part += _of_rounds(rounds, line.n_prompt, costs, lookup_costs)
    for distinct, n_repeats in Counter(map(tuple, baseline.texts)).items():
        if accept_probs:
            found = expected(accept_probs(distinct), line.arm.draft_length, costs, line.n_prompt)
            seconds, n_rounds = found.cost, found.n_rounds
        elif rounds_along:
            rounds = rounds_along(distinct)
            if lookup_costs is None and any(made.looked_up for made in rounds):
                return replace(part, expected=0.0, expected_rounds=0.0)
            made = _of_rounds(rounds, line.n_prompt, costs, lookup_costs)
            seconds, n_rounds = made.draft + made.verify + made.overhead, len(rounds)
        else:
            break
        part.expected += n_repeats * seconds
        part.expected_rounds += n_repeats * n_rounds
    return part


def _of_rounds(rounds: list[RoundCounts], context: int, costs: Costs, lookup_costs: Costs | None) -> PredictedSeconds:
    """Price rounds, the first of which begins after `context` tokens."""
    part = PredictedSeconds()
    for (n_drafted, n_accepted, looked_up), catch_up in zip(rounds, catch_ups(rounds), strict=True):
        own = lookup_costs if looked_up and lookup_costs else costs
        part.draft += own.draft_seconds(n_drafted, context, 1 if looked_up else catch_up)
        part.verify += own.verify_seconds(n_drafted + 1, context)
        part.overhead += own.overhead_seconds(n_drafted, rejected=n_accepted < n_drafted)
        context += n_accepted + 1
    return part


def expected(accept_probs: AcceptProbs, draft_length: int, costs: Costs, n_prompt: int) -> Forecast:
    """Return the forecast in seconds. The context of a round grows with the new tokens committed before it."""

    def seconds(n_drafted: int, state: int) -> float:
        return costs.round_seconds(n_drafted, n_prompt + state - 1)

    return forecast(accept_probs, draft_length, seconds, costs.draft_catch, costs.replay)


def predictions(row: Row, part: PredictedSeconds) -> dict[str, Any]:
    """Return the fields that the prices add to a measured row: costs in decode steps, predictions, and the ladder."""
    step = part.baseline / row.n_emitted
    draft, verify, overhead = (s / row.n_rounds / step for s in (part.draft, part.verify, part.overhead))  # of a round
    added: dict[str, Any] = {
        "draft_cost": part.draft / row.n_drafted / step if row.n_drafted else None,
        "verify_cost": verify,
        "overhead": overhead,
        "accounting": part.baseline / (part.draft + part.verify + part.overhead),
        "forecast": part.baseline / part.expected if part.expected else None,
        "forecast_tokens_per_round": row.n_emitted / part.expected_rounds if part.expected else None,
    }
    acceptance_rate, k = row.acceptance_rate, row.draft_length
    # The formula and the ladder know one length and no branches.
    if acceptance_rate is None or not k or not part.expected or row.book_formula is None:
        return added
    tau = expected_tokens_per_round(acceptance_rate, k)
    model = tau / (draft + verify + overhead)
    speedups = [book_formula(acceptance_rate, k), tau, tau / (1 + draft), tau / (draft + verify), model]
    speedups += [added["forecast"], row.speedup]
    return added | {
        "leviathan": leviathan_speedup(acceptance_rate, k, added["draft_cost"]),
        "cost_model": model,
        "ladder": [Rung(name=name, speedup=value) for name, value in zip(RUNGS, speedups, strict=True)],
    }


# --- noise ------------------------------------------------------------------------------------------------------------

FURTHEST = 1.10  # a factor, in both directions; the floors of quiet machines reach 0.94 and 1.10


def noise_floor(baseline: list[Decoded], again: list[Decoded]) -> Noise | None:
    """Return the ratio of the baseline's time to that of its own second run on the same prompts, with a 95 % interval.
    None where there is no second run."""
    if not again or not baseline:
        return None
    seconds, of = {one.prompt_index: one.seconds for one in baseline}, baseline[0]
    tops, bottoms = [seconds[one.prompt_index] for one in again], [one.seconds for one in again]
    low, high = ratio_interval(tops, bottoms) or (None, None)
    ratio = sum(tops) / sum(bottoms)
    return Noise(temperature=of.temperature, ratio=ratio, low=low, high=high, n_texts=of.n_texts)


def verdict(
    speedup: float, low: float | None, high: float | None, floor: Noise | None = None
) -> Literal["faster", "unclear", "slower"]:
    """Say faster, slower, or unclear: the interval covers 1 or there is none, or the speedup is no further from 1 than
    the baseline may be from itself.

    low, high: the speedup's 95 % interval, None with fewer prompts than it needs. floor: `noise_floor` of the run.
    """
    own = reach(replace(floor, ratio=1.0)) if floor else 1.0
    if low is None or high is None or low <= 1 <= high or abs(math.log(speedup)) <= math.log(own):
        return "unclear"
    return "faster" if speedup > 1 else "slower"


def reach(floor: Noise) -> float:
    """Return the largest factor by which the baseline may differ from itself, at least 1: the further end of the
    interval, or of the ratio alone where there is none.

    >>> reach(Noise(temperature=0, ratio=1.0, low=0.8, high=1.1))
    1.25
    """
    ends = [end for end in (floor.ratio, floor.low, floor.high) if end is not None]
    return max(max(end, 1 / end) if end else math.inf for end in ends)


def too_wide(floors: Iterable[Noise]) -> Noise | None:
    """Return the noise floor that reaches furthest, where that is further than FURTHEST and speeds are rough; None
    where none does."""
    worst = max(floors, key=reach, default=None)
    return worst if worst is not None and reach(worst) > FURTHEST else None
