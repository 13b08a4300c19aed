"""Checks of exercise 14: positions, mask, rollback and the next text, one by one and in a batch that decodes."""

import contextlib
import itertools
from types import ModuleType

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from solutions import ex14_ragged_batches as right
from tests.exercises.answers import chapter, unlike, whole, wrong
from tests.llamas import VOCAB, tiny_llama

STEM = "ex14_ragged_batches"
torch.set_num_threads(1)  # the model is tiny: more threads only add time, and wait for each other


def kind(answer: object) -> str:
    """What somebody returned, as a run reads it."""
    return f"a tensor of {answer.dtype}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"


# --- positions and mask -----------------------------------------------------------------------------------------------

PASSES = [([3, 1], 2), ([0, 0, 0], 1), ([10, 4, 7], 5), ([6], 3), ([2, 9], 1)]
PASSES.append(([300, 129, 40, 64, 0, 77], 7))


def all_positions(learner: ModuleType) -> list[object]:
    found = []
    for lengths, m in PASSES:
        at = learner.positions(list(lengths), m)
        if not isinstance(at, Tensor) or at.dtype.is_floating_point or at.dtype == torch.bool:
            wrong(f"positions are a tensor of whole numbers; it looks as if yours are {kind(at)}")
        found.append(at.tolist())
    return found


def test_every_text_has_positions_of_its_own(learner):
    """positions: a pass stands right behind what the cache holds of the same text."""
    for (lengths, m), given, expected, name in unlike(STEM, all_positions, learner, right, PASSES):
        wrong(f"lengths {lengths}, {m} tokens each: the positions are {expected}, yours are {given}{name}")


def all_masks(learner: ModuleType) -> list[object]:
    own, learner.positions = learner.positions, right.positions  # a mistake there is told by its own check
    try:
        found = []
        for lengths, m in PASSES:
            mask = learner.visible(list(lengths), m, max(lengths) + m + 2)
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                wrong(f"the mask is a tensor of torch.bool; it looks as if yours is {kind(mask)}")
            found.append(mask.long().tolist())
        return found
    finally:
        learner.positions = own


def first_difference(expected: list, given: object) -> str:
    """The first place of a large mask that is wrong."""
    for text, token in itertools.product(range(len(expected)), range(len(expected[0]))):
        with contextlib.suppress(TypeError, IndexError):
            own, right_row = given[text][token], expected[text][token]
            if own == right_row:
                continue
            place = next(i for i, pair in enumerate(zip(right_row, own, strict=False)) if pair[0] != pair[1])
            does = "reads" if right_row[place] else "does not read"
            return f"token {token} of text {text} {does} place {place}, and with yours it is the other way round"
    return "yours is of another shape"


def test_nobody_reads_behind_a_text(learner):
    """visible: a token reads its text, and of the pass the tokens up to itself; never a place behind them."""
    for (lengths, m), given, expected, name in unlike(STEM, all_masks, learner, right, PASSES):
        places = f"lengths {lengths}, {m} tokens each, {max(lengths) + m + 2} places"
        if max(lengths) < 128:
            wrong(f"{places}: the mask is {expected}, yours is {given}{name}")
        wrong(f"{places}: {first_difference(expected, given)}{name}")


# --- after the round --------------------------------------------------------------------------------------------------

ROUNDS = [
    ([10, 20, 30], [4, 0, 2], [False, False, True]),
    ([5, 5], [1, 3], [False, False]),
    ([7], [0], [False]),
    ([8, 6, 4, 2], [0, 1, 2, 3], [False, True, False, True]),
    ([3, 12], [2, 2], [True, True]),
    ([300, 129, 40, 64, 1, 77, 9], [7, 0, 3, 6, 2, 7, 5], [False, False, True, False, False, False, False]),
]


def all_lengths(learner: ModuleType) -> list[object]:
    found = []
    for lengths, n_accepted, ended in ROUNDS:
        answer = learner.rolled_back(list(lengths), list(n_accepted), list(ended))
        if not isinstance(answer, tuple | list):
            wrong(f"the lengths are a list of whole numbers; it looks as if yours are {kind(answer)}")
        found.append([whole(n) for n in answer])
    return found


def test_every_text_rolls_back_to_its_own_length(learner):
    """rolled_back: what is committed but the last stays, text by text; nothing of a text that has ended."""
    for (lengths, n_accepted, ended), given, expected, name in unlike(STEM, all_lengths, learner, right, ROUNDS):
        wrong(
            f"lengths {lengths} before the round, accepted {n_accepted}, ended {ended}: {expected} stay, yours "
            f"says {given}{name}"
        )


QUEUES = [
    ([4, None, 2, None], [5, 6, 7]),
    ([None, None], [0, 1, 2]),
    ([0, None], [1]),
    ([3, None, None], [9]),
    ([1, 2], [3]),
    ([None, 5], []),
    ([None, 1, 0, None, None], [8, 6]),
    ([None, 1, 0, None, None, None, 3, None, None], [8, 6, 11, 12, 13, 14, 15, 16]),
]


def all_queues(learner: ModuleType) -> list[object]:
    return [[list(part) for part in learner.admit(list(rows), list(waiting))] for rows, waiting in QUEUES]


def test_free_rows_take_the_next_texts(learner):
    """admit: every free row gets a text at once, in order; nobody at work moves, and the lists that are given stay."""
    for (rows, waiting), given, expected, name in unlike(STEM, all_queues, learner, right, QUEUES):
        wrong(f"rows {rows}, waiting {waiting}: {expected}, yours says {given}{name}")
    for rows, waiting in QUEUES:
        lists = {"rows": list(rows), "waiting": list(waiting)}
        learner.admit(*lists.values())
        for (name, given), before in zip(lists.items(), (rows, waiting), strict=True):
            if given != before:
                wrong(f"admit changed the list `{name}` from {before} to {given}; work on a copy, list({name})")


