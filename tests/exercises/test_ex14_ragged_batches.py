"""Checks of exercise 14: positions, mask, rollback and the next text."""

import itertools
import random
from unittest import mock

import torch

from solutions import ex14_ragged_batches as right
from tests.exercises.answers import asked, simplest, whole

DICE = random.Random(0)


def lengths_of(n: int) -> list[int]:
    return [DICE.choice([0, 1, 2, 3, 7, 129, 300]) for _ in range(n)]


PASSES = simplest((lengths_of(DICE.randint(1, 6)), DICE.choice([1, 2, 3, 7])) for _ in range(30))


@asked(PASSES, "lengths {}, {} tokens each: the positions")
def test_every_text_has_positions_of_its_own(one, lengths, m):
    """positions: a pass stands right behind what the cache holds of the same text."""
    return [[whole(place) for place in row] for row in one.positions(list(lengths), m).unbind()]


@asked(PASSES, "lengths {}, {} tokens each: the places that (text, token) reads")
def test_nobody_reads_behind_a_text(one, lengths, m):
    """visible: a token reads its text, and of the pass the tokens up to itself; never a place behind them."""
    with mock.patch.object(one, "positions", right.positions):  # a mistake there is told by its own check
        mask = one.visible(list(lengths), m, max(lengths) + m + 2)
    if mask.dtype != torch.bool:
        return f"a mask of {mask.dtype}, not of torch.bool"
    if mask.shape != (len(lengths), m, max(lengths) + m + 2):
        return {"shape": tuple(mask.shape)}
    tokens = itertools.product(range(len(lengths)), range(m))
    return {token: mask[token].nonzero()[:, 0].tolist() for token in tokens}


ROUNDS = simplest(
    (lengths_of(n), [DICE.randrange(8) for _ in range(n)], [DICE.random() < 0.3 for _ in range(n)])
    for n in [1, 2, 3, 7] * 8
)


@asked(ROUNDS, "lengths {} before the round, accepted {}, ended {}: so many stay")
def test_every_text_rolls_back_to_its_own_length(one, *case):
    """rolled_back: what is committed but the last stays, text by text; nothing of a text that has ended."""
    answer = one.rolled_back(*map(list, case))
    return [whole(n) for n in answer] if isinstance(answer, list | tuple) else f"a {type(answer).__name__}, no list"


NUMBERS = [[DICE.choice([None, i]) for i in DICE.sample(range(9), n)] for n in [1, 2, 3, 5, 9] * 8]
QUEUES = simplest((rows, [10 + i for i in range(DICE.randrange(9))]) for rows in NUMBERS)


@asked(QUEUES, "rows {}, waiting {}: rows and who still waits")
def test_free_rows_take_the_next_texts(one, *case):
    """admit: every free row gets a text at once, in order; nobody at work moves, and the lists that are given stay."""
    return [list(part) for part in one.admit(*map(list, case))]
