"""Checks of exercise 10: the running ratio, the threshold, the round, and its joint law, exactly."""

import itertools
import random
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType

import pytest
import torch

from solutions import ex10_block_rule as right_rule
from solutions.ex04_rejection import verify_draft
from tests.exercises.answers import named_by, wrong
from tests.exercises.test_ex04_rejection import (
    FAMILIES,
    Corners,
    alike,
    answers_of,
    exact_cases,
    furthest,
    law_of,
    named,
    pair,
    rows_along,
)
from tests.test_exact import Row, Tables, completed, random_tables, target_law

STEM = "ex10_block_rule"
NEAR = 1e-9


def rows(*lists: list[float]) -> torch.Tensor:
    return torch.tensor(lists, dtype=torch.float64)


# --- ratio and threshold ----------------------------------------------------------------------------------------------

Q = rows([0.5, 0.5], [0.5, 0.5], [0.5, 0.5])
P = rows([0.25, 0.75], [0.25, 0.75], [0.25, 0.75], [0.5, 0.5])
RATIOS = {
    (): [1.0],
    (0,): [1.0, 0.5],
    (1,): [1.0, 1.0],
    (0, 1): [1.0, 0.5, 0.75],
    (1, 0): [1.0, 1.0, 0.5],
    (0, 0, 1): [1.0, 0.5, 0.25, 0.375],
    (0, 1, 1): [1.0, 0.5, 0.75, 1.0],
    (1, 1, 0): [1.0, 1.0, 1.0, 0.5],
}


def test_the_ratio_runs_along_the_draft_and_never_passes_1(learner):
    """running_ratios: each ratio is the one before it times p / q, capped at 1 after every token."""
    for drafted, right in RATIOS.items():
        k = len(drafted)
        given = learner.running_ratios(list(drafted), Q[:k].clone(), P[: k + 1].clone())
        about = f"drafted {list(drafted)}, p / q is 0.5 for token 0 and 1.5 for token 1: b is {right}, yours is {given}"
        if not isinstance(given, list | tuple) or not all(isinstance(float(b), float) for b in given):
            wrong(f"{about}; remember: a list of numbers is returned")
        found = [float(b) for b in given]
        if len(found) != k + 1:
            wrong(f"{about}; remember: k drafts have k + 1 ratios, b_0 = 1 first")
        if found != pytest.approx(right, abs=NEAR):
            odds = [0.5 if token == 0 else 1.5 for token in drafted]
            alone = [1.0, *(min(1.0, odd) for odd in odds)]
            uncapped = [1.0, *itertools.accumulate(odds, lambda a, b: a * b)]
            why = ""
            if found == pytest.approx(uncapped, abs=NEAR):
                why = "; remember: it is capped at 1 after every token"
            elif found == pytest.approx([min(1.0, b) for b in uncapped], abs=NEAR):
                why = "; remember: the running ratio itself is capped; what is above 1 may not pay for a later token"
            elif found == pytest.approx(alone, abs=NEAR):
                why = "; remember: it is multiplied with the ratio of the tokens before"
            wrong(about + why)
    forbidden = [float(b) for b in learner.running_ratios([0], rows([0.5, 0.5]), rows([0.0, 1.0], [0.5, 0.5]))]
    if forbidden != [1.0, 0.0]:
        wrong(f"a token that the target rules out makes the ratio 0: b is [1.0, 0.0], yours is {forbidden}")
    p, q, drafted = [0.3, 0.7], [0.6, 0.4], [0, 1, 1, 0, 1, 1, 1, 0]
    right = list(itertools.accumulate([p[t] / q[t] for t in drafted], lambda b, odd: min(1.0, b * odd), initial=1.0))
    found = [float(b) for b in learner.running_ratios(list(drafted), rows(*[q] * 8), rows(*[p] * 9))]
    if found != pytest.approx(right, abs=NEAR):
        wrong(f"drafted {drafted}, p = {p} and q = {q} everywhere: b is {_short(right)}, yours is {_short(found)}")


def _short(numbers: list[float]) -> list[float]:
    return [round(number, 4) for number in numbers]


