"""The costs in seconds of a round, as means by width and context. Pure: numpy, no torch.

A speedup is a quotient of two sums of seconds. To explain one, you need the seconds of every round as a function of
what the round did: n tokens drafted, a pass over n + 1, with so many tokens in the target's cache before (the context).
`Costs` says how, and `fit` makes them of rounds that have a clock on every phase.

Shared machines jump between a fast and a slow state: medians fall into one of them and do not add up to a total. Means
for every width or length, and slopes that all of them share, do: over the rounds that were fitted, predictions and
observations have the same sum. An observation above `STALL` times the median of its kind counts as that much, so that
no single stall of the machine decides the mean of a rare width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

import numpy as np

from speclab.records.rows import RoundCounts

Curve = Sequence[tuple[int, float]]  # (number, seconds), the numbers rising
STALL = 3.0  # times the median of its kind; the slow state of a shared machine stays below 2
STANDARD_ERRORS = 3.0  # how far from 0 a slope of a second column must be to be believed; neighbours in time are alike
FEWEST_CONTROLS = 16  # rounds whose seconds costs are scaled to
FEWEST_SPARE = 8  # observations beyond the number of parameters, without which no such slope is tried


class RoundTime(NamedTuple):
    """One instrumented round; a decode step of the baseline, all of it pass; or a round of a control, all rest."""

    drafter: str
    temperature: float
    context: int  # tokens in the target's cache before the round
    n_drafted: int
    catch_up: int  # tokens the draft model had not been fed, at least 1
    draft: float  # seconds of the draft, of the target's pass, and of everything else
    verify: float
    rest: float
    n_replays: int = 0  # passes of its rollback over accepted tokens


def catch_ups(rounds: Iterable[RoundCounts]) -> list[int]:
    """Return for each round the number of tokens that the draft model had not been fed; 1 where a lookup drafts.

    The last drafted token is never fed, so a fully accepted round leaves two. A round without a draft leaves one more,
    and one that a hybrid's lookup drafted for leaves all that it committed.
    """
    waiting, by_round = 1, []
    for n_drafted, n_accepted, looked_up in rounds:
        by_round.append(1 if looked_up else waiting)
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
    verify_at: Curve  # width of the target's pass -> at context 0
    verify_slope: float
    draft_idle: float  # a round without a proposal still asks the drafter
    draft_at: Curve  # tokens drafted -> at context 0; the first steps after a target pass cost the most
    draft_catch: float  # every token to catch up with beyond the first
    draft_slope: float  # over drafted tokens times context
    rest_at: float  # accepting, rolling back, and the loop around them
    rest_each: float  # a drafted token
    replay: float = 0.0  # added to the rest of a round with a rejection, where the target reads accepted tokens again

    def step_seconds(self, context: float) -> float:
        return self.step_at + self.step_slope * context

    def verify_seconds(self, width: int, context: float) -> float:
        return _read(self.verify_at, width) + self.verify_slope * context

    def draft_seconds(self, n_drafted: int, context: float, catch_up: int = 1) -> float:
        if n_drafted == 0:
            return self.draft_idle
        at = _read(self.draft_at, n_drafted)
        return at + self.draft_catch * (catch_up - 1) + self.draft_slope * n_drafted * context

    def overhead_seconds(self, n_drafted: int, rejected: bool = False) -> float:
        return self.rest_at + self.rest_each * n_drafted + self.replay * rejected

    def round_seconds(self, n_drafted: int, context: float, catch_up: int = 1) -> float:
        draft = self.draft_seconds(n_drafted, context, catch_up)
        return draft + self.verify_seconds(n_drafted + 1, context) + self.overhead_seconds(n_drafted)


def _read(curve: Curve, x: int) -> float:
    """Return a curve at x: linear between measured points. Beyond them it goes on as it does from the first point to
    the last, within two bounds: more never costs less, and never more per unit. One point alone is a constant."""
    points, seconds = zip(*curve, strict=True)
    edge, at = min(max(x, points[0]), points[-1]), float(np.interp(x, points, seconds))
    slope = (seconds[-1] - seconds[0]) / max(points[-1] - points[0], 1)
    return at + min(max(slope, 0.0), at / edge) * (x - edge)


Place = Callable[[RoundTime], tuple[int, int, int]]  # the cell of a round, and its numbers in two columns


def fit(rounds: Sequence[RoundTime], steps: Sequence[RoundTime]) -> dict[tuple[str, float], Costs]:
    """Return the costs of every (drafter, temperature) among `rounds`. steps: of the baseline, at every temperature.

    A pass costs the same whoever drafted, so its means are over the rounds of all drafters at a temperature.
    """
    costs = {}
    for drafter, temperature in dict.fromkeys((r.drafter, r.temperature) for r in rounds):
        alike = [r for r in rounds if r.temperature == temperature]
        own = [r for r in alike if r.drafter == drafter]
        baseline = [s for s in steps if s.temperature == temperature]
        step_at, _, step_slope = _means(baseline, "verify", lambda r: (0, 0, r.context))
        verify_at, _, verify_slope = _means(alike, "verify", lambda r: (r.n_drafted + 1, 0, r.context))
        draft_at, draft_catch, draft_slope = _means(
            own, "draft", lambda r: (r.n_drafted, (r.catch_up - 1) * (r.n_drafted > 0), r.n_drafted * r.context)
        )
        rest_at, replay, rest_each = _means(own, "rest", lambda r: (0, r.n_replays, r.n_drafted))
        draft_idle = draft_at.pop(0, 0.0)
        costs[drafter, temperature] = Costs(
            step_at=step_at.get(0, 0.0),
            step_slope=step_slope,
            verify_at=[*verify_at.items()],
            verify_slope=verify_slope,
            draft_idle=draft_idle,
            draft_at=[*draft_at.items()] or [(1, draft_idle)],  # a lookup that never found anything: it is not needed
            draft_catch=draft_catch,
            draft_slope=draft_slope,
            rest_at=rest_at[0],
            rest_each=rest_each,
            replay=replay,
        )
    return costs


def without_clock(rounds: Sequence[RoundTime], controls: Sequence[RoundTime]) -> list[RoundTime]:
    """Return instrumented rounds as if they had no clock: a factor for each draft and temperature makes what they
    predict for its controls, of all lengths together, the seconds of these. A stall counts as it does elsewhere."""
    found = list[RoundTime]()
    for key in dict.fromkeys((r.drafter, r.temperature) for r in rounds):
        slow, own = ([r for r in some if (r.drafter, r.temperature) == key] for some in (rounds, controls))
        costs = fit(slow, [])[key]
        said = [costs.round_seconds(r.n_drafted, r.context, r.catch_up) + costs.replay * r.n_replays for r in own]
        took = [min(r.rest, STALL * seconds) for r, seconds in zip(own, said, strict=True)]
        f = sum(took) / sum(said) if len(own) >= FEWEST_CONTROLS and any(said) else 1.0
        found += [r._replace(draft=f * r.draft, verify=f * r.verify, rest=f * r.rest) for r in slow]
    return found


def _means(rounds: Sequence[RoundTime], phase: str, place: Place) -> tuple[dict[int, float], float, float]:
    """Return the mean seconds of every cell where both columns are 0, and the slopes >= 0 of the columns, which all
    cells share. That of the second, mostly the context, is used only where it stands out of the noise: contexts of a
    run may hardly differ, and a slope made of noise would be multiplied by a long one."""
    if not rounds:
        return {}, 0.0, 0.0
    by_kind: dict[tuple[int, int], list[float]] = {}
    for r in rounds:
        by_kind.setdefault((r.n_drafted, r.n_replays), []).append(getattr(r, phase))
    # Of two in the middle the lower one counts, so that a stall does not decide the mean of a kind of two.
    highest = {kind: STALL * median_low(found) for kind, found in by_kind.items()}
    seconds = [min(getattr(r, phase), highest[r.n_drafted, r.n_replays]) for r in rounds]
    places = np.array([*map(place, rounds)])
    names, cells = np.unique(places[:, 0], return_inverse=True)
    table = np.array([seconds, *places.T[1:]])  # (3, n)
    means = np.array([table[:, cells == i].mean(1) for i in range(len(names))])  # (cells, 3)
    times, first, second = table - means[cells].T
    (slopes, rest), (plain, rest_of_plain) = (_slopes(np.array([first, x]), times) for x in (second, 0 * second))
    spare = len(times) - len(names) - 2
    if spare < FEWEST_SPARE or rest_of_plain - rest <= STANDARD_ERRORS**2 * rest / spare:
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
