"""The costs in seconds of the phases of a round. Pure: numpy, no torch. speclab/theory/fitting.py fits them to rounds.

A speedup is a quotient of two sums of seconds. To explain one, you need the seconds of every round as a function of
what the round did:

    verify    verify_at[width] + verify_slope context        one curve for a run, scaled for every temperature;
                                                             where the draft runs a part of the pass, what is left
    step      step_at + step_slope context                   a decode step of the baseline
    draft     draft_at[n] + draft_catch (catch_up - 1) + draft_slope n context; draft_idle if n = 0
    accept    accept_at + accept_each n                      and rollback and host: constants
    replay    a constant                                     in the rollback of a round with a rejection, where the
                                                             target reads accepted tokens once more

n is what the round drafted, the width is n + 1, the context is what the target's cache held before.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

import numpy as np

from speclab.records.log import RoundCounts

CURVES = ("verify_at", "draft_at")
SHORTEST = 1e-12  # seconds of a decode step at least: a fit of noisy times may give 0, and it is a divisor
PHASES = ("draft", "verify", "accept", "rollback", "host")


class RoundTime(NamedTuple):
    """One instrumented round."""

    drafter: str
    temperature: float
    context: int  # tokens in the target's cache before the round
    n_drafted: int
    catch_up: int  # tokens the draft model had not been fed, at least 1
    seconds: dict[str, float]  # seconds of each phase in PHASES
    prompt: int = 0  # index of the prompt that it belongs to
    own_verify: bool = False  # a part of the target ran in the draft, so its passes are not the others'
    n_replays: int = 0  # passes of its rollback over accepted tokens


class StepTime(NamedTuple):
    """One decode step of the baseline."""

    temperature: float
    context: int
    seconds: float
    prompt: int = 0


def catch_ups(rounds: Iterable[RoundCounts]) -> list[int]:
    """Return the number of tokens that a draft model has not been fed when each round begins.

    The last drafted token is never fed, so a fully accepted round leaves two. A round without a draft leaves one more,
    and one that a hybrid's lookup drafted for leaves all that it committed.

    >>> chains = [(4, 4), (4, 1), (0, 0), (0, 0), (2, 2)]
    >>> catch_ups([*(RoundCounts(*made) for made in chains), RoundCounts(5, 3, looked_up=True), RoundCounts(2, 0)])
    [1, 2, 1, 2, 3, 2, 6]
    """
    waiting, by_round = 1, []
    for n_drafted, n_accepted, looked_up in rounds:
        by_round.append(waiting)
        if looked_up or n_drafted == 0:
            waiting += n_accepted + 1
        else:
            waiting = 1 + (n_accepted == n_drafted)
    return by_round


@dataclass(frozen=True)
class Costs:
    """Costs of one drafter at one temperature.

    Everything is in seconds, and slopes are in seconds per token; none is negative.
    """

    step_at: float
    step_slope: float
    verify_at: dict[int, float]  # width -> at context 0
    verify_slope: float
    draft_idle: float  # a round without a proposal still asks the drafter
    draft_at: dict[int, float]  # tokens drafted -> at context 0; the first steps after a target pass cost the most
    draft_catch: float  # every token to catch up with beyond the first
    draft_slope: float
    accept_at: float
    accept_each: float
    rollback: float
    host: float
    accept_error: float = 0.0  # standard errors of the three, which may be too small to be told apart from nothing
    rollback_error: float = 0.0
    host_error: float = 0.0
    replay: float = 0.0  # in a round with a rejection, added to `rollback`

    @property
    def widths(self) -> list[int]:
        """Return the widths that were measured."""
        return sorted(self.verify_at)

    def step_seconds(self, context: float) -> float:
        """Return the seconds of a decode step of the baseline after `context` tokens."""
        return max(self.step_at + self.step_slope * context, SHORTEST)

    def verify_seconds(self, width: float, context: float) -> float:
        """Return the seconds of a target pass over `width` positions."""
        return _read(self.verify_at, width) + self.verify_slope * context

    def draft_seconds(self, n_drafted: float, context: float, catch_up: float = 1) -> float:
        """Return the seconds of a whole draft of `n_drafted` tokens."""
        if n_drafted == 0:
            return self.draft_idle
        at = _read(self.draft_at, n_drafted)
        return at + self.draft_catch * (catch_up - 1) + self.draft_slope * n_drafted * context

    def accept_seconds(self, n_drafted: float) -> float:
        """Return the seconds of the accept rule over `n_drafted` tokens."""
        return self.accept_at + self.accept_each * n_drafted

    def overhead_seconds(self, n_drafted: float, rejected: bool = False) -> float:
        """Return the seconds of everything but the draft and the verification: the accept rule, the rollback, the
        host's work between the phases, and the replay in a round in which not all drafts were accepted."""
        return self.accept_seconds(n_drafted) + self.rollback + self.host + self.replay * rejected

    def round_seconds(self, n_drafted: float, context: float, catch_up: float = 1) -> float:
        """Return the seconds of a whole round."""
        draft = self.draft_seconds(n_drafted, context, catch_up)
        return draft + self.verify_seconds(n_drafted + 1, context) + self.overhead_seconds(n_drafted)

    def draft_cost(self, draft_length: float, context: float, catch_up: float = 1) -> float:
        """Return c: the cost of one drafted token in decode steps of the target, averaged over a draft; 0 where nothing
        is drafted."""
        if draft_length == 0:
            return 0.0
        return self.draft_seconds(draft_length, context, catch_up) / draft_length / self.step_seconds(context)

    def verify_cost(self, width: float, context: float) -> float:
        """Return v: the cost of a target pass over `width` positions, in decode steps of the target."""
        return self.verify_seconds(width, context) / self.step_seconds(context)

    def overhead(self, n_drafted: float, context: float) -> float:
        """Return o: the cost of the rest of a round, in decode steps of the target."""
        return self.overhead_seconds(n_drafted) / self.step_seconds(context)

    def to_json(self) -> dict:
        """Return plain JSON; the curves become [number, seconds] pairs."""
        return asdict(self) | {name: sorted(map(list, getattr(self, name).items())) for name in CURVES}

    @classmethod
    def from_json(cls, record: dict) -> "Costs":
        """Return the inverse of `to_json`; other entries are left out."""
        known = {entry.name: record[entry.name] for entry in fields(cls) if entry.name in record}
        return cls(**known | {name: {int(x): seconds for x, seconds in record[name]} for name in CURVES})


def _read(curve: dict[int, float], x: float) -> float:
    """Return a curve at x: linear between measured points, and beyond them.

    Beyond, the slope is that between the outermost point and the one nearest to half (or twice) of it, within two
    bounds: more never costs less, and never more per unit. One point alone is a constant.
    """
    points = sorted(curve)
    if points[0] <= x <= points[-1]:
        return float(np.interp(x, points, [curve[p] for p in points]))
    edge, nearest = (points[-1], points[-1] / 2) if x > points[-1] else (points[0], points[0] * 2)
    others = [p for p in points if p != edge]
    if not others:
        return curve[edge]
    other = min(others, key=lambda p: abs(p - nearest))
    slope = (curve[edge] - curve[other]) / (edge - other)
    return curve[edge] + min(max(slope, 0.0), curve[edge] / edge) * (x - edge)
