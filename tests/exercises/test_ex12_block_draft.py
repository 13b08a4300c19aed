"""Checks of exercise 12: the price of a block, what slots that do not see each other lose, and the walk."""

import itertools
import random
import re
from collections.abc import Iterable
from fractions import Fraction
from types import ModuleType

import torch
from torch import Tensor

from tests.exercises.answers import asked, simplest, whole, wrong
from tests.exercises.test_ex04_rejection import overlap, rows, shown
from tests.test_exact import Row, floats, random_tables

ACCEPTANCE = [0.8, 0.75, 0.7, 0.65, 0.6, 0.6, 0.6]  # those of the chapter, and its costs
STEPWISE, ONE_PASS = [round(0.2 * k, 1) for k in range(8)], [0.0, *[0.3] * 7]
VERIFY, OVERHEAD = [1.0] * 6 + [1.3] * 2, 0.1


def prices(n: int) -> tuple[list[float], list[float], list[float], float]:
    """Acceptance, draft costs, verify costs, overhead: eighths and quarters, so that lengths are often equally fast."""
    draft, verify = [0.0], [1.0]
    for step in DICE.choice([(0.25, 0.0), (0.125, 0.125)]) * 6:
        draft.append(draft[-1] + step)
        verify.append(verify[-1] + DICE.choice([0.0, 0.0, 0.125, 0.5]))
    acceptance = [DICE.choice([1.0, 0.75, 0.75, 0.5, 0.25, 0.0]) for _ in range(n)]
    return acceptance, draft[: n + 1], verify[: n + 1], DICE.choice([0.0, 0.125, 0.25])


DICE = random.Random(0)
PRICES = [
    (ACCEPTANCE, STEPWISE, VERIFY, OVERHEAD),
    (ACCEPTANCE, ONE_PASS, VERIFY, OVERHEAD),
    ([0.9] * 7, ONE_PASS, [1.0] * 4 + [1.6] * 4, 0.0),  # slower at 4, and faster than all at 7
    ([0.95] * 12, [0.0, *[0.3] * 12], [*[1.0] * 10, *[1.5] * 3], 0.1),
    *simplest(prices(n) for n in [0, 1, 2, 3, 12] * 40),
]


PRICE = "acceptance {}, draft costs {}, verify costs {}, overhead {}: the best k"


@asked(PRICES, PRICE)
def test_the_best_length_for_prices_as_they_are(one, *case):
    """best_length: tokens of a round are divided by its measured costs, for each k; 0 where nothing pays."""
    return whole(one.best_length(*map(list, case[:3]), case[3]))


HALF = Fraction(1, 2)
COIN = [HALF, HALF]
OF_COURSE = [[Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]]  # "of course", "no problem"


def accepted(p_first: Row, p_second: list[Row], q_first: Row, q_second: list[Row]) -> Fraction:
    """Drafts that the token rule accepts of two, in fractions: drafted, tested, and only then the second one."""
    total = Fraction(0)
    for x, (p, q) in enumerate(zip(p_first, q_first, strict=True)):
        kept = q * min(Fraction(1), p / q) if q else Fraction(0)
        total += kept * (1 + overlap(p_second[x], q_second[x]))
    return total


def two_slots() -> list[tuple[Row, list[Row], Row, list[Row]]]:
    """The target's rows and the draft's: of the first token, and of the second one after each first one."""
    cases = [(COIN, OF_COURSE, COIN, [COIN, COIN]), (COIN, OF_COURSE, COIN, OF_COURSE)]
    for family, vocab, seed in itertools.product(("dense", "target forbids"), (2, 3, 7), range(3)):
        t = random_tables(seed, vocab, 2, 2, family)
        (p, *after), (q, *seen) = ([rows[()], *(rows[(x,)] for x in range(vocab))] for rows in (t.target, t.draft))
        cases += [(p, after, q, seen), (p, after, q, [q] * vocab)]  # the last one's slots do not see each other
    return cases


