"""Checks of exercise 19: outcomes, what to prepare, the time of a round, and the hit rate that it takes.

The last check holds all four against a simulation of two devices, event by event, with seeded draws.
"""

import itertools
import json
import random
import re
from collections import Counter
from fractions import Fraction
from types import ModuleType

import pytest

from solutions import ex19_draft_ahead as right
from speclab.system.paths import ROOT
from tests.exercises.answers import chapter, unlike, whole, wrong

STEM = "ex19_draft_ahead"
Costs = tuple[float, float, float, float]  # verify, draft, prepare, sync


def rounded(answer: object) -> object:
    """Nine digits of all numbers in an answer, which may be lists in a list; None stays."""
    if isinstance(answer, list | tuple):
        return [rounded(one) for one in answer]
    return None if answer is None else round(float(answer), 9)


# --- outcomes ---------------------------------------------------------------------------------------------------------

LEVEL = [0.5, 0.25, 0.125, 0.0625]
OUTCOMES = [  # acceptance, guessed
    ([0.5], [[0.5, 0.25], [0.75]]),
    ([0.75, 0.5], [LEVEL, LEVEL, LEVEL]),
    ([0.25, 1.0, 0.5], [[0.5], [0.5, 0.5], [], [0.25, 0.125, 0.125]]),
    ([1.0, 1.0], [LEVEL, LEVEL, [0.75]]),
    ([0.0, 0.5], [[0.5, 0.5], LEVEL, LEVEL]),
    ([], [[0.5, 0.25]]),
    ([0.9375] * 12, [LEVEL] * 13),
    ([0.5, 0.875, 0.75, 0.625, 0.5], [LEVEL[: n % 5] for n in range(6)]),
    ([0.5], [[0.03125] * 20, [0.5]]),
]


def chances_of(learner: ModuleType) -> list[object]:
    found = []
    for acceptance, guessed in OUTCOMES:
        found.append(rounded(learner.outcome_chances(list(acceptance), [list(row) for row in guessed])))
    return found


def test_chances_of_outcomes(learner):
    """outcome_chances: the round gets as far as n, ends there, and the guess is right."""
    for (acceptance, guessed), given, expected, name in unlike(STEM, chances_of, learner, right, OUTCOMES):
        wrong(f"acceptance {acceptance}, guessed {guessed}: the chances are {expected}, yours says {given}{name}")


# --- what to prepare --------------------------------------------------------------------------------------------------

FANS = [  # chances, budget
    ([[0.25, 0.125], [0.375]], 2),
    ([[0.25, 0.125], [0.375]], 0),
    ([[0.25, 0.125], [0.375]], 9),
    ([[0.25, 0.0, 0.0], [0.375, 0.0]], 4),
    ([[0.125, 0.125], [0.125, 0.125], [0.125]], 3),  # equal ones: few accepted tokens first
    ([[0.0625], [0.125], [0.25], [0.5]], 2),
    ([[], [0.5], [], [0.25, 0.125]], 2),
    ([[0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625]], 5),
    ([[2.0**-n * share for share in LEVEL] for n in range(2, 14)], 20),
    ([[0.03125] * 24, [0.0625] * 3], 26),
    ([[0.25, 0.25], [0.125, 0.0625], [0.25]], 3),
    ([[2.0 ** (n - 16)] for n in range(14)], 3),  # the last rows are the likeliest
]


def fans_of(learner: ModuleType) -> list[object]:
    found = []
    for chances, budget in FANS:
        answer = learner.fan_out([list(row) for row in chances], budget)
        found.append([whole(n) for n in answer])
    return found


def test_what_is_prepared(learner):
    """fan_out: the most likely outcomes of all, whatever their row."""
    for (chances, budget), given, expected, name in unlike(STEM, fans_of, learner, right, FANS):
        wrong(f"chances {chances}, {budget} drafts: {expected} guesses by row, yours says {given}{name}")