# --- a batch that decodes ---------------------------------------------------------------------------------------------

PROMPTS = [[5, 9, 2], [7, 1, 3, 8, 4, 6], [11, 3], [2, 8, 8, 1, 9]]
N_NEW, K, PLACES = [6, 9, 4, 7], 2, 24


def alone(model, prompt: list[int], n_new: int) -> list[int]:
    """The greedy text, without a cache."""
    text = list(prompt)
    for _ in range(n_new):
        text.append(int(model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(prompt) :]


class Rows:
    """A cache of PLACES places in each of two rows, full of what no text has written."""

    def __init__(self, model):
        self.model, self.cache = model, DynamicCache(config=model.config)
        model(input_ids=torch.full((2, PLACES), VOCAB - 1), past_key_values=self.cache)

    def prefill(self, row: int, prompt: list[int]) -> int:
        """Put a text into the places 0, 1, ... of a row.  -> the token after it"""
        own = DynamicCache(config=self.model.config)
        logits = self.model(input_ids=torch.tensor([prompt]), past_key_values=own).logits
        for layer, its in zip(self.cache.layers, own.layers, strict=True):
            layer.keys[row, :, : len(prompt)], layer.values[row, :, : len(prompt)] = its.keys[0], its.values[0]
        return int(logits[0, -1].argmax())

    def forward(self, fed: Tensor, at: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """Tokens, positions, and where each is written, all (2, m); seen (2, m, PLACES).  -> (2, m) the next tokens"""
        index = places[:, None].expand(-1, fed.shape[1], -1)
        # The model writes the pass behind all places, so what is seen of it is looked for there.
        seen = torch.cat([seen.scatter(2, index, False), seen.gather(2, index)], dim=2)
        mask = torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill(~seen, torch.finfo(self.model.dtype).min)
        logits = self.model(fed, mask[:, None], position_ids=at, past_key_values=self.cache).logits
        for layer in self.cache.layers:
            for name in ("keys", "values"):
                both = getattr(layer, name)  # (2, heads, PLACES + m, head_dim)
                index = places[:, None, :, None].expand(-1, both.shape[1], -1, both.shape[3])
                setattr(layer, name, both[:, :, :PLACES].scatter(2, index, both[:, :, PLACES:]))
        return logits.argmax(-1)


def decoded(learner: ModuleType, model, expected: list[list[int]]) -> list[list[int]]:
    """All texts, two rows side by side; the draft knows the text, and is wrong at every third token."""
    buffers = Rows(model)
    texts: list[list[int]] = [[] for _ in PROMPTS]
    lengths, waiting = [0, 0], list(range(len(PROMPTS)))
    rows: list[int | None] = [None, None]
    for _ in range(60):
        before = list(rows)
        rows, waiting = (list(part) for part in learner.admit(rows, waiting))
        for row, number in enumerate(rows):
            if number is not None and before[row] is None:
                texts[number].append(buffers.prefill(row, PROMPTS[number]))
                lengths[row] = len(PROMPTS[number])
        if all(number is None for number in rows):
            return texts
        fed = torch.zeros(2, K + 1, dtype=torch.long)
        for row, number in enumerate(rows):
            if number is not None:
                n = len(texts[number])
                known = [(t + (i % 3 == 2)) % VOCAB for i, t in enumerate(expected[number])]
                drafts = (known[n : n + K] + [0] * K)[:K]
                fed[row] = torch.tensor([texts[number][-1], *drafts])
        at = learner.positions(list(lengths), K + 1)
        seen = learner.visible(list(lengths), K + 1, PLACES)
        own = buffers.forward(fed, at, right.positions(lengths, K + 1), seen)  # (2, K + 1)
        n_accepted, ended = [], []
        for row, number in enumerate(rows):
            left = 0 if number is None else N_NEW[number] - len(texts[number])
            n = 0
            while n < min(K, left - 1) and own[row, n] == fed[row, n + 1]:
                n += 1
            if number is not None:
                texts[number] += own[row, : n + 1].tolist()
            n_accepted.append(n)
            ended.append(number is None or len(texts[number]) >= N_NEW[number])
        lengths = [int(n) for n in learner.rolled_back(list(lengths), n_accepted, ended)]
        rows = [None if over else number for number, over in zip(rows, ended, strict=True)]
    return texts


@pytest.mark.whole
def test_every_text_is_what_it_is_alone(learner):
    """A text in a batch is what it is alone: four texts in two rows, with a tiny model and a draft."""
    model = tiny_llama(0)
    with torch.inference_mode():
        expected = [alone(model, *pair) for pair in zip(PROMPTS, N_NEW, strict=True)]
        assert decoded(right, model, expected) == expected
        found = decoded(learner, model, expected)
    for number, (given, text) in enumerate(zip(found, expected, strict=True)):
        if given != text:
            wrong(
                f"text {number}, of {len(PROMPTS[number])} prompt tokens, in a batch with the others: {given}; alone "
                f"it is {text}"
            )


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_picture_of_the_chapter():
    """Lengths, positions and what stays, as the solution has them."""
    text = chapter(STEM)
    lengths, n_accepted = [5, 2, 7], [2, 0, 1]
    for row, at in enumerate(right.positions(lengths, 3).tolist()):
        assert f"row {row}   {lengths[row]}        {at[0]} {at[1]} {at[2]}" in text
    stay = right.rolled_back(lengths, n_accepted, [False] * 3)
    assert f"lengths after the round: {stay}" in " ".join(text.split())
