"""What the steps of a batch cost, from passes over one text, and a simulation of the rules with these costs: no batch
of several texts is timed for it, and nothing is decoded.

A pass over n texts of w tokens each multiplies every weight with n * w tokens, as a pass over one text of n * w tokens
does. But each text has keys and values of its own to read; one token after n times as many tokens of context reads as
many. So, with C tokens of context,

    t(n, w, C) = t(1, n * w, C) + t(1, 1, n * C) - t(1, 1, C)

What the loop does outside of its passes is measured in its rounds: their seconds, less those of the passes. What rounds
of a network that drafts row by row take beyond those of plain decoding is the price of its tokens. Why a large batch
removes the gain of a draft, and a long context restores it: MagicDec, arXiv 2408.11049.
"""

import functools
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch

from speclab.core.clock import seconds
from speclab.core.rounds import Round
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.budget import OWN, PUBLISHED, Budget, StepCosts
from speclab.extensions.batch.decoding.drafters import shared_model
from speclab.extensions.batch.decoding.loops import BatchDecoding
from speclab.lab.comparison import RunConfig

TARGET = "target"
TURNS = 12  # in which passes are timed
Pass = tuple[int, int]
"""tokens of a pass over one text, tokens of the text before it"""
FIXED, ORACLE = "fixed", "oracle"


class Trace(NamedTuple):
    """A text, and what is drafted after 0, 1, ... of its tokens: how likely each token is accepted if all before it
    are, and the draft's largest probability there; tops is empty where the draft does not say it."""

    accepts: Sequence[Sequence[float]]
    tops: Sequence[Sequence[float]] = ()


class Simulated(NamedTuple):
    """tokens_per_second: of all texts. of_user: of one text, on average over their time. length: tokens of a step."""

    tokens_per_second: float
    of_user: float
    length: float


def step_costs(
    times: Mapping[str, Mapping[Pass, float]], draft: str, n_texts: int, longest: int, pads: bool
) -> StepCosts:
    """Costs of steps over up to `n_texts` texts, in drafts of up to `longest` tokens, without what is outside of
    passes. draft: a draft model of `times`, or another name, for a draft that costs nothing. times: by model, the
    seconds of passes over one text; the shortest of these contexts is that of the others."""

    def of_tokens(model: str, most: int) -> tuple[np.ndarray, np.ndarray]:
        known = sorted(times[model].items())
        one = min(context for (_, context), _ in known)
        of_width = {tokens: taken for (tokens, context), taken in known if context == one}
        of_texts = {context / one: taken - of_width[1] for (tokens, context), taken in known if tokens == 1}
        n = np.arange(most + 1)
        reads = np.interp(n, list(of_texts), list(of_texts.values()))
        return np.interp(n, list(of_width), list(of_width.values())), reads

    target, texts = of_tokens(TARGET, n_texts * (1 + longest))
    drafting = np.add(*of_tokens(draft, n_texts)) if draft in times else np.zeros(n_texts + 1)
    drafting[0] = 0
    target, drafting = map(np.maximum.accumulate, (target, drafting))
    return StepCosts(0.0, target.tolist(), texts.tolist(), drafting.tolist(), pads)


def with_rounds(costs: StepCosts, decoding: BatchDecoding, n_texts: int, k: int, plain: float | None) -> StepCosts:
    """Add what rounds of so many texts took outside of their passes. k: 0 for plain decoding. plain: for a network that
    drafts row by row, what plain decoding takes there; what is more is the price of its tokens."""
    rounds = [made for rounds in decoding.rounds.values() for made in rounds if not made.prefill]
    full = decoding.full(n_texts)
    n_steps = len(full) if k else sum(sum(tokens.values()) for tokens, _ in full) / n_texts
    n_drafted = sum(made.n_drafted for made in rounds) / len(rounds)
    passes = float(np.interp(n_drafted, np.arange(k + 1), costs.of_length(n_texts, k)))
    outside = max(0.0, sum(seconds for _, seconds in full) / n_steps - passes)
    if plain is None or not n_drafted:
        return replace(costs, outside=outside)
    own = max(0.0, outside - plain) / (n_drafted * n_texts)
    return replace(costs, outside=plain, draft=[own * n for n in range(len(costs.draft))], by_row=True)


def trace_of(rounds: Sequence[Round]) -> Trace:
    """A text from rounds that were made: after each of them that began there, what was drafted, and what accepted."""
    accepts: list[list[float]] = []
    for made in rounds:
        drafted = [1.0] * made.n_accepted + [0.0] * (made.n_drafted - made.n_accepted)
        accepts += [drafted if at == 0 else [] for at in range(len(made.tokens))]
    return Trace(accepts)