# --- the time of a round ----------------------------------------------------------------------------------------------

TIMES: list[tuple[float, Costs]] = [  # hit; verify, draft, prepare, sync
    (0.5, (1.0, 0.5, 0.75, 0.25)),
    (1.0, (1.0, 0.5, 1.25, 0.25)),
    (0.0, (1.0, 0.5, 1.25, 0.25)),
    (0.5, (1.0, 0.5, 2.0, 0.0)),  # prepared too late: a fresh draft is faster
    (1.0, (1.0, 0.5, 2.0, 0.0)),
    (0.75, (1.25, 2.0, 2.0, 0.5)),  # drafting takes longer than verifying
    (0.25, (1.5, 0.0, 0.0, 0.0)),
    (0.5, (0.5, 0.25, 0.75, 0.0)),  # both come at the same time
    (0.125, (8.0, 16.0, 20.0, 1.0)),
    (0.625, (1.0, 1.0, 0.0, 0.0)),
]


def times_of(learner: ModuleType) -> list[object]:
    return [rounded(learner.round_time(hit, *costs)) for hit, costs in TIMES]


def in_steps(costs: Costs) -> str:
    return "verify {}, draft {}, prepare {}, sync {}".format(*costs)


def test_the_time_of_a_round(learner):
    """round_time: both devices at once; a miss drafts after the verification."""
    for (hit, costs), given, expected, name in unlike(STEM, times_of, learner, right, TIMES):
        wrong(f"hit {hit}, {in_steps(costs)}: a round takes {expected} steps, yours says {given}{name}")


# --- the hit rate that it takes ---------------------------------------------------------------------------------------

NEEDED: list[tuple[float, Costs, float]] = [  # tokens, costs, other
    (3.0, (1.0, 1.0, 1.0, 0.0), 2.0),
    (3.0, (1.0, 1.0, 1.0, 0.0), 1.5),
    (3.0, (1.0, 1.0, 1.0, 0.0), 1.0),
    (3.0, (1.0, 1.0, 1.0, 0.0), 4.0),
    (3.0, (1.0, 1.0, 1.0, 0.0), 3.0),  # just with hits alone
    (2.5, (1.0, 0.5, 1.25, 0.25), 1.5625),
    (2.5, (1.0, 0.5, 9.0, 0.0), 2.0),  # prepared too late: hits gain nothing
    (2.5, (1.0, 0.5, 9.0, 0.0), 1.25),
    (4.0, (1.25, 2.0, 2.0, 0.5), 1.25),
    (2.0, (1.0, 0.5, 0.5, 0.5), 1.0),
    (2.0, (1.0, 0.0, 0.0, 0.25), 1.75),
    (6.0, (2.0, 4.0, 3.0, 0.0), 1.25),
]


def needed_of(learner: ModuleType) -> list[object]:
    own, learner.round_time = learner.round_time, right.round_time  # a mistake there is told by its own check
    try:
        return [rounded(learner.needed_hit_rate(tokens, *costs, other)) for tokens, costs, other in NEEDED]
    finally:
        learner.round_time = own


def test_the_hit_rate_that_it_takes(learner):
    """needed_hit_rate: 0 where none is needed, None where all hits are too few."""
    for (tokens, costs, other), given, expected, name in unlike(STEM, needed_of, learner, right, NEEDED):
        wrong(
            f"{tokens} tokens a round, {in_steps(costs)}, otherwise {other} tokens a step: {expected} is needed, yours "
            f"says {given}{name}"
        )


# --- a simulation -----------------------------------------------------------------------------------------------------

SCENES = [  # acceptance, guessed, budget, costs
    ([0.75, 0.75, 0.75, 0.75], [LEVEL] * 5, 4, (1.25, 0.5, 0.5, 0.0)),
    ([0.875, 0.5], [[0.5, 0.25], [0.375, 0.375], [0.75, 0.125]], 3, (1.0, 1.5, 2.0, 0.125)),
    ([0.5] * 6, [LEVEL] * 7, 8, (1.0, 0.75, 1.5, 0.25)),
]
ROUNDS = 20_000
SIGMAS = 5


