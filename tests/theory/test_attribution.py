"""The two predictions, the ladder and the noise, against sums by hand, brute force and simulated clocks."""

import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace

import pytest

from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.lab.rows import row_of
from speclab.records.rows import BASELINE, Arm, Decoded, RoundCounts
from speclab.theory import attribution
from speclab.theory.attribution import predictions, price
from speclab.theory.costs import Costs, catch_ups
from speclab.theory.formulas import AcceptProbs, forecast
from tests.decoding import model_accept_probs

VERIFY, DRAFT = [(1, 1.1), (2, 1.2), (3, 1.4), (4, 1.5), (5, 1.7)], [(n, 0.1 + 0.08 * (n - 1)) for n in range(1, 9)]
SLOPES = {"step_slope": 0.01, "verify_slope": 0.02, "draft_slope": 0.001, "draft_catch": 0.02, "rest_each": 0.01}
COSTS = Costs(step_at=1.0, verify_at=VERIFY, draft_idle=0.03, draft_at=DRAFT, rest_at=0.06, **SLOPES)
N_PROMPT = 10
HALF = [0.5] * 6  # acceptance chances of a text of six tokens


def counts_of(rounds: list[RoundCounts]) -> Counts:
    counts = Counts()
    for n_drafted, n_accepted, _ in rounds:
        counts.add(Round([0] * (n_accepted + 1), n_drafted, n_accepted, int(n_accepted < n_drafted)))
    return counts


def speculated(k: int, *decodings: list[RoundCounts], seconds: float = 1.0, arm: Arm | None = None) -> Decoded:
    made = Decoded.begin(arm or Arm("model", "model", k), 0.0, 0, "code", N_PROMPT)
    for rounds in decodings:
        n_new = 1 + sum(one.n_accepted + 1 for one in rounds)  # with prefill's token
        made.add(0.5, seconds, [0] * n_new, counts_of(rounds), rounds)
    return made


def plain(*lengths: int, seconds: float = 1.0) -> Decoded:
    made = Decoded.begin(BASELINE, 0.0, 0, "code", N_PROMPT)
    for n in lengths:
        made.add(0.5, seconds, [0] * n)
    return made


def explained(mine: Decoded, base: Decoded, *probs, **along):
    """The row of an arm, with predictions from these costs."""
    row = row_of([mine], [base])
    return replace(row, **predictions(row, price(mine, base, COSTS, *probs, **along)))


def seconds_of(n: int, t: int, catch_up: int) -> float:
    return COSTS.round_seconds(n, N_PROMPT + t - 1, catch_up)


def constant(accept: list[float]) -> Callable[[list[int]], AcceptProbs]:
    return lambda text: model_accept_probs(accept[: len(text)])


def expected_seconds(accept_probs: AcceptProbs, n: int, k: int, cost: Callable[[int, int, int], float]) -> float:
    """Every outcome of every round, one by one. cost(drafted, state, catch-up)"""

    def rest(t: int, catch_up: int) -> float:
        if t >= n:
            return 0.0
        row = list(accept_probs[t])[: min(k, n - t - 1)]
        total, alive = cost(len(row), t, catch_up), 1.0
        for i, chance in enumerate(row):
            total += alive * (1 - chance) * rest(t + i + 1, 1)
            alive *= chance
        return total + alive * rest(t + len(row) + 1, 2 if row else 1)

    return rest(1, 1)


ROUNDS = [RoundCounts(2, 2), RoundCounts(2, 0), RoundCounts(0, 0)]  # contexts 10, 13, 14; the second one catches up


def test_accounting_by_hand():
    part = price(speculated(2, ROUNDS), plain(6), COSTS, constant(HALF))
    assert part.baseline == pytest.approx(5 * 1.0 + 0.01 * (10 + 11 + 12 + 13 + 14))
    assert part.draft == pytest.approx(0.18 + 0.001 * 2 * 10 + (0.18 + 0.02 + 0.001 * 2 * 13) + 0.03)
    assert part.verify == pytest.approx(1.4 + 0.02 * 10 + 1.4 + 0.02 * 13 + 1.1 + 0.02 * 14)
    assert part.overhead == pytest.approx(0.08 + 0.08 + 0.06)
    row = explained(speculated(2, ROUNDS), plain(6), constant(HALF))
    assert row.accounting == pytest.approx(5.6 / 5.316)
    assert row.draft_cost == pytest.approx(0.456 / 4 / 1.12)
    assert row.verify_cost == pytest.approx(4.64 / 3 / 1.12)
    assert row.overhead == pytest.approx(0.22 / 3 / 1.12)


