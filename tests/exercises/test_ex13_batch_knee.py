"""Checks of exercise 13: seconds of a pass from a data sheet, the best length of a batch, and the knee."""

import itertools
import re
from types import ModuleType

from solutions import ex13_batch_knee as right
from tests.exercises.answers import chapter, unlike, wrong

STEM = "ex13_batch_knee"


def rounded(number: object) -> object:
    """For comparing: seven digits are enough."""
    return float(f"{float(number):.7g}") if isinstance(number, int | float) else number


# --- a pass -----------------------------------------------------------------------------------------------------------

MACHINE, TARGET, DRAFT = (2e12, 300e12), (8e9, 131072), (1e9, 32768)  # those of the chapter
SLOW = (1e11, 1e12)
PASSES = [  # machine, model, texts, tokens each, context
    (MACHINE, TARGET, 1, 1, 0),
    (MACHINE, TARGET, 1, 5, 0),
    (MACHINE, TARGET, 30, 5, 0),
    (MACHINE, TARGET, 60, 5, 0),
    (MACHINE, TARGET, 300, 1, 0),
    (MACHINE, TARGET, 2, 200, 0),
    (MACHINE, TARGET, 1, 1, 16000),
    (MACHINE, TARGET, 8, 5, 16000),
    (MACHINE, TARGET, 256, 5, 16000),
    (SLOW, DRAFT, 4, 3, 500),
    (SLOW, TARGET, 4, 1, 0),
]


def seconds_of(learner: ModuleType) -> list[object]:
    found = []
    for machine, model, *sizes in PASSES:
        found.append(rounded(learner.step_time(learner.Machine(*machine), learner.Model(*model), *sizes)))
    return found


def test_seconds_of_a_pass(learner):
    """step_time: weights are read once, arithmetic grows with every token, each text has a cache of its own."""
    for one, given, expected, name in unlike(STEM, seconds_of, learner, right, PASSES):
        (bandwidth, flops), (weights, place_bytes), n_texts, width, context = one
        wrong(
            f"{weights:g} weights and {place_bytes} bytes for a token of context, {bandwidth:g} bytes and "
            f"{flops:g} operations a second, {n_texts} texts with {width} tokens each after {context}: "
            f"{expected:g} seconds, yours says {given}{name}"
        )


# --- the best length --------------------------------------------------------------------------------------------------

EIGHTH = [0.8**i for i in range(1, 9)]
LATE = [0.5, 0.5, 0.5, 0.5]  # a draft that is right to its end, once it is right
BATCHES = [
    *((MACHINE, TARGET, DRAFT, n, context, EIGHTH) for n in (1, 16, 32, 64, 128, 256) for context in (0, 16000)),
    (MACHINE, TARGET, DRAFT, 1, 0, [0.8, 0.64]),
    (MACHINE, TARGET, DRAFT, 75, 0, LATE),
    (SLOW, TARGET, (8e8, 1e4), 2, 100, [0.3, 0.1]),
    (SLOW, TARGET, (8e9, 1e4), 1, 0, [0.9, 0.8]),  # a draft as large as its target never pays
    ((1e12, 1e15), (4e9, 0.0), (2e9, 0.0), 1, 0, [0.5, 0.4, 0.3]),  # no gain at 1: equal to plain decoding
    ((1e12, 1e15), (4e9, 0.0), (1e9, 0.0), 1, 0, [0.5, 0.3, 0.0, 0.0]),
    ((1e12, 1e13), (1e9, 0.0), (5e7, 0.0), 4, 0, [0.6, 0.6, 0.6, 0.6, 0.6, 0.6]),
    (MACHINE, TARGET, DRAFT, 4, 0, []),
    (MACHINE, (8e9, 131072), (1e8, 4096), 1, 0, [0.97**i for i in range(1, 13)]),  # the longest of twelve
    (MACHINE, (8e9, 131072), (1e8, 4096), 8, 16000, [0.96**i for i in range(1, 13)]),
    (MACHINE, TARGET, DRAFT, 4, 1000, [0.86, 0.74, 0.74 * 0.14]),
]