def simulated_round(outcome: tuple[int, int | None], prepared: list[int], costs: Costs) -> float:
    """The time of a round by its events. outcome: accepted tokens, and the guess that the next token is, None: none.
    prepared: guesses by row."""
    verify, draft, prepare, sync = costs
    clock = verify  # the outcome is known
    n, guess = outcome
    is_prepared = guess is not None and guess < prepared[n]
    fresh = clock + draft
    clock = min(max(clock, prepare), fresh) if is_prepared else fresh
    return clock + sync


def all_outcomes(acceptance: list[float], guessed: list[list[float]]) -> dict[tuple[int, int | None], Fraction]:
    """How likely each outcome is, by going through all ways in which a round can go."""
    found: dict[tuple[int, int | None], Fraction] = {}
    for judged in itertools.product([True, False], repeat=len(acceptance)):
        way = Fraction(1)
        for ok, share in zip(judged, acceptance, strict=True):
            way *= Fraction(share) if ok else 1 - Fraction(share)
        n = next((i for i, ok in enumerate(judged) if not ok), len(judged))
        for guess, share in enumerate(guessed[n]):
            found[n, guess] = found.get((n, guess), Fraction(0)) + way * Fraction(share)
        found[n, None] = found.get((n, None), Fraction(0)) + way * (1 - sum(map(Fraction, guessed[n])))
    return found


def drawn(acceptance: list[float], guessed: list[list[float]], draws: random.Random) -> tuple[int, int | None]:
    """An outcome, by drawing token after token."""
    n = 0
    while n < len(acceptance) and draws.random() < acceptance[n]:
        n += 1
    left = draws.random()
    for guess, share in enumerate(guessed[n]):
        left -= share
        if left < 0:
            return n, guess
    return n, None


@pytest.mark.whole
def test_two_simulated_devices(learner):
    """All four together: what they say of a round, and what a simulation of two devices takes."""
    for scene, (acceptance, guessed, budget, costs) in enumerate(SCENES, start=1):
        chances = learner.outcome_chances(list(acceptance), [list(row) for row in guessed])
        prepared = learner.fan_out([list(row) for row in chances], budget)
        if len(prepared) != len(guessed) or sum(prepared) > budget:
            wrong(f"scene {scene}: {budget} drafts can be prepared for {len(guessed)} rows, yours prepares {prepared}")
        hit = sum(sum(row[:n]) for row, n in zip(chances, prepared, strict=True))
        said = float(learner.round_time(hit, *costs))
        draws = random.Random(scene)
        times, n_tokens = [], 0
        for _ in range(ROUNDS):
            outcome = drawn(acceptance, guessed, draws)
            times.append(simulated_round(outcome, prepared, costs))
            n_tokens += 1 + outcome[0]
        mean = sum(times) / ROUNDS
        spread = (sum((one - mean) ** 2 for one in times) / ROUNDS**2) ** 0.5
        if abs(said - mean) > SIGMAS * spread + 1e-9:
            wrong(
                f"scene {scene}: in {ROUNDS:,} simulated rounds one takes {mean:.3f} steps; with your hit rate of "
                f"{hit:.3f} your round_time says {said:.3f}"
            )
        tokens = n_tokens / ROUNDS
        needed = learner.needed_hit_rate(tokens, *costs, tokens / mean)  # what the simulation itself has reached
        if needed is None or abs(needed - hit) > 0.05:
            wrong(
                f"scene {scene}: the simulation makes {tokens / mean:.3f} tokens a step with a hit rate of {hit:.3f}; "
                f"yours says that {needed} is needed for that"
            )


