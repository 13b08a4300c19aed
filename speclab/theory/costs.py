"""The costs in seconds of the phases of a round, as means of rounds with a clock on every phase. Pure: numpy, no torch.

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

Everything is a mean. Shared machines jump between a fast and a slow state, medians then fall into one of them, and
medians do not add up to a total. Least squares with an intercept for every width or length does: over the rounds that
were fitted, predictions and observations have the same sum, phase by phase. One exception: an observation above `STALL`
times the median of its cell counts as that much, so that a single stall of the machine does not decide the mean of a
rare width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from speclab.records.rows import RoundCounts

CURVES = ("verify_at", "draft_at")
SHORTEST = 1e-12  # seconds of a decode step at least: a fit of noisy times may give 0, and it is a divisor
STALL = 3.0  # times the median of the cell; the slow state of a shared machine stays below 2
STANDARD_ERRORS = 3.0  # how far from 0 a slope over the context must be to be believed; neighbours in time are alike
FEWEST_SPARE = 8  # observations beyond the number of parameters, without which no such slope is tried
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


# --- means of rounds --------------------------------------------------------------------------------------------------


def fit(rounds: Sequence[RoundTime], steps: Sequence[StepTime]) -> dict[tuple[str, float], Costs]:
    """Return the costs of every (drafter, temperature) among `rounds`.

    Some costs are pooled: the shape of the verification (drafters that run a part of the target have one each), the
    accept rule over the drafters of a temperature, and the step's slope over the temperatures. The rest is of one
    drafter at one temperature alone. Every temperature of the rounds must have steps, and every round all PHASES.
    """
    step_at, (step_slope,) = _means(_seconds(steps), [s.temperature for s in steps], context=[s.context for s in steps])
    kinds = {r.drafter: r.drafter if r.own_verify else "" for r in rounds}  # whose passes are alike
    verify = {kind: _verify([r for r in rounds if kinds[r.drafter] == kind]) for kind in set(kinds.values())}
    costs = {}
    for drafter, temperature in dict.fromkeys((r.drafter, r.temperature) for r in rounds):
        alike = [r for r in rounds if r.temperature == temperature]
        own = [r for r in alike if r.drafter == drafter]
        lengths, replays = [r.n_drafted for r in alike], [r.n_replays for r in own]
        accept_at, (accept_each,) = _means(_seconds(alike, "accept"), None, [lengths], stalls=lengths)
        rollback, (replay,) = _means(_seconds(own, "rollback"), None, [replays], stalls=replays)
        costs[drafter, temperature] = Costs(
            step_at=step_at[temperature],
            step_slope=step_slope,
            **verify[kinds[drafter]][temperature],
            **_draft(own),
            accept_at=accept_at[None],
            accept_each=accept_each,
            rollback=rollback[None],
            replay=replay,
            host=_means(_seconds(own, "host"))[0][None],
        )
    return costs


def _seconds(times: Sequence[RoundTime] | Sequence[StepTime], phase: str = "") -> np.ndarray:
    return np.array([one.seconds[phase] if isinstance(one, RoundTime) else one.seconds for one in times])


def _verify(rounds: Sequence[RoundTime]) -> dict[float, dict]:
    """Return one curve over the widths, scaled for every temperature so that its total is the temperature's own.

    A pass costs the same at every temperature, but temperatures take turns, and the machine may have been in a slower
    state in the turns of one than in those of another. The baseline's steps of those turns ran in the same state.
    """
    widths, contexts = [r.n_drafted + 1 for r in rounds], np.array([r.context for r in rounds])
    times, of = _without_stalls(_seconds(rounds, "verify"), widths), np.array([r.temperature for r in rounds])
    state = np.ones(len(rounds))
    for _ in range(10):  # the curve and the states in turns; they settle after a few
        at, (slope,) = _means(times / state, widths, context=contexts)
        expected = np.array([at[w] for w in widths]) + slope * contexts
        factors = {t: times[of == t].sum() / expected[of == t].sum() for t in dict.fromkeys(of.tolist())}
        state = np.array([factors[t] for t in of])
    return {
        t: {"verify_at": {w: factor * seconds for w, seconds in at.items()}, "verify_slope": factor * slope}
        for t, factor in factors.items()
    }


def _draft(rounds: list[RoundTime]) -> dict:
    drafted, others = [r for r in rounds if r.n_drafted], [r for r in rounds if not r.n_drafted]
    idle = _means(_seconds(others, "draft"))[0][None] if others else 0.0
    if not drafted:  # a lookup that never found anything: the cost of a draft is not needed
        return {"draft_idle": idle, "draft_at": {1: idle}, "draft_catch": 0.0, "draft_slope": 0.0}
    at, (catch, slope) = _means(
        _seconds(drafted, "draft"),
        [r.n_drafted for r in drafted],
        [[r.catch_up - 1 for r in drafted]],
        context=[r.n_drafted * r.context for r in drafted],
    )
    return {"draft_idle": idle, "draft_at": at, "draft_catch": catch, "draft_slope": slope}


def _means(
    seconds: np.ndarray,
    cells: Sequence[Any] | None = None,
    columns: Sequence[Sequence[float]] = (),
    context: Sequence[float] | np.ndarray | None = None,
    stalls: Sequence[Any] | None = None,
) -> tuple[dict, list[float]]:
    """Return the mean seconds of every cell where all columns are 0, and slopes >= 0 that all cells share.

    cells: of each of the n observations; None: one cell, called None. columns: n numbers each, whose slopes are always
    used. context: n numbers, whose slope is used only where it stands out of the noise, since contexts of a run may
    hardly differ and a slope made of noise would be multiplied by a long context; it comes last. stalls: the cells for
    `STALL` where they are finer.
    """
    cells = [None] * len(seconds) if cells is None else list(cells)
    names = sorted(set(cells))
    cell = np.array([names.index(one) for one in cells], dtype=int)
    rows = [*columns, *([] if context is None else [context])]
    table = np.array(rows, dtype=float).reshape(len(rows), len(seconds))
    both = np.vstack([_without_stalls(seconds, stalls or cells), table])  # (1 + columns, n)
    means = np.array([both[:, cell == i].mean(1) for i in range(len(names))]).reshape(-1, len(both))
    times, *inside = both - means[cell].T
    slopes, rest = _nonnegative(inside, times)
    if context is not None:
        plain, plain_rest = _nonnegative(inside[:-1], times)
        spare = len(times) - len(names) - len(inside)
        if spare < FEWEST_SPARE or plain_rest - rest <= STANDARD_ERRORS**2 * rest / spare:
            slopes = np.append(plain, 0.0)
    # No cell may cost less than nothing where all columns are 0.
    sloped = means[:, 1:] @ slopes
    slopes = slopes * min([1.0, *(means[sloped > 0, 0] / sloped[sloped > 0])])
    return dict(zip(names, np.maximum(means[:, 0] - means[:, 1:] @ slopes, 0.0).tolist(), strict=True)), slopes.tolist()


def _nonnegative(columns: Sequence[np.ndarray], times: np.ndarray) -> tuple[np.ndarray, float]:
    """Return slopes >= 0 by least squares, and the sum of squared residuals; a column whose slope is below 0 goes."""
    slopes, live = np.zeros(len(columns)), [i for i, column in enumerate(columns) if column.any()]
    while live:
        table = np.stack([columns[i] for i in live], axis=1)
        scale = np.linalg.norm(table, axis=0)
        found = np.linalg.lstsq(table / scale, times)[0] / scale
        if (found >= 0).all():
            slopes[live] = found
            break
        live.pop(int(found.argmin()))
    rest = times - sum((slope * column for slope, column in zip(slopes, columns, strict=True)), np.zeros(len(times)))
    return slopes, float(rest @ rest)


def _without_stalls(times: np.ndarray, cells: Sequence[Any]) -> np.ndarray:
    """Cut the times at STALL medians of their cells. Of two in the middle the lower one counts, so that a stall does
    not decide the mean of a cell of two."""
    by_cell: dict[Any, list[float]] = {}
    for one, seconds in zip(cells, times.tolist(), strict=True):
        by_cell.setdefault(one, []).append(seconds)
    highest = {one: STALL * np.quantile(found, 0.5, method="lower") for one, found in by_cell.items()}
    return np.minimum(times, [highest[one] for one in cells])
