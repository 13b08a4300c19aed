"""The costs of the phases of a round, fitted to rounds with a clock on every phase. Pure: numpy, no torch.

Everything is a mean. Shared machines jump between a fast and a slow state, medians then fall into one of them, and
medians do not add up to a total. Least squares with an intercept in every cell does: over the rounds that were fitted,
predictions and observations have the same sum, phase by phase. One exception: an observation above `STALL` times the
median of its cell counts as that much, so that a single stall of the machine does not decide the mean of a rare width.
A width that was seen only a few times has nothing but the mean of those few; nothing is borrowed from its neighbours.
"""

import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from speclab.theory.costs import Costs, RoundTime, StepTime

STALL = 3.0  # times the median of the cell; the slow state of a shared machine stays below 2
STANDARD_ERRORS = 3.0  # how far from 0 a slope over the context must be to be believed; neighbours in time are alike
ROUNDS_OF_FITTING = 10  # the curve and the states of the machine are fitted in turns; they settle after a few
FEWEST_SPARE = 8  # observations beyond the number of parameters, without which no such slope is tried


def fit(rounds: Sequence[RoundTime], steps: Sequence[StepTime]) -> dict[tuple[str, float], Costs]:
    """Fit the costs of every (drafter, temperature) among `rounds`.

    Some costs are pooled: the shape of the verification (drafters that run a part of the target have one each), the
    accept rule over the drafters of a temperature, and the step's slope over the temperatures. The rest is of one
    drafter at one temperature alone. Every temperature of the rounds must have steps, and every round all PHASES, as
    the harness sees to.
    """
    step_at, step_slope = _regress(
        [s.seconds for s in steps], [s.temperature for s in steps], context=[s.context for s in steps]
    )
    kinds = {r.drafter: r.drafter if r.own_verify else "" for r in rounds}  # whose passes are alike
    verify = {kind: _verify([r for r in rounds if kinds[r.drafter] == kind]) for kind in set(kinds.values())}
    costs = {}
    for drafter, temperature in dict.fromkeys((r.drafter, r.temperature) for r in rounds):
        alike = [r for r in rounds if r.temperature == temperature]
        its_rounds = [r for r in alike if r.drafter == drafter]
        costs[drafter, temperature] = Costs(
            step_at=step_at[temperature],
            step_slope=step_slope[-1],
            **verify[kinds[drafter]][temperature],
            **_draft(its_rounds),
            **_accept(alike),
            **_rollback(its_rounds),
            host=_mean([r.seconds["host"] for r in its_rounds]),
            host_error=_standard_error([r.seconds["host"] for r in its_rounds]),
        )
    return costs


def _verify(rounds: Sequence[RoundTime]) -> dict[float, dict]:
    """Fit one curve over the widths, scaled for every temperature so that its total is the temperature's own.

    A pass costs the same at every temperature, but temperatures take turns, and the machine may have been in a slower
    state in the turns of one than in those of another. The baseline's steps of those turns ran in the same state.
    """
    widths, contexts = [r.n_drafted + 1 for r in rounds], [r.context for r in rounds]
    times = _without_stalls(np.array([r.seconds["verify"] for r in rounds]), widths)
    state = dict.fromkeys((r.temperature for r in rounds), 1.0)
    of = np.array([r.temperature for r in rounds])
    for _ in range(ROUNDS_OF_FITTING):
        at, (slope,) = _regress(times / [state[t] for t in of], widths, context=contexts)
        expected = np.array([at[w] for w in widths]) + slope * np.array(contexts)
        state = {t: times[of == t].sum() / expected[of == t].sum() for t in state}
    return {
        t: {"verify_at": {w: factor * seconds for w, seconds in at.items()}, "verify_slope": factor * slope}
        for t, factor in state.items()
    }


def _draft(rounds: list[RoundTime]) -> dict:
    drafted = [r for r in rounds if r.n_drafted]
    idle = [r.seconds["draft"] for r in rounds if not r.n_drafted]
    if not drafted:  # a lookup that never found anything: the cost of a draft is not needed
        return {"draft_idle": _mean(idle), "draft_at": {1: _mean(idle)}, "draft_catch": 0.0, "draft_slope": 0.0}
    at, slopes = _regress(
        [r.seconds["draft"] for r in drafted],
        [r.n_drafted for r in drafted],
        [[r.catch_up - 1] for r in drafted],
        context=[r.n_drafted * r.context for r in drafted],
    )
    return {
        "draft_idle": _mean(idle) if idle else 0.0,
        "draft_at": at,
        "draft_catch": slopes[0],
        "draft_slope": slopes[1],
    }


def _accept(rounds: list[RoundTime]) -> dict:
    lengths = [r.n_drafted for r in rounds]
    at, slopes = _regress(
        [r.seconds["accept"] for r in rounds], ["all"] * len(rounds), [[n] for n in lengths], stall_cells=lengths
    )
    rest = [r.seconds["accept"] - slopes[0] * r.n_drafted for r in rounds]
    return {"accept_at": at["all"], "accept_each": slopes[0], "accept_error": _standard_error(rest)}