# --- the simulation itself, and the page ------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_the_solution_is_an_enumeration(scene):
    acceptance, guessed, budget, costs = scene
    found = all_outcomes(acceptance, guessed)
    assert sum(found.values()) == 1
    chances = right.outcome_chances(acceptance, guessed)
    for n, row in enumerate(chances):
        assert row == [float(found[n, guess]) for guess in range(len(row))]
    prepared = right.fan_out(chances, budget)
    hit = sum(sum(row[:n]) for row, n in zip(chances, prepared, strict=True))
    time = sum(chance * Fraction(simulated_round(outcome, prepared, costs)) for outcome, chance in found.items())
    assert right.round_time(hit, *costs) == pytest.approx(float(time))
    shapes = itertools.product(*[range(len(row) + 1) for row in guessed])
    hits = [
        sum(sum(row[:n]) for row, n in zip(chances, shape, strict=True)) for shape in shapes if sum(shape) <= budget
    ]
    assert hit == pytest.approx(max(hits))


def test_a_needed_rate_is_where_both_are_equal():
    for tokens, costs, other in NEEDED:
        hit = right.needed_hit_rate(tokens, *costs, other)
        if hit:
            assert tokens / right.round_time(hit, *costs) == pytest.approx(other)
        elif hit is None:
            assert tokens / right.round_time(1.0, *costs) < other
        else:
            assert tokens / right.round_time(0.0, *costs) >= other


def test_the_tables_of_the_chapter():
    """Costs and tokens of the committed record, and what the functions make of them."""
    record = json.loads((ROOT / "results" / "cpu-2-cores-ahead.json").read_text("utf-8"))
    costs = {one["name"]: one for one in record["costs"]}
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", chapter(STEM), re.MULTILINE)
    assert rows
    for name, draft, verify, tokens, cells in rows:
        one = costs[name]
        assert (draft, verify, tokens) == tuple(f"{one[key]:.2f}" for key in ("draft", "verify", "tokens_per_round"))
        prices = one["verify"], one["draft"], one["draft"]
        alone = one["tokens_per_round"] / (one["verify"] + one["draft"])
        speeds = [one["tokens_per_round"] / right.round_time(hit, *prices, 0.1) for hit in (0.5, 0.8, 1.0)]
        needed = right.needed_hit_rate(one["tokens_per_round"], *prices, 0.1, alone)
        shown = [f"{speed:.2f}x" for speed in (alone, *speeds)] + ["never" if needed is None else f"{needed:.2f}"]
        assert cells.split(" | ") == shown
    hits = re.findall(
        r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+%) \| (\d+%) \| (\d+%) \| (.+)x \|$", chapter(STEM), re.MULTILINE
    )
    assert len(hits) == len(rows)
    for name, n_even, n_odd, *rates, speed in hits:
        even, odd = (
            Counter(
                {
                    (n, guess): sum(one["counts"][n][guess] for one in record["raw"] if is_in_half(one, name, half))
                    for n in range(record["settings"]["k"] + 1)
                    for guess in range(len(record["raw"][0]["counts"][0]))
                }
            )
            for half in (0, 1)
        )
        assert (even.total(), odd.total()) == (int(n_even), int(n_odd))
        others = len(record["raw"][0]["counts"][0]) - 1  # the last entry of a row is no guess
        known = Counter({outcome: n for outcome, n in even.items() if outcome[1] < others})
        shares = [sum(odd[outcome] for outcome, _ in known.most_common(budget)) / odd.total() for budget in (1, 4, 16)]
        assert [f"{share:.0%}" for share in shares] == rates
        one = costs[name]
        time = right.round_time(shares[1], one["verify"], one["draft"], one["draft"], 0.1)
        assert f"{one['tokens_per_round'] / time:.2f}" == speed


def is_in_half(one: dict, name: str, half: int) -> bool:
    """Tell whether these rounds are of this draft and of a prompt with an even (0) or an odd (1) number."""
    return one["draft"] == name and one["prompt_index"] % 2 == half