THRESHOLDS = [
    (1.0, [0.25, 0.75], [0.5, 0.5], 1.0),
    (0.5, [0.25, 0.75], [0.5, 0.5], 0.0),
    (0.75, [0.25, 0.75], [0.5, 0.5], 0.0625 / 0.3125),
    (0.5, [1.0, 0.0], [0.0, 1.0], 0.5),
    (0.5, [0.5, 0.25, 0.25], [0.0, 0.5, 0.5], 0.25 / 0.75),
    (0.0, [0.25, 0.75], [0.5, 0.5], 0.0),
    (0.75, [0.5, 0.5, 0.0], [0.25, 0.25, 0.5], 0.25 / 0.5),
    (0.85, [0.3, 0.05, 0.2, 0.1, 0.15, 0.1, 0.1], [0.1, 0.2, 0.1, 0.05, 0.25, 0.1, 0.2], 0.26 / 0.41),
]


def test_the_threshold_weighs_what_the_target_has_left(learner):
    """threshold: it is z / (z + 1 - b), where z is the sum of max(0, b p - q)."""
    for ratio, p, q, right in THRESHOLDS:
        target, draft = rows(p)[0], rows(q)[0]
        given = float(learner.threshold(ratio, target.clone(), draft.clone()))
        if given == pytest.approx(right, abs=NEAR):
            continue
        about = f"b = {ratio}, p = {p}, q = {q}: the threshold is {right:.4g}, yours is {given:.4g}"
        left = float((ratio * target - draft).clamp(min=0).sum())
        plain = float((target - draft).clamp(min=0).sum())
        for guess, why in [
            (left, "z is divided by z + 1 - b"),
            (left / (left + 1), "z is divided by z + 1 - b; the 1 - b is the share that the ratio has taken away"),
            (plain / (plain + 1 - ratio) if plain + 1 - ratio else 1.0, "the target's row is multiplied with b first"),
        ]:
            if given == pytest.approx(guess, abs=NEAR):
                wrong(f"{about}; remember: {why}")
        wrong(about)


def test_where_the_two_agree_the_threshold_is_1(learner):
    """threshold: where nothing is missing it is 1, and nothing is divided."""
    for p in ([0.5, 0.5], [1.0, 0.0]):
        try:
            given = float(learner.threshold(1.0, rows(p)[0], rows(p)[0]))
        except ZeroDivisionError:
            wrong("b = 1 and p = q: it looks as if yours divides 0 by 0. Remember: z and z + 1 - b are 0; return 1")
        if given != 1.0:
            wrong(f"b = 1 and p = q = {p}: nothing is missing and nothing has to be ended; 1, yours is {given}")


# --- the round --------------------------------------------------------------------------------------------------------

# What is kept of drafts by tests with these uniforms: (drafted, uniforms of the tests, kept). b = 0.5, 0.75, 1 and
# thresholds 0, 0.2 for [0, 1, 1]; b = 1, 0.5 and a threshold of 1 for [1, 0].
ROUNDS = [
    ([0, 1, 1], [0.9, 0.9, 0.9], 3),
    ([0, 1, 0], [0.9, 0.1, 0.9], 2),
    ([0, 1, 0], [0.9, 0.3, 0.9], 0),
    ([0, 1, 0], [0.9, 0.3, 0.3], 3),
    ([1, 0], [0.9, 0.4], 2),
    ([1, 0], [0.9, 0.6], 1),
    ([1, 1], [0.9, 0.9], 2),
    ([0], [0.4], 1),
    ([0], [0.6], 0),
]


def noted_rounds(verify_block: Callable) -> list[tuple[object, list[tuple[torch.Tensor, float]]]]:
    """What it returns for each of ROUNDS, and what it calls draw with."""
    found = []
    for drafted, tests, _ in ROUNDS:
        k, seen = len(drafted), []

        def noted(probs, uniform, seen=seen):
            seen.append((probs.clone().double(), float(uniform)))
            return 1

        given = verify_block(list(drafted), Q[:k].clone(), P[: k + 1].clone(), [*tests, 0.77], noted)
        found.append((given, seen))
    return found


def named_rounds(found: list) -> str:
    """The well-known mistake that makes the same of all these rounds, if it is one."""

    def explains(module: ModuleType) -> bool:
        return all(alike(*both) for both in zip(found, noted_rounds(module.verify_block), strict=True))

    return named_by(STEM, explains)


