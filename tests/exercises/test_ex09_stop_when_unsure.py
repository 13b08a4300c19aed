"""Checks of exercise 9: what a longer draft is worth, and that a stop leaves the target's law alone, exactly."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from tests.exercises.answers import with_wrong_answer, wrong, wrong_answers
from tests.exercises.test_ex04_rejection import draw, furthest, rows_along
from tests.test_exact import Law, Tables, boxes, cdf_corners, completed, floats, inside, random_tables, target_law

NEAR = 1e-5  # a right answer may compute in float32

# --- what a longer draft is worth -------------------------------------------------------------------------------------


def tokens_by_length(drawn: list[float], later: list[float]) -> list[float]:
    """1 and the sum of the products, for a draft that ends now and for longer ones."""
    products = itertools.accumulate([*drawn, *later], lambda a, b: a * b)
    return list(itertools.accumulate([1.0, *products]))[len(drawn) :]


LONG = [0.9, 0.85, 0.95, 0.75, 0.9, 0.85, 0.8], [0.95, 0.9, 0.85, 0.75, 0.9, 0.95, 0.8]
EXPECTED = [
    (*LONG, tokens_by_length(*LONG)),
    ([], [], [1.0]),
    ([], [0.5], [1.0, 1.5]),
    ([0.5], [], [1.5]),
    ([0.5], [0.5, 1.0], [1.5, 1.75, 2.0]),
    ([0.8, 0.5], [0.25], [2.2, 2.3]),
    ([], [0.9, 0.8, 0.5], [1.0, 1.9, 2.62, 2.98]),
    ([0.0], [1.0, 1.0], [1.0, 1.0, 1.0]),
]


def test_a_token_counts_if_all_before_it_are_accepted(learner):
    """expected_tokens: a round commits 1 and the sum of the products, for a draft that ends now and for longer ones."""
    for drawn, later, right in EXPECTED:
        given = learner.expected_tokens(list(drawn), list(later))
        about = f"drawn {drawn}, later {later}: {right} tokens are expected, yours says {given}"
        if not isinstance(given, list | tuple) or len(given) != len(right):
            wrong(f"{about}; remember: there is one number for a draft that ends now, and one for every longer draft")
        if [float(x) for x in given] == pytest.approx(right, abs=NEAR):
            continue
        if [float(x) + 1 for x in given] == pytest.approx(right, abs=NEAR):
            wrong(f"{about}; remember: the target's own token comes too, whatever is rejected")
        wrong(about)


FLAT, STEP = [1.0, 1.1, 1.2, 1.3, 1.4], [1.0, 1.1, 1.2, 1.7, 1.72, 1.74, 1.76, 1.78]
# drawn, later, costs, rate, whether another token pays
DECISIONS = [
    ([0.9], [0.9, 0.9, 0.9], FLAT, 2.0, True),
    ([0.1], [0.9, 0.9, 0.9], FLAT, 2.0, False),
    ([], [0.5, 0.5], FLAT[:3], 2.0, True),
    ([], [0.1, 0.5], FLAT[:3], 2.0, False),
    ([0.9, 0.9], [], FLAT[:3], 2.0, False),
    ([0.9, 0.9], [0.9] * 5, STEP, 1.8, True),  # the third token alone does not pay, five more do
    ([0.9, 0.9], [0.9], STEP[:4], 1.8, False),
    ([0.9, 0.9], [0.9, 0.9, 0.1, 0.1, 0.1], STEP, 1.8, True),
    ([0.5], [0.5, 0.0], [1.0, 1.0, 1.125, 1.125], 2.0, False),  # equals
    ([0.5], [0.5, 0.0, 0.0], [1.0, 1.0, 1.1, 1.4, 1.7], 2.0, True),  # one more pays, three more do not
    ([0.9], [0.2], [9.0, 10.0, 10.1], 2.0, False),
    ([0.3], [0.6], [0.01, 0.2, 0.25], 4.0, False),
    ([], [0.99] * 7, [1.0, *[4.2] * 7], 2.0, True),  # only the seventh token pays
    ([0.9] * 6, [0.99] * 7, [*[1.0] * 7, *[4.2] * 7], 1.0, True),
    ([], [0.9] * 3, [0.5, 4.0, 4.0, 4.0], 1.0, False),  # worth more with every further token, never as much as now
    ([0.96], [0.84], [1.0, 1.0, 1.4], 2.0, True),  # 0.8064 of a token for 0.8
    ([0.96], [0.83], [1.0, 1.0, 1.4], 2.0, False),  # 0.7968 of it
    ([0.5], [0.84], [1.0, 1.0, 1.19], 2.25, False),
]


def test_every_longer_draft_is_compared(learner):
    """keep_drafting: a draft is worth its expected tokens less rate x cost; any longer one may be worth more."""
    for drawn, later, costs, rate, right in DECISIONS:
        given = learner.keep_drafting(list(drawn), list(later), list(costs), rate)
        if bool(given) == right:
            continue
        tokens = tokens_by_length(drawn, later)
        worth = [round(t - rate * c, 3) for t, c in zip(tokens, costs[len(drawn) :], strict=True)]
        wrong(
            f"drawn {drawn}, later {later}, costs {costs}, rate {rate}: a draft that ends now is worth {worth[0]}, "
            f"longer ones {worth[1:]}, so the answer is {right}, yours says {given}"
        )


# --- the draft --------------------------------------------------------------------------------------------------------


FEW = {(): [0.75, 0.25], (0,): [0.625, 0.375], (1,): [0.5, 0.5], (0, 1): [0.25, 0.75]}
LONG_DRAFT = [1, 0, 1, 1, 0, 1, 0, 1]


def row_after(drafted: list[int]) -> list[float]:
    """The draft's row after these tokens; after a long draft it depends on how long it is."""
    n = len(drafted)
    return FEW.get(tuple(map(int, drafted)), [0.5 - n / 32, 0.5 + n / 32])