def _rollback(rounds: list[RoundTime]) -> dict:
    seconds, replays = [r.seconds["rollback"] for r in rounds], [r.n_replays for r in rounds]
    at, (replay,) = _regress(seconds, ["all"] * len(rounds), [[n] for n in replays], stall_cells=replays)
    rest = [spent - replay * n for spent, n in zip(seconds, replays, strict=True)]
    return {"rollback": at["all"], "replay": replay, "rollback_error": _standard_error(rest)}


def _mean(seconds: list[float]) -> float:
    at, _ = _regress(seconds, ["all"] * len(seconds))
    return at["all"]


def _standard_error(seconds: list[float]) -> float:
    """Return the standard error of their mean; 0 for a single value."""
    return float(np.std(seconds, ddof=1) / np.sqrt(len(seconds))) if len(seconds) > 1 else 0.0


def _regress(
    seconds: Sequence[float] | np.ndarray,
    cells: Sequence[Hashable],
    columns: Sequence[Sequence[float]] | None = None,
    context: Sequence[float] | None = None,
    stall_cells: Sequence[Hashable] | None = None,
) -> tuple[dict, list[float]]:
    """Fit by least squares a constant for every cell and slopes >= 0 that all cells share.  -> constants, slopes

    `columns` (observations, any number) are always used, `context` (observations,) only where its slope stands out of
    the noise: contexts of a run may hardly differ, and a slope made of noise would be multiplied by a long context. Its
    slope comes last, 0 if it was left out. `stall_cells` are the cells for `STALL` where they are finer than `cells`.
    """
    times = _without_stalls(np.asarray(seconds, dtype=float), stall_cells or cells)  # (observations,)
    names, cell = np.unique(np.asarray(cells), return_inverse=True)
    table = np.zeros((len(times), 0)) if columns is None else np.asarray(columns, dtype=float)
    if context is not None:
        table = np.column_stack([table, np.asarray(context, dtype=float)])
    time_means, table_means = _cell_means(times[:, None], cell)[:, 0], _cell_means(table, cell)
    inside_times = times - time_means[cell]
    inside_table = table - table_means[cell]

    slopes, rest = _nonnegative(inside_table, inside_times)
    if context is not None:
        plain, plain_rest = _nonnegative(inside_table[:, :-1], inside_times)
        spare = len(times) - len(names) - table.shape[1]
        if spare < FEWEST_SPARE or plain_rest - rest <= STANDARD_ERRORS**2 * rest / spare:
            slopes = np.append(plain, 0.0)
    # No cell may cost less than nothing at context 0 (the smallest n, the smallest catch-up).
    sloped = table_means @ slopes  # (cells,) the part of each mean that the slopes explain
    slopes = slopes * min([1.0, *(time_means[sloped > 0] / sloped[sloped > 0])])
    constants = np.maximum(time_means - table_means @ slopes, 0.0)
    return dict(zip(names.tolist(), constants.tolist(), strict=True)), slopes.tolist()


def _nonnegative(table: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, float]:
    """Fit slopes >= 0 by least squares: the best of all sets of columns whose own fit has no slope below 0.

    table (observations, columns), columns few.  -> slopes (columns,), sum of squared residuals. Among equals, as where
    one column repeats another, the fewest and the first columns win.
    """
    n_columns = table.shape[1]
    best, least = np.zeros(n_columns), float(times @ times)
    better = 1e-12 * least
    scale = np.linalg.norm(table, axis=0)
    live = [i for i in range(n_columns) if scale[i] > 0]
    for size in range(1, len(live) + 1):
        for chosen in itertools.combinations(live, size):
            columns = list(chosen)
            slopes = np.linalg.lstsq(table[:, columns] / scale[columns], times)[0] / scale[columns]
            rest = float(((times - table[:, columns] @ slopes) ** 2).sum())
            if (slopes >= 0).all() and rest < least - better:
                best, least = np.zeros(n_columns), rest
                best[columns] = slopes
    return best, least


def _without_stalls(times: np.ndarray, cells: Sequence[Hashable]) -> np.ndarray:
    """Cut (observations,) at STALL medians of their cells. Of two in the middle the lower one counts,
    so that a stall does not decide the mean of a cell of two."""
    _, cell = np.unique(np.asarray(cells), return_inverse=True)
    medians = np.array([np.quantile(times[cell == i], 0.5, method="lower") for i in range(cell.max() + 1)])
    return np.minimum(times, STALL * medians[cell])


def _cell_means(table: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Return the mean of each cell: (observations, columns) -> (cells, columns)"""
    sums = np.zeros((cell.max() + 1, table.shape[1]))
    np.add.at(sums, cell, table)
    return sums / np.bincount(cell)[:, None]