def test_the_longest_length_that_may_be_kept_is_kept(learner):
    """verify_block: each length has its own test and uniform; the next token comes from what that length has left."""
    found = noted_rounds(learner.verify_block)
    for (drafted, tests, n), (given, seen) in zip(ROUNDS, found, strict=True):
        k, about = len(drafted), f"drafted {drafted}, uniforms {tests}"
        kept, token = pair(given, about)
        if kept != n:
            wrong(f"{about}: {n} are kept, yours says {kept}{named_rounds(found)}")
        if token != 1:
            wrong(f"{about}: the next token is what draw returned, 1, yours says {token}")
        if len(seen) != 1 or seen[0][1] != 0.77:
            wrong(f"{about}: draw is called once, with the last uniform (0.77){named_rounds(found)}")
        left = (RATIOS.get(tuple(drafted[:n]), [1.0])[-1] * P[n] - Q[min(n, 2)]).clamp(min=0)
        right = P[k] if n == k else left / left.sum()
        if seen[0][0].shape != right.shape or not torch.allclose(seen[0][0], right, atol=NEAR):
            what = f"the target's row {k}" if n == k else f"max(0, b_{n} p - q) of position {n}, divided by its sum"
            row = [round(x, 4) for x in seen[0][0].tolist()]
            name = named_rounds(found)
            wrong(f"{about}: the next token is drawn from {what}, {right.tolist()}, yours draws from {row}{name}")


def long_rounds(verify_block: Callable) -> list[tuple[object, list[tuple[torch.Tensor, float]]]]:
    """What it returns for drafts of seven tokens of five, and what it calls draw with."""
    found = []
    for seed in range(40):
        dice, noted = random.Random(seed), []
        p, q = (rows(*([dice.random() + 0.05 for _ in range(5)] for _ in range(n))) for n in (8, 7))
        p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
        drafted, uniforms = [dice.randrange(5) for _ in range(7)], [dice.random() for _ in range(8)]
        given = verify_block(
            drafted, q, p, uniforms, lambda row, uniform, noted=noted: noted.append((row, uniform)) or 3
        )
        found.append((given, noted))
    return found


def test_a_draft_of_seven_tokens(learner):
    """verify_block: the longest length that passes its test is kept, be it any from 0 to k."""
    right = long_rounds(right_rule.verify_block)
    assert {kept for (kept, _), _ in right} == set(range(8))
    for seed, ((given, seen), (expected, rightly)) in enumerate(
        zip(long_rounds(learner.verify_block), right, strict=True)
    ):
        about = f"seven tokens of five, case {seed}"
        if pair(given, about) != expected:
            wrong(f"{about}: {expected[0]} are kept and draw's {expected[1]} follows, yours returns {given}")
        (row, uniform), *more = seen or [(rows([0.0])[0], None)]
        if more or uniform != rightly[0][1]:
            wrong(f"{about}: draw is called once, with the last uniform")
        if row.shape != rightly[0][0].shape or not torch.allclose(row.double(), rightly[0][0], atol=NEAR):
            two = [_short(one.flatten().tolist()) for one in (rightly[0][0], row)]
            wrong(f"{about}, {expected[0]} are kept: draw gets {two[0]}, with yours {two[1]}")


LAST = 1 - 2**-53  # the largest number below 1
RESIDUALS = [  # q, p, drafted, its uniform, the row that the next token is drawn from
    ([0.75, 0.125, 0.125], [0.25, 0.375, 0.375], 0, 0.9, [0.0, 0.5, 0.5]),
    ([0.5, 0.5, 0.0], [0.5, 0.5 - 2**-53, 0.0], 1, LAST, [0.5, 0.5 - 2**-53, 0.0]),
]


def test_what_is_left_is_divided_by_its_sum(learner):
    """verify_block: what is left is divided by its sum; where that is 0, the target's row is drawn from."""
    for q, p, drafted, uniform, right in RESIDUALS:
        seen = []
        rule, rows_of_p = learner.verify_block, rows(p, [0.25, 0.25, 0.5])
        given = rule([drafted], rows(q), rows_of_p, [uniform, 0.77], lambda row, _, seen=seen: seen.append(row) or 1)
        about = f"drafted [{drafted}], p = {p}, q = {q}, uniform {uniform}"
        if pair(given, about) != (0, 1):
            wrong(f"{about}: 0 are kept and draw's 1 follows, yours returns {given}")
        if not torch.allclose(seen[0].double(), rows(right)[0], atol=NEAR):
            wrong(f"{about}: the next token is drawn from {right}, yours draws from {seen[0].tolist()}")