def test_a_hybrids_rounds_have_the_costs_of_the_part_that_drafted():
    """By hand: the lookup's rounds are priced by its own costs, and the model then catches up with all of them."""
    lookup = replace(COSTS, draft_idle=0.0, draft_at=[(1, 0.001)], draft_catch=0.5, draft_slope=0.0)
    rounds = [RoundCounts(2, 2), RoundCounts(4, 3, looked_up=True), RoundCounts(2, 0)]
    part = price(speculated(4, rounds), plain(9), COSTS, rounds_along=lambda text: rounds, lookup_costs=lookup)
    drafts = [COSTS.draft_seconds(2, 10, 1), 0.001, COSTS.draft_seconds(2, 10 + 3 + 4, 2 + 4)]
    verify = [COSTS.verify_seconds(n + 1, context) for n, context in ((2, 10), (4, 13), (2, 17))]
    assert part.draft == pytest.approx(sum(drafts))
    assert part.verify == pytest.approx(sum(verify))
    assert part.expected == pytest.approx(sum(drafts) + sum(verify) + part.overhead)
    assert price(speculated(4, rounds), plain(9), COSTS) is None, "nothing is known of its lookups"
    part = price(speculated(4, rounds[::2]), plain(6), COSTS, rounds_along=lambda text: rounds)
    assert part.expected == 0 < part.verify


def random_rounds(dice: random.Random, n: int, k: int) -> list[RoundCounts]:
    """Rounds as production makes them: never more drafts than what is left but one."""
    rounds, t = [], 1
    while t < n:
        drafted = min(dice.randint(0, k), n - t - 1)
        accepted = dice.randint(0, drafted)
        rounds.append(RoundCounts(drafted, accepted))
        t += accepted + 1
    return rounds


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("seed", range(4))
def test_forecast_by_brute_force(seed, k):
    """AcceptProbs of their own at every place, prices that grow with the context, two tokens to catch up with."""
    dice = random.Random(seed)
    accept = [dice.choice([0.0, 1.0, dice.random()]) for _ in range(9)]
    rounds = random_rounds(dice, 9, k)
    part = price(speculated(k, rounds), plain(9), COSTS, constant(accept))
    accept_probs = model_accept_probs(accept)
    seconds = expected_seconds(accept_probs, 9, k, seconds_of)
    assert part.expected == pytest.approx(seconds)
    assert part.expected_rounds == pytest.approx(expected_seconds(accept_probs, 9, k, lambda n, t, catch: 1.0))
    replaying = price(speculated(k, rounds), plain(9), replace(COSTS, replay=1.0), constant(accept))
    assert replaying.expected - part.expected == pytest.approx(forecast(accept_probs, k).n_rejected)
    row = explained(speculated(k, rounds), plain(9), constant(accept))
    assert row.forecast == pytest.approx(part.baseline / seconds)
    assert row.forecast_tokens_per_round == pytest.approx(8 / part.expected_rounds)


def test_forecast_by_brute_force_for_lookups():
    """Proposals that depend on where they were made, shorter than k or empty."""
    accept_probs = [[], [1.0, 0.0], [], [1.0], [1.0, 1.0, 1.0], [0.0], [], [1.0], []]
    part = price(speculated(3, [RoundCounts(0, 0)] * 8), plain(9), COSTS, lambda text: accept_probs)
    assert part.expected == pytest.approx(expected_seconds(accept_probs, 9, 3, seconds_of))


def test_every_repeats_text_has_a_forecast_of_its_own():
    base = plain(6, 6, 6)
    base.texts[1] = [1] * 6

    def accept_probs(text: tuple[int, ...]) -> AcceptProbs:
        return model_accept_probs([0.9 if text[0] else 0.1] * 6)

    part = price(speculated(2, ROUNDS, ROUNDS, ROUNDS), base, COSTS, accept_probs)
    rare, common = (
        price(speculated(2, ROUNDS), plain(6), COSTS, constant([chance] * 6)).expected for chance in (0.9, 0.1)
    )
    assert part.expected == pytest.approx(rare + 2 * common)


