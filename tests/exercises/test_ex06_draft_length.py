"""The checks of exercise 6: the best fixed length from costs, and an adaptive rule with a score to reach."""

import itertools
from types import ModuleType

import pytest

from exercises import simulator
from solutions import ex06_draft_length as right
from tests.exercises.answers import asked, whole


def costs(slope: float = 0.0, others: dict[int, float] | None = None) -> tuple[float, ...]:
    """Of passes over m = 1, 2, ... tokens: 1 + slope (m - 1), but for the widths that are named."""
    return tuple((others or {}).get(m, 1 + slope * (m - 1)) for m in range(1, 18))


FLAT, FREE = costs(), 0.0
BEST = "alpha {}, draft_cost {}, verify_cost of m = 1, 2, ... {}, overhead {}, longest {}: the best k"


def best(one: ModuleType, alpha: float, c: float, table: tuple[float, ...], o: float, longest: int) -> object:
    return whole(one.best_draft_length(alpha, c, lambda m: table[m - 1], o, longest))


KNOWN = {
    **{(alpha, c, FLAT, 0.0, 16): k for alpha, c, k in ((0.8, 0.1, 6), (0.8, 0.3, 3), (0.6, 0.1, 3), (0.95, 0.1, 15))},
    (0.8, 0.02, costs(0.0, dict.fromkeys(range(5, 10), 2.0)), 0.0, 8): 3,  # a draft of 4 needs a pass over 5
    (0.9, 0.02, costs(0.0, dict.fromkeys(range(3, 10), 1.6)), 0.0, 8): 8,  # after the dip at k = 2 it rises again
    (0.3, 0.3, costs(0.1), 0.05, 16): 0,
    (0.4, 0.1, costs(0.0, {1: 0.5}), 0.0, 8): 2,
    (0.95, FREE, FLAT, 0.0, 5): 5,
    (0.95, FREE, FLAT, 0.0, 0): 0,
    (0.0, FREE, FLAT, 0.0, 8): 0,
    (1.0, 1.0, FLAT, 0.0, 8): 0,
}
for first, second in ((1, 3), (3, 7)):  # equally fast
    others = dict.fromkeys(range(1, 11), 99.0) | {first + 1: 1.0, second + 1: 2.0}
    KNOWN[1.0, FREE, costs(0.0, others), 0.0, 9] = first


SLOPES = [costs(slope) for slope in (0.0, 0.03, 0.2)]
GRID = list(itertools.product((0.0, 0.2, 0.5, 0.75, 0.9, 1.0), (0.0, 0.07, 0.4), SLOPES, (0.0, 0.15), (10,)))


@asked([*KNOWN, *GRID], BEST, [*KNOWN.values(), *(best(right, *case) for case in GRID)])
def test_the_best_length(one, *case):
    """best_draft_length: the k with the most tokens per step, of all lengths, the shortest of equal ones; a draft of k
    needs a pass over k + 1. Plain decoding is a token per step by definition, k = 0 with a speedup of 1."""
    return best(one, *case)


LENGTH = "next_draft_length({}, {}, {}, {})"
ROUNDS = [
    (k, n_drafted, n_accepted, longest)
    for longest in (1, 3, 16)
    for k in [*range(1, longest + 1), 0]
    for n_drafted in range(k + 1)
    for n_accepted in range(n_drafted + 1)
]


@asked([*ROUNDS, (0, 0, 0, 0)], LENGTH, [*(f"from 1 to {case[-1]}" for case in ROUNDS), 0])
def test_the_rule_stays_in_range(one, *case):
    """next_draft_length: from 1 to longest, also after k = 0; a round without a draft shows nothing of the text."""
    answer = whole(one.next_draft_length(*case))
    return f"from 1 to {case[-1]}" if 1 <= answer <= case[-1] else answer


@asked([(8, 3, 3, 16), (8, 0, 0, 16), (5, 4, 4, 16), (2, 1, 1, 16)], LENGTH, [f"at least {k}" for k in (8, 8, 5, 2)])
def test_what_was_not_drafted_was_not_rejected(one, k, *case):
    """next_draft_length: where all that was drafted was accepted, do not go down; compare with n_drafted."""
    answer = one.next_draft_length(k, *case)
    return f"at least {k}" if answer >= k else answer


SCORE = (
    f"target steps per token in the simulation, where always 2 needs {simulator.fixed(2):.3f} and an oracle that knows"
)
SCORE += f" every round in advance {simulator.oracle():.3f}; at most {{}}"


def scored(one: ModuleType, bound: float) -> str:
    score = simulator.score(one.next_draft_length)
    return "enough" if score <= bound else f"{score:.6f}"


@asked([(simulator.BRONZE,)], SCORE, ["enough"])
def test_the_rule_reaches_bronze(one, bound):
    """next_draft_length: at most 0.842 target steps per token in the simulation, as the best fixed length."""
    return scored(one, bound)


@asked([(simulator.SCORE,)], SCORE, ["enough"])
def test_the_rule_reaches_silver(one, bound):
    """next_draft_length: easy stretches want long drafts and hard ones short drafts: let the last round decide."""
    return scored(one, bound)


def test_the_bounds_of_the_score():
    """What the chapter says: no fixed length reaches the score, and no lengths are cheaper than the oracle's."""
    scores = [simulator.fixed(k) for k in range(simulator.LONGEST + 1)]
    said = {2: 0.840, 0: 1.05, 4: 0.917, 16: 1.678}
    assert {k: scores[k] for k in said} == pytest.approx(said, abs=5e-4)
    assert min(scores) == scores[2] > simulator.SCORE
    assert scores[5] < 1 < scores[6]
    assert simulator.score(lambda *_: 2) <= simulator.BRONZE < min(scores[:2] + scores[3:])
    assert simulator.oracle() == pytest.approx(0.589, abs=5e-4)
    medals = {0.9: "no medal", simulator.fixed(2): "bronze", simulator.SCORE: "silver"}
    assert {score: simulator.medal(score) for score in medals} == medals