LONG_ASKED = [[row_after(LONG_DRAFT[:j])[LONG_DRAFT[j]] for j in range(i + 1)] for i in range(len(LONG_DRAFT) - 1)]


def test_the_draft_ends_where_keep_says_no(learner):
    """draft_until_unsure: keep is asked after each token but the last; what was drawn is returned in any case."""
    for uniforms, answers, tokens, asked in [
        ([0.5, 0.7, 0.9], [True, True], [0, 1, 1], [[0.75], [0.75, 0.375]]),
        ([0.5, 0.7, 0.9], [False], [0], [[0.75]]),
        ([0.9, 0.7, 0.9], [False], [1], [[0.25]]),
        ([0.5, 0.7, 0.9], [True, False], [0, 1], [[0.75], [0.75, 0.375]]),
        ([0.5], [], [0], []),
        ([], [], [], []),
        ([0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.1, 0.9], [True] * 7, LONG_DRAFT, LONG_ASKED),
        ([0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.1, 0.9], [True] * 5 + [False], LONG_DRAFT[:6], LONG_ASKED[:6]),
    ]:
        seen, left, passes = [], list(answers), []

        def keep(probabilities, seen=seen, left=left):
            seen.append([round(float(x), 9) for x in probabilities])
            return left.pop(0) if left else False

        def next_row(drafted, passes=passes):
            passes.append([int(token) for token in drafted])
            return torch.tensor(row_after(drafted), dtype=torch.float64)

        given = learner.draft_until_unsure(next_row, draw, list(uniforms), keep)
        about = f"uniforms {uniforms}, keep says {answers}"
        if not isinstance(given, tuple | list) or len(given) != 2:
            wrong(f"{about}: return a pair, ids and rows; yours returns {given!r}")
        found, its_rows = [int(t) for t in given[0]], [[float(x) for x in row] for row in given[1]]
        if found != tokens:
            dropped = len(found) == len(tokens) - 1 and found == tokens[:-1] and answers[-1:] == [False]
            why = "; remember: the last one was drawn, so it is handed over, however unlikely it is" if dropped else ""
            wrong(f"{about}: {tokens} are drafted, yours returns {found}{why}")
        right = [row_after(tokens[:i]) for i in range(len(tokens))]
        if its_rows != right:
            wrong(f"{about}: {tokens} were drawn from the rows {right}, yours returns {its_rows}")
        if passes != [tokens[:i] for i in range(len(tokens))]:
            wrong(
                f"{about}: {tokens} take {len(tokens)} passes of the draft, one for each; it looks as if yours asks "
                f"for rows after {passes}"
            )
        if seen != asked:
            wrong(f"{about}: keep is asked with the probability of each token so far, {asked}, yours asks {seen}")


