"""Checks of exercise 10: the running ratio, the threshold, the round, and its joint law, exactly."""

import itertools
import random
from fractions import Fraction

import torch

from tests.exercises.answers import asked
from tests.exercises.test_ex04_rejection import FAMILIES, exactly, pair, rows, shown
from tests.test_exact import Job, Row, random_tables

HALF, ODD = [0.5, 0.5], [0.25, 0.75]  # p / q is 0.5 for token 0 and 1.5 for token 1
RATIOS = [  # drafted, q and p at every position
    *((drafted, HALF, ODD) for k in range(3) for drafted in itertools.product(range(2), repeat=k)),
    *(((0, *more), HALF, ODD) for more in ((0, 1), (1, 1))),
    ((1, 1, 0), HALF, ODD),
    ((0,), HALF, [0.0, 1.0]),  # a token that the target rules out
    ((0, 1, 1, 0, 1, 1, 1, 0), [0.6, 0.4], [0.3, 0.7]),
]


def ratios(drafted: tuple[int, ...], q: list[float], p: list[float]) -> list[float]:
    odds = (p[token] / q[token] for token in drafted)
    return list(itertools.accumulate(odds, lambda b, odd: min(1.0, b * odd), initial=1.0))


@asked(RATIOS, "drafted {}, q = {} and p = {} everywhere: b", [shown(ratios(*case)) for case in RATIOS])
def test_the_ratio_runs_along_the_draft_and_never_passes_1(one, drafted, q, p):
    """running_ratios: b_0 is 1, and each ratio is the one before it times p / q, capped at 1 after every token."""
    k = len(drafted)
    found = one.running_ratios(list(drafted), rows(*[q] * k).reshape(k, 2), rows(*[p] * (k + 1)))
    return shown([float(b) for b in found])


THRESHOLDS = [  # b, p, q
    *((b, [0.25, 0.75], HALF) for b in (1.0, 0.5, 0.75, 0.0)),
    (0.5, [1.0, 0.0], [0.0, 1.0]),
    (0.5, [0.5, 0.25, 0.25], [0.0, 0.5, 0.5]),
    (0.75, [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]),
    (0.85, [0.3, 0.05, 0.2, 0.1, 0.15, 0.1, 0.1], [0.1, 0.2, 0.1, 0.05, 0.25, 0.1, 0.2]),
    *((1.0, p, p) for p in ([0.5, 0.5], [1.0, 0.0])),
]
THRESHOLD = "b = {}, p = {}, q = {}: the threshold"


@asked(THRESHOLDS, THRESHOLD, [round(x, 9) for x in (1, 0, 1 / 5, 0, 1 / 2, 1 / 3, 1 / 2, 26 / 41, 1, 1)])
def test_the_threshold_weighs_what_the_target_has_left(one, b, p, q):
    """threshold: it is z / (z + 1 - b), where z is the sum of max(0, b p - q); where both are 0 nothing is missing, and
    it is 1."""
    try:
        return round(float(one.threshold(b, rows(p)[0], rows(q)[0])), 9)
    except ZeroDivisionError:
        return "a division of 0 by 0"


def in_words(drafted: list[int], q: torch.Tensor, p: torch.Tensor, uniforms: list[float]) -> str:
    tables = f"q = {q.tolist()}, p = {p.tolist()}" if len(drafted) < 7 else "in long tables"
    return f"drafted {drafted}, {tables}, uniforms {uniforms}"


Q, P = rows(*[HALF] * 3), rows(*[ODD] * 3, HALF)
TESTS = [([0, 1, 1], [0.9, 0.9, 0.9]), ([1, 0], [0.9, 0.4]), ([1, 0], [0.9, 0.6]), ([1, 1], [0.9, 0.9])]
TESTS += [([0, 1, 0], [0.9, *more]) for more in ([0.1, 0.9], [0.3, 0.9], [0.3, 0.3])] + [([0], [0.4]), ([0], [0.6])]
LAST = 1 - 2**-53  # the largest number below 1
NEARLY = [0.5, 0.5 - 2**-53, 0.0]  # below (1/2, 1/2, 0) by one rounding, and above it nowhere
ROUNDS = [
    *((drafted, Q[: len(drafted)], P[: len(drafted) + 1], [*tests, 0.77]) for drafted, tests in TESTS),
    ([], Q[:0], P[:1], [0.77]),  # plain decoding
    ([0], Q[:1], rows([0.0, 1.0], HALF), [0.0, 0.77]),  # a text that the target rules out
    ([0], rows([0.75, 0.125, 0.125]), rows([0.25, 0.375, 0.375], NEARLY), [0.9, 0.77]),
    ([1], rows([0.5, 0.5, 0.0]), rows(NEARLY, NEARLY), [LAST, 0.77]),  # nothing is left to divide by
]


def seven(seed: int) -> tuple:
    dice = random.Random(seed)
    p, q = (rows(*(random_row(dice) for _ in range(n))) for n in (8, 7))
    return [dice.randrange(5) for _ in range(7)], q, p, [dice.random() for _ in range(8)]


def random_row(dice: random.Random) -> list[float]:
    weights = [dice.randint(1, 20) for _ in range(5)]
    return [weight / sum(weights) for weight in weights]


@asked([*ROUNDS, *map(seven, range(40))], in_words)
def test_the_longest_length_that_may_be_kept_is_kept(one, drafted, q, p, uniforms):
    """verify_block: each length has its own test and uniform, strictly below its bound; the next token comes from what
    that length has left, divided by its sum."""
    seen = []

    def noted(probs: torch.Tensor, uniform: float) -> int:
        seen.append((shown(probs), float(uniform)))
        return 1

    given = one.verify_block(list(drafted), q.clone(), p.clone(), list(uniforms), noted)
    kept, token = pair(given, f"drafted {drafted}, uniforms {uniforms}")
    return {"kept": kept, "draw is called with": seen, "after the kept ones comes what draw returned": token == 1}


def block_pieces(job: Job, tokens: tuple[int, ...]) -> tuple[list[list[Fraction]], list[Row]]:
    """Where a test of the block rule, or of a wrong one, changes, and the rows that are left after each length."""
    rows_of = [[table[tokens[:i]] for table in (job.tables.target, job.tables.draft)] for i in range(len(tokens))]
    alone = [p[token] / q[token] for token, (p, q) in zip(tokens, rows_of, strict=True)]
    b = list(itertools.accumulate(alone, lambda ratio, odds: min(Fraction(1), ratio * odds), initial=Fraction(1)))
    left = [[max(Fraction(0), b[i] * x - y) for x, y in zip(*both, strict=True)] for i, both in enumerate(rows_of)]
    tests = [[ratio, odds] for ratio, odds in zip(b[1:], alone, strict=True)]
    for corners, ratio, row in zip(tests, b[1:], left[1:], strict=False):
        rest = sum(row) + 1 - ratio
        corners.append(sum(row) / rest if rest else Fraction(1))
    return tests, left


def test_the_joint_law_is_exactly_the_targets(learner):
    """verify_block: summed in fractions over every outcome, the next k + 1 tokens follow the target's law."""
    shapes = [(1, 3, 0), (2, 2, 0), (2, 3, 1), (2, 3, 5), (2, 3, 6)]  # k, vocabulary, seed
    for family, (k, vocab, seed) in itertools.product(FAMILIES, shapes):
        exactly(learner, "verify_block", random_tables(seed, vocab, k, k + 1, family), block_pieces)
