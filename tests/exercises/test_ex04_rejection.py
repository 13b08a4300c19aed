"""Checks of exercise 4: the two rules, the round, and its law, exactly and by a statistic."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from speclab.core.sampling import draw as draw_rows
from tests.exercises.answers import named_by, whole, wrong
from tests.test_exact import Law, Row, Tables, boxes, cdf_corners, completed, floats, inside, random_tables, target_law

STEM = "ex04_rejection"
AcceptResult = tuple[int, int]  # drafted tokens kept, next token


def draw(probs: Tensor, uniform: float) -> int:
    """Inverse CDF, as in the lab."""
    return int(draw_rows(probs[None], torch.tensor([uniform], dtype=torch.float64)))


# --- well-known wrong rules, to call a mistake by its name -----------------------------------------------------------


def left_over(p: Tensor, q: Tensor) -> Tensor:
    rest = (p - q).clamp(min=0)
    return rest / rest.sum() if rest.sum() > 0 else p


class Case(NamedTuple):
    """One round with given uniforms."""

    drafted: list[int]
    q: Tensor  # (k, vocab)
    p: Tensor  # (k + 1, vocab)
    u: list[float]
    weight: Fraction = Fraction(1)

    def ask(self, verify_draft: Callable) -> object:
        """What it returns. It is handed copies: a list emptied on the way and a step in place do no harm."""
        return verify_draft(list(self.drafted), self.q.clone(), self.p.clone(), list(self.u), draw)


def named(stem: str, hole: str, cases: list[Case], answers: list[AcceptResult]) -> str:
    """The mistake of an exercise that gives the very same answers, if it is a well-known one."""
    asked = list(zip(cases, answers, strict=True))
    return named_by(stem, lambda module: all(case.ask(getattr(module, hole)) == answer for case, answer in asked))


def pair(given: object, about: str) -> AcceptResult:
    """What verify_draft returned, as two ints; a list of two is as good as a tuple."""
    found = [whole(item) for item in given] if isinstance(given, tuple | list) else []
    if len(found) != 2 or None in found:
        what = "return a pair of whole numbers, how many drafts are kept and the next token"
        wrong(f"{about}: {what}; yours returns {given!r}")
    return found[0], found[1]


def answers_of(verify_draft: Callable, cases: list[Case]) -> list[AcceptResult]:
    found = []
    for case in cases:
        about = f"drafted {case.drafted}, uniforms {[round(u, 3) for u in case.u]}"
        found.append(pair(case.ask(verify_draft), about))
        if not 0 <= found[-1][0] <= len(case.drafted):
            wrong(f"{len(case.drafted)} tokens were drafted, yours keeps {found[-1][0]} of them")
    return found


# --- the two rules ---------------------------------------------------------------------------------------------------


def test_a_draft_is_kept_with_probability_p_over_q(learner):
    """is_accepted: kept below the ratio of the two probabilities, rejected above it."""
    for p, q in [(0.3, 0.6), (0.1, 0.4), (0.6, 0.3), (0.5, 0.5), (1.0, 1.0), (0.2, 0.9), (0.9, 0.05)]:
        kept = sum(bool(learner.is_accepted(p, q, (i + 0.5) / 1000)) for i in range(1000)) / 1000
        right = min(1.0, p / q)
        if abs(kept - right) < 0.002:
            continue
        about = f"p = {p}, q = {q}: kept for {kept:.0%} of all uniforms, it should be {right:.0%}"
        if abs(kept - p) < 0.002:
            wrong(f"{about}; the draft's probability is left out")
        if kept in (0.0, 1.0):
            wrong(f"{about}; sometimes the uniform decides, so it has to be in the rule")
        wrong(about)


def test_a_token_that_the_target_rules_out_is_never_kept(learner):
    """is_accepted: strictly below, also at uniform 0, and nothing is divided."""
    for q in (0.5, 1.0, 0.0):
        for u in (0.0, 0.3):
            try:
                kept = learner.is_accepted(0.0, q, u)
            except ZeroDivisionError:
                wrong("a draft probability of 0 was divided by: compare products, uniform * draft_prob and target_prob")
            if kept:
                wrong(
                    f"target_prob 0, draft_prob {q}, uniform {u}: the target never says this token, yours keeps it; "
                    "the product must be strictly below target_prob"
                )
    if not learner.is_accepted(0.25, 0.5, 0.0):
        wrong("target_prob 0.25, draft_prob 0.5, uniform 0: 0 is below 0.25, so the token is kept")
    if learner.is_accepted(0.25, 0.5, 0.5):
        wrong("target_prob 0.25, draft_prob 0.5, uniform 0.5: 0.25 is not strictly below 0.25, so it is rejected")
    try:
        kept = learner.is_accepted(0.25, 0.0, 0.99)
    except ZeroDivisionError:
        kept = False
    if not kept:
        wrong("target_prob 0.25, draft_prob 0: 0 is below 0.25, so the token is kept; nothing has to be divided")


def test_the_correction_comes_from_what_the_draft_left_out(learner):
    """residual: max(0, p - q), divided by its sum."""
    for p, q, right in [
        ([0.5, 0.25, 0.25], [0.25, 0.75, 0.0], [0.5, 0.0, 0.5]),
        ([0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.75, 0.0, 0.25]),
        ([0.0, 1.0, 0.0], [0.5, 0.25, 0.25], [0.0, 1.0, 0.0]),
        ([0.25, 0.25, 0.5], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]),
        ([0.5, 0.5, 0.0], [0.5 - 2**-30, 0.5 + 2**-30, 0.0], [1.0, 0.0, 0.0]),
    ]:
        target, draft = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
        given = torch.as_tensor(learner.residual(target, draft), dtype=torch.float64)
        if target.tolist() != p or draft.tolist() != q:
            wrong("the probabilities you were given have changed: work on new tensors")
        if given.shape != (3,):
            wrong(f"two rows of 3 probabilities give one of 3, yours has the shape {tuple(given.shape)}")
        if torch.allclose(given, torch.tensor(right, dtype=torch.float64), rtol=0, atol=1e-9):
            continue
        about = f"p = {p}, q = {q}: the residual is {right}, yours is {[round(x, 4) for x in given.tolist()]}"
        rest = (target - draft).clamp(min=0)
        if rest.sum() < 1e-6 and not torch.allclose(given, rest.softmax(-1), rtol=0, atol=1e-9):
            why = (
                "the difference is small, and still the whole correction: divide by every sum above 0, by nothing more"
            )
            wrong(f"{about}; {why}; a bound such as 1e-3 gives the target's row where the two nearly agree")
        for guess, name in [
            (target, "that is the target itself: the rejected token could come back"),
            (rest, "it does not add up to 1: divide by its sum"),
            (target - draft, "a probability is negative: what is below 0 counts as 0"),
            (left_over(draft, target), "that is the draft minus the target, the wrong way round"),
            ((target - draft).abs() / (target - draft).abs().sum(), "that takes |p - q|: what is below 0 counts as 0"),
            ((target - draft).softmax(-1), "a softmax gives every token a share; only divide by the sum"),
            (rest.softmax(-1), "a softmax gives every token a share; only divide by the sum"),
        ]:
            if torch.allclose(given, guess, rtol=0, atol=1e-9):
                wrong(f"{about}; {name}")
        wrong(about)


def test_equal_distributions_leave_nothing_to_divide_by(learner):
    """residual: where p is nowhere above q, it is p itself."""
    for p, q in [([0.5, 0.5], [0.5, 0.5]), ([0.5, 0.5 - 2**-53], [0.5, 0.5]), ([0.0, 1.0], [0.0, 1.0])]:
        target = torch.tensor(p, dtype=torch.float64)
        given = torch.as_tensor(learner.residual(target, torch.tensor(q, dtype=torch.float64)))
        if given.isnan().any():
            wrong("the two agree, so max(0, p - q) is 0 everywhere, and 0 / 0 is not a number: return p then")
        if given.tolist() != p:
            wrong(
                f"the two agree, so nothing is missing: the answer is the target's row {p}, yours is {given.tolist()}"
            )


# --- the round -------------------------------------------------------------------------------------------------------


# A round of three drafts; p / q is 1/2, 1/4, 1/3 for tokens 1, 0, 1. THREE: uniforms of the tests, how many are kept.
THREE_P = torch.tensor([[8, 4, 4, 0], [2, 6, 4, 4], [4, 4, 4, 4], [1, 2, 3, 10]], dtype=torch.float64) / 16
THREE_Q = torch.tensor([[4, 8, 2, 2], [8, 4, 2, 2], [1, 12, 2, 1]], dtype=torch.float64) / 16
THREE = [([0.1, 0.2, 0.3], 3), ([0.6, 0.2, 0.3], 0), ([0.1, 0.3, 0.3], 1), ([0.1, 0.3, 0.9], 1), ([0.1, 0.2, 0.4], 2)]


def of_three(verify_draft: Callable, tests: list[float]) -> tuple[object, list[tuple[Tensor, float]]]:
    """A round of three drafts.  -> what it returns, and what it calls draw with"""
    seen = []

    def noted(probs, uniform):
        seen.append((probs.clone(), float(uniform)))
        return 3

    return verify_draft([1, 0, 1], THREE_Q.clone(), THREE_P.clone(), [*tests, 0.77], noted), seen


def alike(one: tuple, other: tuple) -> bool:
    """Did two rounds of three come out the same?"""
    (given, seen), (its, its_seen) = one, other
    if given != its or [u for _, u in seen] != [u for _, u in its_seen]:
        return False
    pairs = zip(seen, its_seen, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, atol=1e-9) for (a, _), (b, _) in pairs)


def named_of_three(rule: Callable) -> str:
    """The well-known mistake that makes the same of many rounds of three, if it is one."""
    grid = list(itertools.product((0.05, 0.2, 0.3, 0.4, 0.9), repeat=3))
    own = [(u, of_three(rule, list(u))) for u in grid]
    return named_by(STEM, lambda module: all(alike(made, of_three(module.verify_draft, list(u))) for u, made in own))


def test_the_first_rejection_ends_the_round(learner):
    """verify_draft: how many are kept, which row the next token comes from, which uniform is for what."""
    p, q = THREE_P, THREE_Q
    for tests, n in THREE:
        given, seen = of_three(learner.verify_draft, tests)
        about = f"three drafts, {'none' if n == 3 else f'drafted[{n}]'} is rejected"
        if len(seen) != 1:
            what = "the bonus token, from the target's last row" if n == 3 else "the correction, from the residual"
            wrong(
                f"{about}: one call of draw gives {what}; yours calls it {len(seen)} times"
                + named_of_three(learner.verify_draft)
            )
        row, uniform = seen[0]
        kept, token = pair(given, about)
        if kept != n:
            after = ", yours goes on after the first rejected one" if kept > n else ""
            name = named_of_three(learner.verify_draft)
            wrong(f"{about}: {n} are kept, yours says {kept}{name or after}")
        if token != 3:
            wrong(f"{about}: the next token is what draw returned, 3, yours says {token}")
        if uniform != 0.77:
            wrong(f"{about}: the draw has a uniform of its own, the last one (0.77), yours hands over {uniform}")
        right = left_over(p[n], q[n]) if n < 3 else p[3]
        if not torch.allclose(row.double(), right, rtol=0, atol=1e-9):
            what = f"the residual of rows {n}" if n < 3 else "the target's last row, target_probs[3]"
            origins = {f"target_probs[{i}]": p[i] for i in range(4)}
            origins |= {f"draft_probs[{i}]": q[i] for i in range(3)}
            origins |= {f"the residual of rows {i}": left_over(p[i], q[i]) for i in range(3)}
            origins |= {"max(0, p - q) before it is divided by its sum": (p[n] - q[min(n, 2)]).clamp(min=0)}
            origins |= {f"a softmax of probabilities, those of target_probs[{i}]": p[i].softmax(-1) for i in (n, 3)}
            other = next((name for name, it in origins.items() if torch.allclose(row.double(), it)), "another row")
            name = named_of_three(learner.verify_draft)
            wrong(f"{about}: the next token is drawn from {what}, yours draws from {other}{name}")
    seen = []
    given = learner.verify_draft([], q[:0], p[:1].clone(), [0.77], lambda probs, uniform: seen.append(probs) or 2)
    if pair(given, "nothing drafted (k = 0)") != (0, 2) or len(seen) != 1 or not torch.equal(seen[0], p[0]):
        wrong("nothing drafted (k = 0) is plain decoding: 0 kept, and the next token drawn from the target's only row")


Corners = tuple[list[list[Fraction]], list[Row]]


def token_corners(p: list[Row], q: list[Row], drafted: tuple[int, ...]) -> Corners:
    """Where each test of the token rule changes, and the rows that are left after a rejection."""
    left = [[max(Fraction(0), a - b) for a, b in zip(*rows, strict=True)] for rows in zip(p, q, strict=False)]
    return [[p[i][token] / q[i][token]] for i, token in enumerate(drafted)], left


def exact_cases(tables: Tables, corners_of: Callable[..., Corners] = token_corners) -> Iterator[Case]:
    """Every round there is: all drafted tokens, and one point in each box of uniforms where a rule can differ."""
    for drafted in itertools.product(range(tables.vocab), repeat=tables.k):
        p = [tables.target[drafted[:i]] for i in range(tables.k + 1)]
        q = [tables.draft[drafted[:i]] for i in range(tables.k)]
        chance = Fraction(1)
        for row, token in zip(q, drafted, strict=True):
            chance *= row[token]
        if not chance:
            continue
        tests, left = corners_of(p, q, drafted)
        sides = [*map(boxes, tests)]
        sides.append(boxes([corner for row in (*p, *q, *left) for corner in cdf_corners(row)]))
        rows = [torch.tensor([floats(row) for row in rows], dtype=torch.float64) for rows in (q, p)]
        for cell in itertools.product(*sides):
            weight = chance
            for low, high in cell:
                weight *= high - low
            yield Case(list(drafted), *rows, [inside(box, Fraction(1, 2)) for box in cell], weight)


def law_of(cases: list[Case], answers: list[AcceptResult]) -> Law:
    law: Law = {}
    for case, (n_accepted, next_token) in zip(cases, answers, strict=True):
        block = (*case.drafted[:n_accepted], next_token)
        law[block] = law.get(block, Fraction(0)) + case.weight
    return law


def rows_along(tables: Tables, tokens: tuple[int, ...]) -> str:
    """p and q at every position of a text: what its probability is made of, with any rule that stays in its rows."""

    def row(weights: list[Fraction]) -> str:
        return f"({', '.join(map(str, weights))})"

    positions = []
    for n in range(len(tokens)):
        after = f" after {', '.join(map(str, tokens[:n]))}" * bool(n)
        q = f", q = {row(tables.draft[tokens[:n]])}" if n < tables.k else ""
        positions.append(f"position {n}{after}: p = {row(tables.target[tokens[:n]])}{q}")
    return "; ".join(positions)


def furthest(found: Law, right: Law) -> tuple[int, ...]:
    """The tokens whose probability is wrong by most."""
    return max(found.keys() | right.keys(), key=lambda tokens: abs(found.get(tokens, 0) - right.get(tokens, 0)))


def assert_exact(verify_draft: Callable, many: list[Tables]) -> None:
    all_cases, all_answers, problems = [], [], []
    for tables in many:
        cases = list(exact_cases(tables))
        answers = answers_of(verify_draft, cases)
        all_cases, all_answers = all_cases + cases, all_answers + answers
        law = law_of(cases, answers)
        found, right = completed(law, tables, (), tables.k + 1), target_law(tables, (), tables.k + 1)
        if found != right:
            tokens = furthest(found, right)
            factors = " x ".join(str(tables.target[tokens[:i]][token]) for i, token in enumerate(tokens))
            chances = f"{factors} = {right.get(tokens, 0)}, with yours it is {found.get(tokens, 0)}"
            what = f"summed over all drafts, the next tokens {tokens} must come with probability {chances}"
            problems.append((what, rows_along(tables, tokens)))
        # The most that a rule can keep, one token at a time, is the sum of min(p, q).
        first = sum(min(a, b) for a, b in zip(tables.target[()], tables.draft[()], strict=True))
        kept = sum(case.weight for case, (n, _) in zip(cases, answers, strict=True) if n > 0)
        if kept != first:
            what = f"the first draft can be kept with probability {first}, the sum of min(p, q), yours with {kept}"
            problems.append((what, rows_along(tables, (0,))))
    if problems:
        what, where = problems[0]
        wrong(f"{what}{named(STEM, 'verify_draft', all_cases, all_answers)}. {where}")


FAMILIES = ("dense", "zeros", "draft blind", "target forbids", "identical")  # of tables; zeros in one row or the other


@pytest.mark.whole
def test_one_drafted_token_gives_exactly_the_targets_law(learner):
    """k = 1: the joint law of the next two tokens, summed in fractions over every outcome. No tolerance."""
    assert_exact(
        learner.verify_draft, [random_tables(seed, 3, 1, 2, family) for family in FAMILIES for seed in range(3)]
    )


@pytest.mark.whole
def test_two_drafted_tokens_give_exactly_the_targets_joint_law(learner):
    """k = 2: the joint law of the next three tokens, summed in fractions over every outcome. No tolerance."""
    shapes = [(0, 2), (1, 2), (2, 3)]
    tables = [random_tables(seed, vocab, 2, 3, f) for f in FAMILIES for seed, vocab in shapes]
    assert_exact(learner.verify_draft, tables)


# All thresholds and corners are multiples of 1/16, so dice with 16 faces give the exact law, and u = 0 comes up.
TARGET = torch.tensor([[8, 4, 4, 0], [4, 4, 4, 4], [10, 2, 2, 2]], dtype=torch.float64) / 16
DRAFT = torch.tensor([[2, 8, 2, 4], [8, 4, 2, 2]], dtype=torch.float64) / 16
N_ROUNDS = 2000
LIMIT = 108.2  # scipy.stats.chi2.isf(1e-6, 47): three tokens have 3 * 4 * 4 outcomes


@pytest.mark.whole
def test_sampled_rounds_follow_the_targets_law(learner):
    """2000 rounds of two drafts, chi-square of three tokens: a right rule would fail for one seed in a million."""
    dice = (torch.randint(16, (N_ROUNDS, 7), generator=torch.Generator().manual_seed(0)).double() / 16).tolist()
    cases = [
        Case([draw(row, u) for row, u in zip(DRAFT, chances, strict=False)], DRAFT, TARGET, chances[2:5])
        for chances in dice
    ]
    answers = answers_of(learner.verify_draft, cases)
    counts = Counter()
    for case, (n, token), chances in zip(cases, answers, dice, strict=True):
        rest = [draw(TARGET[position], chances[4 + position]) for position in range(n + 1, 3)]
        counts[(*case.drafted[:n], token, *rest)] += 1
    chi_square = 0.0
    for tokens in itertools.product(range(4), repeat=3):
        expected = N_ROUNDS * TARGET[range(3), tokens].prod().item()
        if expected == 0 and counts[tokens]:
            wrong(
                f"token {tokens[0]} has target probability 0 and came {counts[tokens]} times"
                + named(STEM, "verify_draft", cases, answers)
            )
        if expected:
            chi_square += (counts[tokens] - expected) ** 2 / expected
    if chi_square > LIMIT:
        wrong(
            f"the tokens of {N_ROUNDS} rounds do not have the target's shares: chi-square {chi_square:.0f}, a right "
            f"rule stays below {LIMIT}" + named(STEM, "verify_draft", cases, answers)
        )