def test_nothing_drafted_is_plain_decoding(learner):
    """verify_block: k = 0 is plain decoding."""
    seen = []
    given = learner.verify_block([], Q[:0], P[:1].clone(), [0.77], lambda probs, uniform: seen.append(probs) or 1)
    if pair(given, "nothing drafted (k = 0)") != (0, 1) or len(seen) != 1 or not torch.equal(seen[0], P[0]):
        wrong("nothing drafted (k = 0) is plain decoding: 0 kept, and the next token drawn from the target's only row")


def test_a_text_that_the_target_rules_out_is_never_kept(learner):
    """verify_block: a uniform has to lie strictly below, also at 0."""
    p = rows([0.0, 1.0], [0.5, 0.5])
    kept, _ = pair(learner.verify_block([0], Q[:1].clone(), p, [0.0, 0.77], lambda *_: 1), "drafted [0], uniform 0")
    if kept:
        wrong(
            "drafted [0], which the target never says, uniform 0: b_1 is 0 and 0 is not strictly below it; 0 are kept, "
            f"yours says {kept}"
        )


def block_corners(p: list[Row], q: list[Row], drafted: tuple[int, ...]) -> Corners:
    """Where a test of the block rule, or of a wrong one, changes, and the rows that are left after each length."""
    alone = [p[i][token] / q[i][token] for i, token in enumerate(drafted)]
    ratios = [Fraction(1)]
    for odds in alone:
        ratios.append(min(Fraction(1), ratios[-1] * odds))
    left = [
        [max(Fraction(0), b * x - y) for x, y in zip(*rows, strict=True)]
        for b, *rows in zip(ratios, p, q, strict=False)
    ]
    tests = [[ratio, odds] for ratio, odds in zip(ratios[1:], alone, strict=True)]
    for corners, ratio, row in zip(tests, ratios[1:], left[1:], strict=False):
        rest = sum(row) + 1 - ratio
        corners.append(sum(row) / rest if rest else Fraction(1))
    return tests, left


def assert_exact(verify_block: Callable, many: list[Tables]) -> Fraction:
    """The joint law of every table; what it keeps on average in the last of them."""
    kept = Fraction(0)
    for tables in many:
        cases = list(exact_cases(tables, block_corners))
        answers = answers_of(verify_block, cases)
        found = completed(law_of(cases, answers), tables, (), tables.k + 1)
        right = target_law(tables, (), tables.k + 1)
        if found != right:
            tokens = furthest(found, right)
            name = named(STEM, "verify_block", cases, answers)
            wrong(
                f"summed over all drafts, the next tokens {tokens} must come with probability {right.get(tokens, 0)}, "
                f"with yours it is {found.get(tokens, 0)}{name}. {rows_along(tables, tokens)}"
            )
        kept = sum((case.weight * n for case, (n, _) in zip(cases, answers, strict=True)), Fraction(0))
    return kept


@pytest.mark.whole
def test_the_joint_law_is_exactly_the_targets(learner):
    """Summed in fractions over every outcome, the next k + 1 tokens follow the target's law, for k = 1 and 2."""
    shapes = [(1, 3, 0), (2, 2, 0), (2, 3, 1), (2, 3, 5), (2, 3, 6)]  # k, vocabulary, seed
    assert_exact(learner.verify_block, [random_tables(seed, v, k, k + 1, f) for f in FAMILIES for k, v, seed in shapes])


def of_the_picture() -> Tables:
    """p = (1/3, 2/3) and q = (2/3, 1/3) at every position, k = 2."""
    prefixes = [prefix for n in range(3) for prefix in itertools.product(range(2), repeat=n)]
    third = Fraction(1, 3)
    p, q = [third, 2 * third], [2 * third, third]
    return Tables(2, 2, dict.fromkeys(prefixes, p), dict.fromkeys(prefixes, q))


@pytest.mark.whole
def test_two_drafts_of_the_picture_keep_11_of_9(learner):
    """The rule keeps exactly 11/9 of the two drafts on average; the one of exercise 4 keeps 10/9."""
    kept = assert_exact(learner.verify_block, [of_the_picture()])
    if kept != Fraction(11, 9):
        tokens = " (that is the token rule)" if kept == Fraction(10, 9) else ""
        wrong(f"of the two drafts of the picture 11/9 are kept on average, yours keeps {kept}{tokens}")


def test_the_token_rule_keeps_10_of_9():
    """What chapter 4 says of its own rule."""
    cases = list(exact_cases(of_the_picture()))
    kept = [case.weight * n for case, (n, _) in zip(cases, answers_of(verify_draft, cases), strict=True)]
    assert sum(kept) == Fraction(10, 9)