@pytest.mark.parametrize("k", [1, 3, 4])
def test_every_rung_is_its_formula(k):
    """Constant acceptance has closed forms; what has none is enumerated."""
    accept = 0.6
    dice = random.Random(k)
    rounds = random_rounds(dice, 12, k)
    while not any(one.n_drafted for one in rounds[:2]):
        rounds = random_rounds(dice, 12, k)
    row = explained(speculated(k, rounds, seconds=9.0), plain(12, seconds=14.0), constant([accept] * 12))
    alpha = row.acceptance_rate
    assert alpha is not None
    tau = (1 - alpha ** (k + 1)) / (1 - alpha) if alpha < 1 else k + 1
    contexts = list(itertools.accumulate((one.n_accepted + 1 for one in rounds), initial=N_PROMPT))[:-1]
    caught = catch_ups(rounds)
    steps = sum(1.0 + 0.01 * (N_PROMPT + i) for i in range(11))
    step, made = steps / 11, list(zip(rounds, contexts, caught, strict=True))
    draft = statistics.mean(COSTS.draft_seconds(n, context, catch) for (n, *_), context, catch in made) / step
    verify = statistics.mean(COSTS.verify_seconds(n + 1, context) for (n, *_), context, _ in made) / step
    overhead = statistics.mean(COSTS.overhead_seconds(n) for n, *_ in rounds) / step
    real = expected_seconds(model_accept_probs([accept] * 12), 12, k, seconds_of)
    assert [(rung.name, rung.speedup) for rung in row.ladder] == [
        ("book formula", pytest.approx(1 / (1 - alpha + alpha / k))),
        ("bonus and partial drafts", pytest.approx(tau)),
        ("draft cost", pytest.approx(tau / (1 + draft))),
        ("verification", pytest.approx(tau / (draft + verify))),
        ("overhead", pytest.approx(tau / (draft + verify + overhead))),
        ("real acceptance", pytest.approx(steps / real)),
        ("all else", pytest.approx(14.0 / 9.0)),
    ]
    assert row.cost_model == pytest.approx(tau / (draft + verify + overhead))
    assert row.leviathan == pytest.approx(tau / (1 + k * row.draft_cost))
    assert math.prod(attribution.factors(row).values()) == pytest.approx(row.speedup / row.book_formula)
    assert row.forecast == pytest.approx(steps / real)


@pytest.mark.parametrize(
    ("k", "rounds"), [(0, [RoundCounts(0, 0)] * 5), (3, [RoundCounts(0, 0)] * 5)], ids=["k = 0", "nothing found"]
)
def test_rows_without_drafts_have_predictions_and_no_ladder(k, rounds):
    seconds = sum(COSTS.round_seconds(0, N_PROMPT + i) for i in range(5))
    mine, base = speculated(k, rounds, seconds=seconds), plain(6, seconds=5.6)
    row = explained(mine, base, lambda text: [[]] * len(text))
    assert row.ladder is row.leviathan is row.cost_model is row.draft_cost is None
    assert row.accounting == pytest.approx(row.speedup)
    assert row.forecast == pytest.approx(row.speedup)
    assert row.forecast_tokens_per_round == 1
    assert row.verify_cost == pytest.approx(statistics.mean(1.1 + 0.02 * c for c in range(10, 15)) / 1.12)


@pytest.mark.parametrize(
    ("arm", "known", "has"),
    [
        (Arm("model", "model", 2), {"probs_along": constant(HALF)}, True),
        (Arm("hybrid", "hybrid", 2), {"rounds_along": lambda text: ROUNDS}, True),
        (Arm("model auto", "model auto", 2, auto=True), {"rounds_along": lambda text: ROUNDS}, False),
        (Arm("tree", "tree", 2, branches=True), {"rounds_along": lambda text: ROUNDS}, False),
    ],
    ids=lambda value: value.label if isinstance(value, Arm) else "",
)
def test_a_ladder_is_only_for_what_the_formula_knows(arm, known, has):
    """One length and no branches; the accounting is for all, and a forecast for what is known of the text."""
    row = explained(speculated(2, ROUNDS, arm=arm), plain(6), **known)
    assert row.accounting
    assert row.forecast
    assert (row.ladder is not None) is (row.leviathan is not None) is has
    assert explained(speculated(2, ROUNDS, arm=arm), plain(6)).forecast is None