def rows_in_words(*tables: list) -> str:
    shown = [re.sub(r"Fraction\((\d+), (\d+)\)", r"\1/\2", str(table)) for table in tables]
    return "p first {}, p second {}, q first {}, q second {}: accepted of two".format(*shown)


@asked(two_slots(), rows_in_words, [round(float(accepted(*case)), 8) for case in two_slots()])
def test_two_slots_are_tested_one_after_the_other(one, p, after, q, seen):
    """expected_accepted: the second token counts only after a first one that was accepted, and after that one."""
    first_p, first_q = (rows(floats(row))[0] for row in (p, q))
    second_p, second_q = (rows(*map(floats, table)) for table in (after, seen))
    return round(float(one.expected_accepted(first_p, second_p, first_q, second_q)), 8)


def powers(logits: Tensor) -> Tensor:
    """The distribution that whole logits stand for here: powers of 2, divided by their sum. Fractions, not decimals."""
    weights = 2.0 ** logits.double()
    return weights / weights.sum(-1, keepdim=True)


SLOTS = [[0, 1, 3], [2, 0, 0], [1, 1, 0], [0, 2, 1], [3, 0, 1], [1, 2, 2], [0, 0, 1], [2, 1, 0]]
BIAS = [[0, 2, -1], [1, 0, 0], [-2, 0, 1]]  # row x: what is added after token x
WALKS = [(last, [DICE.randrange(3) for _ in range(k)]) for last in range(3) for k in (0, 1, 3, 8)]


def walk(learner: ModuleType, logits: Tensor, bias: list[list[int]], last: int, probs, draw) -> tuple[list, list]:
    """The ids and the rows that are handed over. What bias(token) gives is a view of the head's own table, as in a
    run."""
    table = rows(*bias)
    ids, handed = learner.walk(logits, lambda token: table[int(token)], last, probs, draw)
    if table.tolist() != bias:
        what = "a row of the head's own table, which later slots need as it was; make a new tensor of the sum"
        wrong(f"it looks as if yours changes what bias(token) gives it: that is {what}")
    return [int(token) for token in ids], list(handed)


def in_fractions(some_rows: Iterable[list[float]]) -> str:
    """Rows as a learner reads them: 1/13 where 0.076923077 stands."""
    near = [[(Fraction(x).limit_denominator(200), x) for x in row] for row in some_rows]
    shown = (", ".join(str(f) if abs(f - x) < 1e-8 else f"{x:.4g}" for f, x in row) for row in near)
    return ", ".join(f"({row})" for row in shown) or "nothing"


@asked(WALKS, f"slots {SLOTS}, bias {BIAS} (a row for each token before), last {{}}, drawn {{}}")
def test_each_row_depends_on_the_token_before(one, *case):
    """walk: a token is drawn from its slot with the bias of the one before it, and handed over with that very row."""
    last, script = case
    seen, left = [], list(script)

    def draw(row: Tensor) -> int:
        seen.append(shown(row))
        return left.pop(0) if left else 0

    ids, handed = walk(one, rows(*SLOTS[: len(script)]).reshape(-1, 3), BIAS, last, powers, draw)
    handed = map(shown, handed)
    return {"drawn from": in_fractions(seen), "ids": ids, "handed over": in_fractions(handed)}


def certain(logits: Tensor) -> Tensor:
    """The distribution at temperature 0: the largest has all."""
    return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()


@asked([(0,), (1,), (2,)], f"temperature 0, slots {SLOTS} + (0, 0.0001, 0.0002), bias {BIAS}, last {{}}: ids and rows")
def test_a_walk_at_temperature_0(one, last):
    """walk: slot and bias are added before a distribution is made of them, so that it stays one that is certain."""
    logits = rows(*SLOTS) + torch.arange(3) * 1e-4  # no two are equal, some nearly
    ids, handed = walk(one, logits, BIAS, last, certain, lambda row: int(row.argmax()))
    return ids, [shown(row) for row in handed]
