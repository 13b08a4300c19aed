"""Checks of exercise 9: what a longer draft is worth, and that a stop leaves the target's law alone, exactly."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from torch import Tensor

from tests.exercises.answers import asked, wrong
from tests.exercises.test_ex04_rejection import draw, rows, wrong_law
from tests.test_exact import Law, Row, Tables, completed, floats, random_tables


def tokens_by_length(drawn: list[float], later: list[float]) -> list[float]:
    """1 and the sum of the products, for a draft that ends now and for longer ones."""
    products = itertools.accumulate([*drawn, *later], lambda a, b: a * b)
    return list(itertools.accumulate([1.0, *products]))[len(drawn) :]


DICE = random.Random(0)


def chances(n: int) -> list[float]:
    return [DICE.choice([1.0, 0.75, 0.5, 0.25, 0.0]) for _ in range(n)]


SIZES = [(n, m) for n in range(3) for m in range(4)] + [(7, 7)]  # tokens drawn, tokens that may follow
EXPECTED = [(chances(n), chances(m)) for n, m in SIZES * 4]


def short(numbers: list[float]) -> list[float]:
    """A right answer may compute in float32."""
    return [round(float(number), 4) for number in numbers]


@asked(EXPECTED, "drawn {}, later {}: expected tokens", [short(tokens_by_length(*case)) for case in EXPECTED])
def test_a_token_counts_if_all_before_it_are_accepted(one, *case):
    """expected_tokens: 1 for the target's own token and the sum of the products, for a draft that ends now and for
    longer ones."""
    return short(one.expected_tokens(*map(list, case)))


def decision(n: int, m: int) -> tuple[list[float], list[float], list[float], float]:
    """Drawn, later, costs, rate. Costs have steps."""
    steps = itertools.accumulate(DICE.choice([0.0, 0.125, 0.25, 0.5, 1.5]) for _ in range(n + m + 1))
    return chances(n), chances(m), [0.5 + step for step in steps], DICE.choice([0.5, 1.0, 2.0])


DECISIONS = [
    ([], [0.99] * 7, [1.0, *[4.2] * 7], 2.0),  # only the seventh token pays
    ([0.9] * 6, [0.99] * 7, [*[1.0] * 7, *[4.2] * 7], 1.0),
    *(decision(n, m) for n, m in SIZES * 30),
]


def worth(drawn: list[float], later: list[float], costs: list[float], rate: float) -> list[float]:
    """Of a draft that ends now, and of longer ones."""
    both = zip(tokens_by_length(drawn, later), costs[len(drawn) :], strict=True)
    return [tokens - rate * cost for tokens, cost in both]


def in_words(*case: object) -> str:
    now, *longer = worth(*case)
    given = "drawn {}, later {}, costs {}, rate {}".format(*case)
    return f"{given}: a draft that ends now is worth {now}, longer ones {longer}, so draft on"


@asked(DECISIONS, in_words, [any(x > worth(*case)[0] for x in worth(*case)) for case in DECISIONS])
def test_every_longer_draft_is_compared(one, drawn, later, costs, rate):
    """keep_drafting: a draft is worth its expected tokens less rate x cost; any longer one may be worth more."""
    return bool(one.keep_drafting(list(drawn), list(later), list(costs), rate))


FEW = {(): [0.75, 0.25], (0,): [0.625, 0.375], (1,): [0.5, 0.5], (0, 1): [0.25, 0.75]}
LONG = [0.9, 0.1, 0.9, 0.9, 0.1, 0.9, 0.1, 0.9]
DRAFTS = [  # uniforms, what keep answers
    ([0.5, 0.7, 0.9], [True, True]),
    ([0.5, 0.7, 0.9], [False]),
    ([0.9, 0.7, 0.9], [False]),
    ([0.5, 0.7, 0.9], [True, False]),
    ([0.5], []),
    ([], []),
    (LONG, [True] * 7),
    (LONG, [True] * 5 + [False]),
]


def row_after(drafted: list[int]) -> list[float]:
    """The draft's row after these tokens; after a long draft it depends on how long it is."""
    n = len(drafted)
    return FEW.get(tuple(map(int, drafted)), [0.5 - n / 32, 0.5 + n / 32])


