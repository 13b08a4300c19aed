"""Checks of exercise 9: what a longer draft is worth, and where a draft ends."""

import itertools
import random

from tests.exercises.answers import asked
from tests.exercises.test_ex04_rejection import draw, rows


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
