"""The costs in seconds of the phases of a round, as means by width and context. Pure: numpy, no torch.

A speedup is a quotient of two sums of seconds. To explain one, you need the seconds of every round as a function of
what the round did: n tokens drafted, a pass over n + 1, with so many tokens in the target's cache before (the context).
`Costs` says how. The rounds of a comparison have a clock on every phase, and `fit` makes the costs of them.

Everything is a mean. Shared machines jump between a fast and a slow state, medians then fall into one of them, and
medians do not add up to a total. A mean for every width or length, and slopes that all of them share, do: over the
rounds that were fitted, predictions and observations have the same sum, phase by phase. One exception: an observation
above `STALL` times the median of its kind counts as that much, so that a single stall of the machine does not decide
the mean of a rare width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median_low
from typing import NamedTuple

import numpy as np

from speclab.records.rows import RoundCounts

CURVES = ("verify_at", "draft_at")
SHORTEST = 1e-12  # seconds of a decode step at least: a fit of noisy times may give 0, and it is a divisor
STALL = 3.0  # times the median of its kind; the slow state of a shared machine stays below 2
STANDARD_ERRORS = 3.0  # how far from 0 a slope over the context must be to be believed; neighbours in time are alike
FEWEST_SPARE = 8  # observations beyond the number of parameters, without which no such slope is tried
PHASES = ("draft", "verify", "accept", "rollback", "host")


class RoundTime(NamedTuple):
    """One instrumented round, or a decode step of the baseline, whose pass is all of it."""

    drafter: str
    temperature: float
    context: int  # tokens in the target's cache before the round
    n_drafted: int
    catch_up: int  # tokens the draft model had not been fed, at least 1
    seconds: dict[str, float]  # of each phase in PHASES
    own_verify: bool = False  # a part of the target ran in the draft, so its passes are not the others'
    n_replays: int = 0  # passes of its rollback over accepted tokens


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
    """Costs of one drafter at one temperature, in seconds; slopes are in seconds per token. None is negative."""

    step_at: float  # a decode step of the baseline at context 0
    step_slope: float  # over the context
    verify_at: dict[int, float]  # width of the target's pass -> at context 0; what is left where the draft runs a part
    verify_slope: float
    draft_idle: float  # a round without a proposal still asks the drafter
    draft_at: dict[int, float]  # tokens drafted -> at context 0; the first steps after a target pass cost the most
    draft_catch: float  # every token to catch up with beyond the first
    draft_slope: float  # over drafted tokens times context
    accept_at: float
    accept_each: float  # a drafted token
    rollback: float
    host: float
    replay: float = 0.0  # added to `rollback` in a round with a rejection, where the target reads accepted tokens again

    def step_seconds(self, context: float) -> float:
        return max(self.step_at + self.step_slope * context, SHORTEST)

    def verify_seconds(self, width: int, context: float) -> float:
        return _read(self.verify_at, width) + self.verify_slope * context

    def draft_seconds(self, n_drafted: int, context: float, catch_up: int = 1) -> float:
        """Return the seconds of a whole draft."""
        if n_drafted == 0:
            return self.draft_idle
        at = _read(self.draft_at, n_drafted)
        return at + self.draft_catch * (catch_up - 1) + self.draft_slope * n_drafted * context

    def overhead_seconds(self, n_drafted: int, rejected: bool = False) -> float:
        """Return the seconds of everything but the draft and the verification. rejected: a draft was not accepted."""
        return self.accept_at + self.accept_each * n_drafted + self.rollback + self.host + self.replay * rejected

    def round_seconds(self, n_drafted: int, context: float, catch_up: int = 1) -> float:
        draft = self.draft_seconds(n_drafted, context, catch_up)
        return draft + self.verify_seconds(n_drafted + 1, context) + self.overhead_seconds(n_drafted)

    # c of a drafted token on average, v of a pass of this width, and o of everything else in a round, in decode steps

    def draft_cost(self, draft_length: int, context: float) -> float:
        return self.draft_seconds(draft_length, context) / draft_length / self.step_seconds(context)

    def verify_cost(self, width: int, context: float) -> float:
        return self.verify_seconds(width, context) / self.step_seconds(context)

    def overhead(self, n_drafted: int, context: float) -> float:
        return self.overhead_seconds(n_drafted) / self.step_seconds(context)

    def to_json(self) -> dict:
        """Return plain JSON; the curves become [number, seconds] pairs."""
        return asdict(self) | {name: sorted(map(list, getattr(self, name).items())) for name in CURVES}

    @classmethod
    def from_json(cls, record: dict) -> "Costs":
        """Return the inverse of `to_json`; other entries are left out."""
        known = {entry.name: record[entry.name] for entry in fields(cls) if entry.name in record}
        return cls(**known | {name: {int(x): seconds for x, seconds in record[name]} for name in CURVES})


def _read(curve: dict[int, float], x: int) -> float:
    """Return a curve at x: linear between measured points. Beyond them it goes on as it does from the first point to
    the last, within two bounds: more never costs less, and never more per unit. One point alone is a constant."""
    points, seconds = zip(*sorted(curve.items()), strict=True)
    edge, at = min(max(x, points[0]), points[-1]), float(np.interp(x, points, seconds))
    slope = (seconds[-1] - seconds[0]) / max(points[-1] - points[0], 1)
    return at + min(max(slope, 0.0), at / edge) * (x - edge)


# --- means of rounds --------------------------------------------------------------------------------------------------

Place = Callable[[RoundTime], tuple[int, int, int]]  # the cell of a round, and its numbers in two columns


def fit(rounds: Sequence[RoundTime], steps: Sequence[RoundTime]) -> dict[tuple[str, float], Costs]:
    """Return the costs of every (drafter, temperature) among `rounds`. steps: of the baseline, at every temperature.

    The passes and the accept rule cost the same whoever drafted, so these are means over all drafters of a temperature;
    a drafter that runs a part of the target has passes of its own.
    """
    costs = {}
    for drafter, temperature in dict.fromkeys((r.drafter, r.temperature) for r in rounds):
        alike = [r for r in rounds if r.temperature == temperature]
        own = [r for r in alike if r.drafter == drafter]
        passes = own if own[0].own_verify else [r for r in alike if not r.own_verify]
        drafted, idle = [r for r in own if r.n_drafted], [r for r in own if not r.n_drafted]
        baseline = [s for s in steps if s.temperature == temperature]
        step_at, _, step_slope = _means(baseline, "verify", lambda r: (0, 0, r.context))
        verify_at, _, verify_slope = _means(passes, "verify", lambda r: (r.n_drafted + 1, 0, r.context))
        draft_at, draft_catch, draft_slope = _means(
            drafted, "draft", lambda r: (r.n_drafted, r.catch_up - 1, r.n_drafted * r.context)
        )
        accept_at, accept_each, _ = _means(alike, "accept", lambda r: (0, r.n_drafted, 0))
        rollback, replay, _ = _means(own, "rollback", lambda r: (0, r.n_replays, 0))
        draft_idle, host = (_means(some, phase)[0].get(0, 0.0) for some, phase in ((idle, "draft"), (own, "host")))
        costs[drafter, temperature] = Costs(
            step_at=step_at[0],
            step_slope=step_slope,
            verify_at=verify_at,
            verify_slope=verify_slope,
            draft_idle=draft_idle,
            draft_at=draft_at or {1: draft_idle},  # a lookup that never found anything: it is not needed
            draft_catch=draft_catch,
            draft_slope=draft_slope,
            accept_at=accept_at[0],
            accept_each=accept_each,
            rollback=rollback[0],
            host=host,
            replay=replay,
        )
    return costs


def _means(
    rounds: Sequence[RoundTime], phase: str, place: Place = lambda r: (0, 0, 0)
) -> tuple[dict[int, float], float, float]:
    """Return the mean seconds of every cell where both columns are 0, and the slopes >= 0 of the columns, which all
    cells share.

    The second column is the context, whose slope is used only where it stands out of the noise: contexts of a run may
    hardly differ, and a slope made of noise would be multiplied by a long context.
    """
    if not rounds:
        return {}, 0.0, 0.0
    seconds, places = _without_stalls(rounds, phase), np.array([*map(place, rounds)])
    names, cells = np.unique(places[:, 0], return_inverse=True)
    table = np.array([seconds, *places.T[1:]])  # (3, n)
    means = np.array([table[:, cells == i].mean(1) for i in range(len(names))])  # (cells, 3)
    times, *inside = table - means[cells].T
    slopes, rest = _slopes(np.array(inside), times)
    plain, plain_rest = _slopes(np.array([inside[0], 0 * inside[1]]), times)
    spare = len(times) - len(names) - 2
    if spare < FEWEST_SPARE or plain_rest - rest <= STANDARD_ERRORS**2 * rest / spare:
        slopes = plain
    # No cell may cost less than nothing where both columns are 0.
    sloped = means[:, 1:] @ slopes
    slopes = slopes * min([1.0, *(means[sloped > 0, 0] / sloped[sloped > 0])])
    at = (means[:, 0] - means[:, 1:] @ slopes).clip(0)
    return dict(zip(names.tolist(), at.tolist(), strict=True)), *slopes.tolist()


def _slopes(columns: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float]:
    """Return slopes over (2, n) columns by least squares, 0 in place of negative ones; and the sum of squared rests."""
    slopes = np.linalg.lstsq(columns.T, times)[0].clip(0)
    rest = times - slopes @ columns
    return slopes, float(rest @ rest)


def _without_stalls(rounds: Sequence[RoundTime], phase: str) -> list[float]:
    """Return the seconds, cut at STALL medians of their kind: of rounds with as many drafted tokens and replays. Of two
    in the middle the lower one counts, so that a stall does not decide the mean of a kind of two."""
    by_kind: dict[tuple[int, int], list[float]] = {}
    for r in rounds:
        by_kind.setdefault((r.n_drafted, r.n_replays), []).append(r.seconds[phase])
    highest = {kind: STALL * median_low(found) for kind, found in by_kind.items()}
    return [min(r.seconds[phase], highest[r.n_drafted, r.n_replays]) for r in rounds]
