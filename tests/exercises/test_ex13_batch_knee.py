"""Checks of exercise 13: seconds of a pass from a data sheet, the best length of a batch, and the knee."""

import itertools
import random
import re
from unittest import mock

from solutions import ex13_batch_knee as right
from tests.exercises.answers import asked, chapter, simplest

STEM = "ex13_batch_knee"


def rounded(number: object) -> object:
    """For comparing: seven digits are enough."""
    return float(f"{float(number):.7g}") if isinstance(number, int | float) else number


MACHINE, TARGET, DRAFT = (2e12, 300e12), (8e9, 131072), (1e9, 32768)  # those of the chapter
SLOW = (1e11, 1e12)
# machine (bytes, operations a second), model (weights, bytes for a token), texts, tokens each, context
PASSES = list(itertools.product((MACHINE, SLOW), (TARGET, DRAFT), (1, 4, 60, 300), (1, 5, 200), (0, 500, 16000)))


@asked(PASSES, "machine {}, model {}, {} texts with {} tokens each after {}: the seconds")
def test_seconds_of_a_pass(one, machine, model, *sizes):
    """step_time: weights are read once, arithmetic grows with every token, each text has a cache of its own."""
    return rounded(one.step_time(one.Machine(*machine), one.Model(*model), *sizes))


EIGHTH = [0.8**i for i in range(1, 9)]
SURVIVALS = [EIGHTH, [0.8, 0.64], [0.5] * 4, [0.86, 0.74, 0.1], [], [0.97**i for i in range(1, 13)]]
BATCHES = [  # machine, target, draft, texts, context, survival
    *itertools.product([MACHINE], [TARGET], [DRAFT, (1e8, 4096)], (1, 16, 32, 64, 256), (0, 16000), SURVIVALS),
    (SLOW, TARGET, (8e9, 1e4), 1, 0, [0.9, 0.8]),  # a draft as large as its target never pays
    ((1e12, 1e15), (4e9, 0.0), (2e9, 0.0), 1, 0, [0.5, 0.4, 0.3]),  # no gain at 1: equal to plain decoding
    ((2.0**40, 2.0**60), (2.0**32, 0.0), (2.0**30, 0.0), 1, 0, [0.875, 0.375, 0.0, 0.0]),  # two lengths are equal
]


def in_words(*case: object) -> str:
    words = "machine {}, target {}, draft {}, {} texts after {} tokens each, survival".format(*case)
    return f"{words} {[round(share, 3) for share in case[-1]]}: the best k and its speedup"


@asked(BATCHES, in_words)
def test_the_best_length_of_a_batch(one, machine, target, draft, n_texts, context, survival):
    """best_k: tokens of a round are divided by its seconds; the baseline is batched, too; 0 where nothing pays."""
    models = one.Machine(*machine), one.Model(*target), one.Model(*draft)
    with mock.patch.object(one, "step_time", right.step_time):  # a mistake there is told by its own check
        k, speedup = one.best_k(*models, n_texts, context, list(survival))
    return k, rounded(speedup)


DICE = random.Random(0)
SPEEDUPS = (2.2, 1.9, 1.5, 1.2, 1.1, 1.0, 0.9, 0.7)
CURVES = simplest(([2**i for i in range(n)], DICE.sample(SPEEDUPS, n)) for n in [1, 2, 3, 4, 8] * 30)


@asked(CURVES, "batches {}, best speedups {}: the knee")
def test_the_knee(one, *case):
    """knee: it is the first batch without a gain, on the logarithm of the batch; None where it lies further on."""
    return rounded(one.knee(*map(list, case)))


def models() -> tuple:
    return right.Machine(*MACHINE), right.Model(*TARGET), right.Model(*DRAFT)


def test_the_table_of_the_chapter():
    """Best lengths and speedups, of both contexts."""
    said = re.findall(r"^\| ([\d,]+) tokens +\| (.+) \|$", chapter(STEM), re.MULTILINE)
    assert [context for context, _ in said] == ["0", "1,000", "16,000"]
    batches = [int(n) for n in re.search(r"^\| batch +\| (.+) \|$", chapter(STEM), re.MULTILINE)[1].split(" | ")]
    for context, cells in said:
        for n, cell in zip(batches, cells.split(" | "), strict=True):
            k, speedup = right.best_k(*models(), n, int(context.replace(",", "")), EIGHTH)
            assert cell.strip() == (f"{speedup:.2f}x k={k}" if k else "off")