@asked(DRAFTS, "uniforms {}, keep says {}: the draft is")
def test_the_draft_ends_where_keep_says_no(one, uniforms, answers):
    """draft_until_unsure: keep is asked after each token but the last; what was drawn is returned in any case."""
    asked_about, left, passes = [], list(answers), []

    def keep(probabilities):
        asked_about.append([round(float(x), 9) for x in probabilities])
        return left.pop(0) if left else False

    def next_row(tokens):
        passes.append([int(token) for token in tokens])
        return rows(row_after(tokens))[0]

    ids, handed = one.draft_until_unsure(next_row, draw, list(uniforms), keep)
    handed = [[float(x) for x in row] for row in handed]
    return {"ids": [int(token) for token in ids], "rows": handed, "passes after": passes, "keep is asked": asked_about}


def emitted(tables: Tables, tokens: list[int], draft: list[Row]) -> Law:
    """The law of what a round commits whose draft is `tokens`, by the rule of chapter 4, in fractions."""
    law, chance = Counter(), Fraction(1)
    for i, (token, q) in enumerate(zip(tokens, draft, strict=True)):
        p = tables.target[tuple(tokens[:i])]
        kept = min(Fraction(1), p[token] / q[token])
        left = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
        for other, share in enumerate(left):
            if share and kept < 1:
                law[(*tokens[:i], other)] = chance * (1 - kept) * share / sum(left)
        chance *= kept
    for other, share in enumerate(tables.target[tuple(tokens)]):
        if share and chance:
            law[(*tokens, other)] += chance * share
    return law


def as_fractions(row: Tensor) -> Row:
    """The fractions with small denominators that a row was computed from."""
    found = [Fraction(float(x)).limit_denominator(1000) for x in row]
    if any(x < 0 for x in found) or sum(found) != 1:
        wrong(f"a row is a distribution, yours has {row}")
    return found


def law_of(tables: Tables, drafted: Callable) -> Law:
    """The joint law of the next k + 1 tokens. drafted(draw) gives ids and the rows that are handed over to the rule."""
    law = Counter()
    for script in itertools.product(range(tables.vocab), repeat=tables.k):
        seen = []

        def draw(row: Tensor, _: float = 0.0, seen=seen, script=script) -> int:
            seen.append(as_fractions(row))
            return (*script, 0)[min(len(seen), len(script) + 1) - 1]

        ids, handed = drafted(draw)
        chance = math.prod(row[token] for row, token in zip(seen, script, strict=False))
        if chance and not any(script[len(seen) :]):  # else another script has been drawn so far
            ids, q = [int(token) for token in ids], [as_fractions(row) for row in handed]
            if any(not row[token] for row, token in zip(q, ids, strict=True)):
                wrong(f"drawn {script}: a token is handed over with a row that rules it out")
            for block, share in emitted(tables, ids, q).items():
                law[block] += chance * share
    return completed({block: share for block, share in law.items() if share}, tables, (), tables.k + 1)


def law_with(draft: Callable, tables: Tables, bound: float) -> Law:
    """The law where the draft ends after a token of a probability below `bound`."""

    def next_row(tokens):
        return rows(floats(tables.draft[tuple(map(int, tokens))]))[0]

    return law_of(tables, lambda draw: draft(next_row, draw, [0.5] * tables.k, lambda sure: sure[-1] >= bound))


def of_the_chapter() -> Tables:
    """p = q = (4/5, 1/5) at every position, k = 1."""
    row = [Fraction(4, 5), Fraction(1, 5)]
    table = {prefix: row for n in range(2) for prefix in itertools.product(range(2), repeat=n)}
    return Tables(2, 1, table, dict(table))


def test_a_stop_leaves_the_targets_law_alone(learner):
    """draft_until_unsure: a draft may end after an unlikely token, and the law stays the target's: what was drawn is
    handed over."""
    families = ("dense", "zeros", "identical")
    many = [of_the_chapter(), *(random_tables(seed, 3, 2, 3, f) for f in families for seed in range(2))]
    for tables, bound in itertools.product(many, (0.3, 0.5)):
        if found := wrong_law(tables, law_with(learner.draft_until_unsure, tables, bound)):
            wrong(f"a draft that ends after a token below {bound}, {found[0]}. {found[1]}")
