"""A simulation of a batch: what each rule would make of texts whose drafts are known. Nothing is decoded for it.

A step takes what StepCosts say, and the rules of `-k auto` are those that decode (decoding/budget.py). Beside them
stand fixed lengths and an oracle, which knows what will be accepted and drafts that alone, where it pays.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from speclab.extensions.batch.decoding.budget import OWN, PUBLISHED, Budget, StepCosts

FIXED, ORACLE = "fixed", "oracle"


class Trace(NamedTuple):
    """A text, and what is drafted after 0, 1, ... of its tokens: how likely each token is accepted if all before it
    are, and the draft's largest probability there; tops is empty where the draft does not say it."""

    accepts: Sequence[Sequence[float]]
    tops: Sequence[Sequence[float]] = ()


class Simulated(NamedTuple):
    """tokens_per_second: of all texts. of_user: of one text, on average over their time."""

    tokens_per_second: float
    of_user: float


def simulate(
    traces: Sequence[Trace],
    costs: StepCosts,
    rule: str,
    k: int,
    n_rows: int,
    texts_per_second: float | None = None,
    seed: int = 0,
) -> Simulated:
    """Decode these texts, n_rows at a time. Steps count in which every row has a text; all of them where texts come
    at random, so many a second (a Poisson process)."""
    random, n = np.random.default_rng(seed), len(traces)
    coins = [random.random(len(trace.accepts)) for trace in traces]  # of each token of a text, whoever drafts it
    arrival = [*(poisson(texts_per_second, n, seed) if texts_per_second else [0.0] * n), np.inf]
    budget = Budget(costs, rule if rule not in (FIXED, ORACLE) else OWN, max(k, 1))
    rows: dict[int, tuple[int, int]] = {}  # text, its tokens so far
    coming, clock, tokens, seconds, text_seconds = 0, 0.0, 0, 0.0, 0.0
    while coming < n or rows:
        for row in range(n_rows):
            if row not in rows and arrival[coming] <= clock:
                rows[row], coming = (coming, 1), coming + 1
        if not rows:
            clock = arrival[coming]
            continue
        most, right = [0] * n_rows, [0] * n_rows  # drafted tokens at most, and accepted if all of them were drafted
        for row, (text, at) in rows.items():
            known = traces[text].accepts[at]
            most[row] = min(k, len(coins[text]) - at - 1, len(known))
            kept = coins[text][at : at + most[row]] < known[: most[row]]
            right[row] = int(np.append(kept, False).argmin())
        drafted: Sequence[int] = most  # tokens of each row that are verified
        passes: Sequence[int] = most  # of the draft, for each row
        if rule == ORACLE:
            budget.begin(right, len(rows))
            budget.accepts = [[1.0] * max(k, 1)] * n_rows
            budget.rate = tokens / seconds if seconds else len(rows) / costs.of_length(len(rows), 0)[0]
            drafted = passes = budget.lengths()
        elif rule != FIXED:
            said = {row: traces[text].tops[at] for row, (text, at) in rows.items() if traces[text].tops}
            drafted, passes = _on_budget(budget, most, len(rows), said)
            found = {row: (min(right[row], drafted[row]), drafted[row]) for row in rows}
            budget.observe({row: SimpleNamespace(n_accepted=n, n_drafted=of) for row, (n, of) in found.items()})
        drafting = sum(costs.drafting(len(rows), sum(of_row > i for of_row in passes)) for i in range(k))
        taken = costs.outside + drafting + costs.verify(len(rows), sum(drafted), max(drafted))
        clock += taken
        counts = texts_per_second or len(rows) == n_rows
        seconds, text_seconds = seconds + taken * bool(counts), text_seconds + taken * len(rows) * bool(counts)
        for row, (text, at) in list(rows.items()):
            new = 1 + min(right[row], drafted[row])
            tokens += new * bool(counts)
            rows[row] = (text, at + new)
            if at + new >= len(coins[text]):
                del rows[row]
    return Simulated(tokens / seconds, tokens / text_seconds)


def poisson(texts_per_second: float, n: int, seed: int) -> list[float]:
    """Return the seconds in which n texts come."""
    return np.random.default_rng(seed).exponential(1 / texts_per_second, n).cumsum().tolist()


def _on_budget(
    budget: Budget, most: Sequence[int], n_texts: int, said: dict[int, Sequence[float]]
) -> tuple[Sequence[int], Sequence[int]]:
    """Ask the rule as a drafter does.  said: the draft's largest probabilities, by row."""
    budget.begin(most, n_texts)
    if not said:
        drafted = budget.lengths()
        return drafted, most if budget.rule == PUBLISHED else drafted
    passes = [0] * len(most)
    for depth in range(max(most)):
        if not budget.goes_on(depth):
            break
        asked = budget.drafting
        passes = [n + goes for n, goes in zip(passes, asked, strict=True)]
        budget.admits([said[row][depth] if goes else 0.0 for row, goes in enumerate(asked)])
    return budget.verified(), passes