def emitted(tables: Tables, tokens: list[int]) -> Law:
    """The law of what a round commits whose draft is `tokens`, by the rule of chapter 4, in fractions."""
    law, chance = {}, Fraction(1)
    for i, token in enumerate(tokens):
        p, q = tables.target[tuple(tokens[:i])], tables.draft[tuple(tokens[:i])]
        kept = min(Fraction(1), p[token] / q[token])
        left = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
        for other, share in enumerate(left):
            if share and kept < 1:
                law[(*tokens[:i], other)] = chance * (1 - kept) * share / sum(left)
        chance *= kept
    for other, share in enumerate(tables.target[tuple(tokens)]):
        if share and chance:
            law[(*tokens, other)] = law.get((*tokens, other), Fraction(0)) + chance * share
    return law


def law_with(draft: Callable, tables: Tables, bound: float) -> Law:
    """The joint law of the next k + 1 tokens where the draft ends after a token of a probability below `bound`."""
    law: Law = {}
    corners = sorted({corner for row in tables.draft.values() for corner in cdf_corners(row)})

    def next_row(tokens):
        return torch.tensor(floats(tables.draft[tuple(tokens)]), dtype=torch.float64)

    for cell in itertools.product(boxes(corners), repeat=tables.k):
        weight = Fraction(1)
        for low, high in cell:
            weight *= high - low
        uniforms = [inside(box, Fraction(1, 2)) for box in cell]
        tokens = [int(t) for t in draft(next_row, draw, uniforms, lambda sure: sure[-1] >= bound)[0]]
        for block, share in emitted(tables, tokens).items():
            law[block] = law.get(block, Fraction(0)) + weight * share
    return completed(law, tables, (), tables.k + 1)


def of_the_chapter() -> Tables:
    """p = q = (4/5, 1/5) at every position, k = 1."""
    row = [Fraction(4, 5), Fraction(1, 5)]
    rows = {prefix: row for n in range(2) for prefix in itertools.product(range(2), repeat=n)}
    return Tables(2, 1, rows, dict(rows))


@pytest.mark.whole
def test_a_stop_leaves_the_targets_law_alone(learner):
    """A draft may end after an unlikely token, and the law stays the target's: what was drawn is handed over."""
    families = ("dense", "zeros", "identical")
    many = [of_the_chapter(), *(random_tables(seed, 3, 2, 3, f) for f in families for seed in range(2))]
    for tables in many:
        for bound in (0.3, 0.5):
            found, right = law_with(learner.draft_until_unsure, tables, bound), target_law(tables, (), tables.k + 1)
            if found == right:
                continue
            tokens = furthest(found, right)
            wrong(
                f"a draft that ends after a token below {bound}: the next tokens {tokens} must come with probability "
                f"{right.get(tokens, 0)}, with yours it is {found.get(tokens, 0)}. {rows_along(tables, tokens)}"
            )


def test_the_biased_rule_of_the_chapter_is_biased():
    """p = q = (4/5, 1/5): dropping the second token after it was looked at gives (24/25, 1/25)."""
    name = "a token that is not likely is not handed over"
    draft = with_wrong_answer("ex09_stop_when_unsure", *wrong_answers("ex09_stop_when_unsure")[name]).draft_until_unsure
    law = law_with(draft, of_the_chapter(), 0.5)
    first = [sum(share for tokens, share in law.items() if tokens[0] == token) for token in (0, 1)]
    assert first == [Fraction(24, 25), Fraction(1, 25)]
