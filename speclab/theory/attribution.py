"""Why the measured speedup is what it is: two predictions and a ladder of factors. Pure: counts and costs in.

accounting  the rounds that were made, priced with calibrated costs. It is wrong only where the costs are.
forecast    the baseline's text, one pass of both models over it, and the same costs. It sees no timed row. Greedy, at a
            fixed length and with the same text, it is the accounting.

The ladder starts at the book's formula and changes one assumption at a time until it reaches the measurement; the
factor between two rungs is what that assumption is worth, and the last one is what none of them explains. So the
factors multiply to measured / book.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import median
from typing import Any

from speclab.records.rows import Decoded, Noise, RoundCounts, Row, Rung, Verdict
from speclab.theory.costs import Costs, catch_ups
from speclab.theory.formulas import AcceptProbs, Forecast, expected_tokens_per_round, forecast, leviathan_speedup

Text = tuple[int, ...]  # new tokens
FURTHEST = 1.10  # reach of a noise floor beyond which speeds are rough; those of quiet machines reach 0.94 and 1.10
EFFECTS = {  # what one rung of the ladder adds
    "bonus and partial drafts": "partly right drafts and the bonus token count",
    "draft cost": "the draft takes time for every token it proposes",
    "verification": "a target pass over k + 1 tokens may take longer than one over a token",
    "overhead": "accepting, rolling back, and the loop around them take time",
    "real acceptance": "right drafts come in streaks, drafts may be shorter than k, and texts end",
    "all else": "what the effects before it do not account for: errors of the costs, noise and, when sampling, draws",
}
RUNGS = ("book formula", *EFFECTS)
# Columns of a row that predict its speedup, best informed first -> what tables and pictures call them.
PREDICTORS = {
    "accounting": "accounting",
    "forecast": "forecast",
    "leviathan": "Leviathan",
    "book_formula": "book(α)",
    "book_formula_drafted_fraction": "book(f)",
}


@dataclass
class PredictedSeconds:
    """The predicted seconds of one arm on one prompt, summed over repeats."""

    baseline: float = 0.0  # as its steps cost, not as it was timed
    draft: float = 0.0  # of the drafts in the rounds that were made
    verify: float = 0.0
    overhead: float = 0.0
    expected: float = 0.0  # of the rounds that the forecast expects; 0 where there is no forecast
    expected_rounds: float = 0.0

    def __iadd__(self, other: "PredictedSeconds") -> "PredictedSeconds":
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        return self


def price(
    line: Decoded,
    baseline: Decoded,
    costs: Costs,
    probs_along: Callable[[Text], AcceptProbs] | None = None,
    rounds_along: Callable[[Text], list[RoundCounts]] | None = None,
    lookup_costs: Costs | None = None,
) -> PredictedSeconds | None:
    """Compute both predictions for one arm on one prompt.

    probs_along gives the draft's acceptance probabilities along a text of the baseline; rounds_along the rounds along
    it, for a draft whose proposals depend on the rounds before. Without either there is no forecast. lookup_costs: of
    rounds of a hybrid's lookup; without them there is no prediction where it drafted, no forecast where it would.
    """
    n, texts = line.n_prompt, [tuple(text) for text in baseline.texts]
    along = [rounds_along(text) for text in texts] if rounds_along else []
    probs = [probs_along(text) for text in texts] if probs_along else []
    if lookup_costs is None and any(made.looked_up for rounds in line.rounds for made in rounds):
        return None
    if lookup_costs is None and any(made.looked_up for rounds in along for made in rounds):
        along = []
    part = PredictedSeconds(sum(sum(costs.step_seconds(n + i) for i in range(len(text) - 1)) for text in texts))
    for rounds in line.rounds:
        part += _of_rounds(rounds, n, costs, lookup_costs)
    for rounds in along:
        made = _of_rounds(rounds, n, costs, lookup_costs)
        part += PredictedSeconds(expected=made.draft + made.verify + made.overhead, expected_rounds=len(rounds))
    for rows in probs:
        found = expected(rows, line.arm.draft_length, costs, n)
        part += PredictedSeconds(expected=found.cost, expected_rounds=found.n_rounds)
    return part


def _of_rounds(rounds: list[RoundCounts], context: int, costs: Costs, lookup_costs: Costs | None) -> PredictedSeconds:
    """Price rounds, the first of which begins after `context` tokens."""
    part = PredictedSeconds()
    for (n_drafted, n_accepted, looked_up), catch_up in zip(rounds, catch_ups(rounds), strict=True):
        own = lookup_costs if looked_up and lookup_costs else costs
        part.draft += own.draft_seconds(n_drafted, context, catch_up)
        part.verify += own.verify_seconds(n_drafted + 1, context)
        part.overhead += own.overhead_seconds(n_drafted, rejected=n_accepted < n_drafted)
        context += n_accepted + 1
    return part


def expected(accept_probs: AcceptProbs, draft_length: int, costs: Costs, n_prompt: int) -> Forecast:
    """Return the forecast in seconds. The context of a round grows with the new tokens committed before it."""
    return forecast(
        accept_probs,
        draft_length,
        lambda n, t: costs.round_seconds(n, n_prompt + t - 1),
        costs.draft_catch,
        costs.replay,
    )


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
    if acceptance_rate is None or row.book_formula is None or not part.expected:
        return added
    tau = expected_tokens_per_round(acceptance_rate, k)
    model = tau / (draft + verify + overhead)
    speedups = [row.book_formula, tau, tau / (1 + draft), tau / (draft + verify), model, added["forecast"], row.speedup]
    return added | {
        "leviathan": leviathan_speedup(acceptance_rate, k, added["draft_cost"]),
        "cost_model": model,
        "ladder": [Rung(name=name, speedup=value) for name, value in zip(RUNGS, speedups, strict=True)],
    }


def verdict(speedup: float, low: float | None, high: float | None, floor: Noise | None = None) -> Verdict:
    """Say faster, slower, or unclear: the 95 % interval covers 1 or there is none, or the speedup is no further from 1
    than the baseline may be from itself, by the interval of its noise floor."""
    own = reach(replace(floor, ratio=1.0)) if floor else 1.0
    if low is None or high is None or low <= 1 <= high or abs(math.log(speedup)) <= math.log(own):
        return "unclear"
    return "faster" if speedup > 1 else "slower"


def reach(floor: Noise) -> float:
    """Return the largest factor, at least 1, by which the baseline may differ from itself, by ratio or interval."""
    ends = [end for end in (floor.ratio, floor.low, floor.high) if end is not None]
    return max(max(end, 1 / end) if end else math.inf for end in ends)


def factors(row: Row) -> dict[str, float]:
    """Return the factor by which each of EFFECTS multiplies the speedup; empty for a row without a ladder. The last two
    rungs are the row's forecast and its speedup, which older records name otherwise."""
    by_name = {rung.name: rung.speedup for rung in row.ladder or []}
    if not by_name or row.forecast is None:
        return {}
    speedups = [*(by_name[name] for name in RUNGS[:-2]), row.forecast, row.speedup]
    return {name: after / before for name, (before, after) in zip(EFFECTS, pairwise(speedups), strict=True)}


def prediction_errors(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return a dict: predictor -> {"n": rows it predicts, "median": of |error|, "max": of |error|}. The error is
    predicted / measured - 1. Each prompt counts once: in the rows of the kinds of prompts, or else in those of "all".
    Predictors without rows are left out."""
    summary = {}
    for predictor in PREDICTORS:
        known = [row for row in rows if row.draft and getattr(row, predictor) is not None]
        counted = [row for row in known if row.prompt_kind != "all"] or known
        if misses := [abs(getattr(row, predictor) / row.speedup - 1) for row in counted]:
            summary[predictor] = {"n": len(misses), "median": median(misses), "max": max(misses)}
    return summary