def time_passes(config: RunConfig, context: int, sizes: Sequence[int]) -> dict[str, dict[Pass, float]]:
    """Return the seconds of passes over one text, of each model its own, that multiply as much as passes over so many
    texts, or read as much.

    A pass that follows its like takes less time than in a decoding. So in a turn every pass comes once, in another
    order every time. Caches hold random numbers: memory that was never written is read for nothing. Each is the mean of
    the middle half of its turns, which no disturbed moment moves.
    """
    lengths = {k for drafter in config.drafters.values() for k in drafter.lengths(config.draft_lengths)}
    models, widths = {TARGET: config.setup.target}, {TARGET: {1, *(k + 1 for k in lengths)}}
    for name, drafter in config.drafters.items():
        if (model := shared_model(drafter)) and not drafter.chooses_length:
            models[name], widths[name] = model, {1, 2}
    timed: dict[tuple[str, Pass], list[float]] = {}
    batches = {name: BatchedModel(model, 1) for name, model in models.items()}
    for name, batch in batches.items():
        read = {(1, n * context) for n in sizes}
        multiplied = {(n * width, context) for n in sizes for width in widths[name]}
        timed |= {(name, one): [] for one in sorted(read | multiplied)}
        batch.start(max(map(sum, read | multiplied)))
        batch.fill(seed=0)
    order = random.Random(0)
    for _ in range(1 + TURNS):  # the first one meets the shapes
        for name, (width, read_before) in order.sample(list(timed), len(timed)):
            batches[name].lengths = [read_before]
            tokens = torch.zeros(1, width, dtype=torch.long, device=batches[name].device)
            taken = seconds(functools.partial(batches[name].forward, tokens), batches[name].device)
            timed[name, (width, read_before)].append(taken)
    return {name: {one: middle_mean(turns[1:]) for (of, one), turns in timed.items() if of == name} for name in batches}


def middle_mean(values: Sequence[float]) -> float:
    drop = len(values) // 4
    return statistics.mean(sorted(values)[drop : len(values) - drop])


def simulate(
    traces: Sequence[Trace],
    costs: StepCosts,
    rule: str,
    k: int,
    n_rows: int,
    arrivals: Sequence[float] = (),
    prefills: Sequence[float] = (),
) -> Simulated:
    """Decode these texts, n_rows at a time. Steps count in which every row has a text; all of them where texts come
    at random, each so many seconds after the start. prefills: seconds of the pass over each text's prompt, for which
    all others wait; as where it is measured, this wait crowds the machine and is no part of a user's own speed."""
    random, n = np.random.default_rng(0), len(traces)
    coins = [random.random(len(trace.accepts)) for trace in traces]  # of each token of a text, whoever drafts it
    arrival, at = [*(arrivals or [0.0] * n), np.inf], [1] * n  # at: tokens of each text so far
    budget = Budget(costs, OWN if rule in (FIXED, ORACLE) else rule, max(k, 1))
    rows = dict[int, int]()  # row -> its text
    coming, clock = 0, 0.0
    sums = np.zeros(4)  # over the steps that count: tokens, seconds, seconds of each text, texts
    while coming < n or rows:
        for row in range(n_rows):
            if row not in rows and arrival[coming] <= clock:
                clock += prefills[coming] if prefills else 0.0
                rows[row], coming = coming, coming + 1
        if not rows:
            clock = arrival[coming]
            continue
        most, right = [0] * n_rows, [0] * n_rows  # drafted tokens at most, and accepted if all of them were drafted
        for row, text in rows.items():
            known, coin = traces[text].accepts[at[text]], coins[text][at[text] :]
            most[row] = min(k, len(coin) - 1, len(known))
            right[row] = int(np.append(coin[: most[row]] < known[: most[row]], False).argmin())
        drafted = passes = most  # tokens of each row that are verified; passes of the draft for it
        if rule == ORACLE:
            budget = Budget(costs, OWN, max(k, 1))  # it never tries what does not pay
            budget.begin(right, len(rows))
            budget.accepts = [[1 - 1e-9] * max(k, 1)] * n_rows  # the first tokens of all rows come first
            budget.rate = sums[0] / sums[1] if sums[1] else len(rows) / costs.of_length(len(rows), 0)[0]
            drafted = passes = budget.lengths()
        elif rule != FIXED:
            budget.begin(most, len(rows))
            said = {row: traces[text].tops[at[text]] for row, text in rows.items() if traces[text].tops}
            drafted, passes = _decided(budget, said)
            found = {row: SimpleNamespace(n_accepted=min(right[row], n), n_drafted=n) for row, n in enumerate(drafted)}
            budget.observe({row: found[row] for row in rows})
        taken = costs.outside + costs.drafts(len(rows), passes) + costs.verify(len(rows), sum(drafted), max(drafted))
        clock += taken
        new = {row: 1 + min(right[row], drafted[row]) for row in rows}
        if arrivals or len(rows) == n_rows:
            sums += sum(new.values()), taken, taken * len(rows), len(rows)
        for row, n_new in new.items():
            at[rows[row]] += n_new
            if at[rows[row]] >= len(coins[rows[row]]):
                del rows[row]
    tokens, seconds, text_seconds, text_steps = sums.tolist()
    return Simulated(tokens / seconds, tokens / text_seconds, tokens / text_steps)


def _decided(budget: Budget, said: dict[int, Sequence[float]]) -> tuple[list[int], list[int]]:
    """Ask the rule as a drafter does.  said: the draft's largest probabilities, by row.  -> tokens, passes"""
    if not said:
        drafted = budget.lengths()
        return drafted, budget.most if budget.rule == PUBLISHED else drafted
    passes = [0] * len(budget.most)
    while any(asked := budget.drafting):
        budget.admits([said[row][passes[row]] if goes else 0.0 for row, goes in enumerate(asked)])
        passes = [n + goes for n, goes in zip(passes, asked, strict=True)]
    return budget.verified(), passes