def lengths_of(learner: ModuleType) -> list[object]:
    found = []
    for machine, target, draft, n_texts, context, survival in BATCHES:
        models = learner.Machine(*machine), learner.Model(*target), learner.Model(*draft)
        own, learner.step_time = learner.step_time, right.step_time  # a mistake there is told by its own check
        try:
            k, speedup = learner.best_k(*models, n_texts, context, list(survival))
        finally:
            learner.step_time = own
        found.append((k, rounded(speedup)))
    return found


def test_the_best_length_of_a_batch(learner):
    """best_k: tokens of a round are divided by its seconds; the baseline is batched, too; 0 where nothing pays."""
    for one, given, expected, name in unlike(STEM, lengths_of, learner, right, BATCHES):
        machine, target, draft, n_texts, context, survival = one
        shares = [round(share, 3) for share in survival]
        wrong(
            f"{n_texts} texts after {context} tokens each, machine {machine}, target {target}, draft {draft}, "
            f"survival {shares}: the best k is {expected[0]} with {expected[1]:.3f}x, yours says {given}"
            f"{name}"
        )


# --- the knee ---------------------------------------------------------------------------------------------------------

CURVES = [
    ([1, 4, 16], [2.0, 1.5, 0.5]),
    ([1, 2, 4, 8], [2.2, 1.9, 1.1, 0.7]),
    ([1, 2], [2.0, 1.5]),
    ([2, 4], [0.9, 0.8]),
    ([1, 2, 4], [1.4, 1.0, 0.8]),
    ([1, 2, 4, 8], [1.4, 0.9, 1.1, 0.7]),  # noise: the first time counts
    ([1, 2, 4], [1.5, 0.9, 1.2]),  # later gains do not matter
    ([1, 2, 4], [1.2, 0.9, 1.5]),
    ([1, 2, 4], [0.9, 1.2, 0.8]),
    ([8], [1.5]),
    ([3, 5], [1.0, 0.5]),
    ([1, 2], [1.5, 1.0]),  # at the last one it is 1: that is the knee
    ([4], [1.0]),
    ([1, 2, 4], [1.2, 1.5, 0.8]),  # the fall begins at 1.5, whatever came before it
    ([2**i for i in range(9)], [2.24, 2.16, 2.05, 1.86, 1.63, 1.44, 1.27, 1.04, 0.83]),
    ([2**i for i in range(9)], [2.24, 2.16, 2.05, 1.86, 1.63, 1.44, 1.27, 1.14, 1.03]),
]


def knees_of(learner: ModuleType) -> list[object]:
    return [rounded(learner.knee(list(batches), list(speedups))) for batches, speedups in CURVES]


def test_the_knee(learner):
    """knee: it is the first batch without a gain, on the logarithm of the batch; None where it lies further on."""
    for (batches, speedups), given, expected, name in unlike(STEM, knees_of, learner, right, CURVES):
        wrong(f"batches {batches}, best speedups {speedups}: the knee is {expected}, yours says {given}{name}")


# --- the page ---------------------------------------------------------------------------------------------------------


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


def test_the_knee_of_the_chapter():
    """Without context: from the best speedups over lengths of 1 and more."""
    machine, target, draft = models()
    batches = [2**i for i in range(9)]
    best = []
    for n in batches:
        step, drafting = (right.step_time(machine, model, n, 1, 0) for model in (target, draft))
        tokens = itertools.accumulate([1.0, *EIGHTH])
        rounds = [k * drafting + right.step_time(machine, target, n, k + 1, 0) for k in range(9)]
        best.append(max(t * step / r for k, (t, r) in enumerate(zip(tokens, rounds, strict=True)) if k))
    assert f"at a batch of {right.knee(batches, best):.0f}" in " ".join(chapter(STEM).split())
