"""Checks of exercise 14: positions, mask, rollback and the next text, one by one and in a batch that decodes."""

import itertools
import random
from collections.abc import Iterable
from types import ModuleType
from unittest import mock

import pytest
import torch
from torch import Tensor

from solutions import ex14_ragged_batches as right
from tests.exercises.answers import asked, chapter, simplest, whole, wrong

STEM = "ex14_ragged_batches"


def kind(answer: object) -> str:
    """What somebody returned, as a run reads it."""
    return f"a tensor of {answer.dtype}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"


DICE = random.Random(0)


def lengths_of(n: int) -> list[int]:
    return [DICE.choice([0, 1, 2, 3, 7, 129, 300]) for _ in range(n)]


PASSES = simplest((lengths_of(DICE.randint(1, 6)), DICE.choice([1, 2, 3, 7])) for _ in range(30))


@asked(PASSES, "lengths {}, {} tokens each: the positions")
def test_every_text_has_positions_of_its_own(one, lengths, m):
    """positions: a pass stands right behind what the cache holds of the same text."""
    at = one.positions(list(lengths), m)
    if not isinstance(at, Tensor) or at.dtype.is_floating_point or at.dtype == torch.bool:
        wrong(f"positions are a tensor of whole numbers; it looks as if yours are {kind(at)}")
    return at.tolist()


@asked(PASSES, "lengths {}, {} tokens each: the places that (text, token) reads")
def test_nobody_reads_behind_a_text(one, lengths, m):
    """visible: a token reads its text, and of the pass the tokens up to itself; never a place behind them."""
    with mock.patch.object(one, "positions", right.positions):  # a mistake there is told by its own check
        mask = one.visible(list(lengths), m, max(lengths) + m + 2)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        wrong(f"the mask is a tensor of torch.bool; it looks as if yours is {kind(mask)}")
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
    if not isinstance(answer, tuple | list):
        wrong(f"the lengths are a list of whole numbers; it looks as if yours are {kind(answer)}")
    return [whole(n) for n in answer]


NUMBERS = [[DICE.choice([None, i]) for i in DICE.sample(range(9), n)] for n in [1, 2, 3, 5, 9] * 8]
QUEUES = simplest((rows, [10 + i for i in range(DICE.randrange(9))]) for rows in NUMBERS)


@asked(QUEUES, "rows {}, waiting {}: rows and who still waits")
def test_free_rows_take_the_next_texts(one, *case):
    """admit: every free row gets a text at once, in order; nobody at work moves, and the lists that are given stay."""
    return [list(part) for part in one.admit(*map(list, case))]


PROMPTS = [[5, 9, 2], [7, 1, 3, 8, 4, 6], [11, 3], [2, 8, 8, 1, 9]]
N_NEW, K, PLACES = [6, 9, 4, 7], 2, 24
VOCAB = 47


def says(read: Iterable[tuple[int, int]]) -> int:
    """The target: what it says depends on each token that it reads, and on where that one stands."""
    return sum((token + 1) * (position + 2) ** 2 for token, position in read) % VOCAB


def enumerate_text(text: list[int]) -> list[tuple[int, int]]:
    """(token, position) of each."""
    return [(token, position) for position, token in enumerate(text)]


def continued(prompt: list[int], n_new: int) -> list[int]:
    """What the target writes after a prompt."""
    text = list(prompt)
    for _ in range(n_new):
        text.append(says(enumerate_text(text)))
    return text[len(prompt) :]


def decoded(learner: ModuleType, expected: list[list[int]]) -> list[list[int]]:
    """All texts, two rows side by side; the draft knows the text, and is wrong at every third token. A row's cache is
    (token, position) for each place, at first of tokens that no text has written."""
    caches, rows, lengths = [[(VOCAB - 1, 40)] * PLACES for _ in range(2)], [None, None], [0, 0]
    texts, waiting = [[] for _ in PROMPTS], list(range(len(PROMPTS)))
    for _ in range(60):
        before = list(rows)
        rows, waiting = (list(part) for part in learner.admit(rows, waiting))
        for row, number in enumerate(rows):
            if number is not None and before[row] is None:
                lengths[row] = len(PROMPTS[number])
                caches[row][: lengths[row]] = enumerate_text(PROMPTS[number])
                texts[number].append(continued(PROMPTS[number], 1)[0])
        if all(number is None for number in rows):
            break
        at = learner.positions(list(lengths), K + 1).tolist()
        seen = learner.visible(list(lengths), K + 1, PLACES).tolist()
        n_accepted, ended = [0, 0], [True, True]
        for row, number in enumerate(rows):
            if number is not None:
                text, left, n = texts[number], N_NEW[number] - len(texts[number]), 0
                drafts = [(t + (i % 3 == 2)) % VOCAB for i, t in enumerate(expected[number])][len(text) :]
                fed = [text[-1], *drafts, *[0] * K][: K + 1]
                caches[row][lengths[row] : lengths[row] + K + 1] = zip(fed, at[row], strict=True)
                own = [says(itertools.compress(caches[row], reads)) for reads in seen[row]]
                while n < min(K, left - 1) and own[n] == fed[n + 1]:
                    n += 1
                text += own[: n + 1]
                n_accepted[row], ended[row] = n, n + 1 >= left
        lengths = [int(n) for n in learner.rolled_back(list(lengths), n_accepted, ended)]
        rows = [None if over else number for number, over in zip(rows, ended, strict=True)]
    return texts


@pytest.mark.whole
def test_every_text_is_what_it_is_alone(learner):
    """A text in a batch is what it is alone: four texts in two rows, with a draft."""
    expected = [continued(*both) for both in zip(PROMPTS, N_NEW, strict=True)]
    assert decoded(right, expected) == expected
    for number, (given, text) in enumerate(zip(decoded(learner, expected), expected, strict=True)):
        if given != text:
            wrong(f"text {number}, prompt {PROMPTS[number]}, in a batch with the others: {given}; alone it is {text}")


def test_the_picture_of_the_chapter():
    """Lengths, positions and what stays, as the solution has them."""
    text = chapter(STEM)
    lengths, n_accepted = [5, 2, 7], [2, 0, 1]
    for row, at in enumerate(right.positions(lengths, 3).tolist()):
        assert f"row {row}   {lengths[row]}        {at[0]} {at[1]} {at[2]}" in text
    stay = right.rolled_back(lengths, n_accepted, [False] * 3)
    assert f"lengths after the round: {stay}" in " ".join(text.split())
