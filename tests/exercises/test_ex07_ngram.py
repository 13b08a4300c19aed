"""Checks of exercise 7: what a lookup finds, what the loop expects of a drafter, and what it earns on copied text."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from draft_models import NgramDrafter, as_draft
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling
from tests.exercises.answers import agree, asked, mistaken, mistakes

K = 4  # draft length of the count
TOKENS_PER_ROUND = 2.58  # to reach on the copy texts; the lab's own drafter makes 189 tokens in 72 rounds
# [{"prompt": ids, "continuation": ids}, ...], three of the lab's copy prompts and how the lab pair's target goes on
TEXTS = json.loads(Path(__file__).with_name("copy_texts.json").read_text(encoding="utf-8"))


LOOKUP = "lookup({}, {}, **{})"
OLDER, NEWER = [1, 2, 3, 7, 7, 9, 2, 3, 8, 8, 1, 2, 3], [1, 2, 5, 1, 2, 6, 1, 2]
LONG = [5, 6, 1, 2, 3, 4, 7, 9, 1, 2, 3, 4, 8, 5, 6, 1, 2, 3, 4]
COPY = [1, 2, 3, 1, 2]
FOUND = [
    (OLDER, 2, {}, [7, 7]),
    (OLDER, 2, {"longest": 2}, [8, 8]),
    (LONG, 1, {}, [8]),
    (NEWER, 1, {}, [6]),
    ([1, 1], 1, {"longest": 1, "shortest": 1}, [1]),
    ([5] * 6, K, {}, [5]),
    *((text, 4, {}, []) for text in ([1, 2, 3, 4, 5], [1, 2, 1], [7], [], [3, 3])),
    *((COPY, k, {}, [3, 1, 2][:k]) for k in (0, 2, 8)),
    ([3, 3], 4, {"shortest": 1}, [3]),
]


@asked(FOUND, LOOKUP, [case[-1] for case in FOUND])
def test_the_longest_match_wins_and_of_equal_ones_the_most_recent(one, text, k, lengths, right):
    """lookup: a longer context says more than a more recent one, up to `longest`; what was written last is the likelier
    to go on alike, and a match may overlap the end, but is not the end. There are fewer than k ids where the text ends,
    none without a match."""
    return one.lookup(list(text), k, **lengths)


def of_the_lab(seed: int) -> tuple[list[int], int, int, int, list[int]]:
    """A text of few different ids, k, longest, shortest, and what the lab's own drafter finds."""
    dice = random.Random(seed)
    text = [dice.randrange(dice.randint(1, 4)) for _ in range(dice.randint(1, 30))]
    longest, k = dice.randint(1, 5), dice.randint(0, 5)
    shortest = dice.randint(1, longest)
    lab = NgramDrafter(longest, shortest)
    lab.prefill(None, torch.tensor([text]), Sampling())
    return text, k, longest, shortest, lab.lookup(k)


RANDOM = [of_the_lab(seed) for seed in range(300)]


@asked([case[:-1] for case in RANDOM], "lookup({}, {}, {}, {})", [case[-1] for case in RANDOM])
def test_lookup_agrees_with_the_labs_own(one, text, *case):
    """lookup: 300 random texts of few different ids, all lengths of match."""
    return one.lookup(list(text), *case)


class Elsewhere(torch.Tensor):
    """A prompt that says it lives on another device; reading it works as ever."""

    @property
    def device(self) -> torch.device:
        return torch.device("meta")


def form(draft: object) -> object:
    """A proposal, and all that the loop expects of its form."""
    tokens = draft.tokens
    shown = {"tokens": tokens.tolist(), "shape of tokens": tuple(tokens.shape), "dtype of tokens": tokens.dtype}
    return shown | {"size": draft.size.tolist(), "probs": str(draft.probs)}


def started(one: ModuleType, prompt: Tensor | list[int]) -> Drafter:
    """A drafter that has taken in a prompt."""
    drafter = one.MyDrafter()
    drafter.prefill(None, prompt if isinstance(prompt, Tensor) else torch.tensor([prompt]), Sampling())
    return drafter


def proposed(drafter: Drafter, k: int) -> Draft:
    return drafter.propose(k, torch.zeros((1, k), dtype=torch.float64))


def ids(drafter: Drafter, k: int) -> list[int]:
    return proposed(drafter, k).tokens[0].tolist()


PROPOSED = {(*COPY, 8): [3, 1, 2], (*COPY, 2): [3, 1], (*COPY, 0): [], (1, 2, 3, 4, 4): []}  # text and k: ids


def test_a_proposal_has_the_form_that_the_loop_expects(learner):
    """MyDrafter.propose: tensors on the prompt's device with at most k ids, an empty proposal where nothing matches."""
    about = "after {}, k = {}: propose gives"
    right = [form(as_draft(right, torch.device("cpu"))) for right in PROPOSED.values()]
    cases = [(text, k) for *text, k in PROPOSED]
    agree(learner, lambda one, text, k: form(proposed(started(one, text), k)), cases, about, right)

    def devices(one: ModuleType, text: list[int]) -> str:
        draft = started(one, torch.tensor([text]).as_subclass(Elsewhere)).propose(2, torch.zeros((1, 2)))
        return f"{draft.tokens.device.type}, {draft.size.device.type}"

    about = "after {} on another device (meta): the devices of tokens and size"
    agree(learner, devices, [(COPY,), ([1, 2, 3, 4],)], about, ["meta, meta"] * 2)


THEN = "3 and the target's 9 are committed, then 1, then 2: the text is 1 2 3 4 1 2 3 9 1 2, k = 3"
TOLD = {  # what has happened, what is proposed then
    "after 1 2 3 4 1 2, k = 2": [3, 4],
    "asked once more": [3, 4],
    THEN: [3, 9, 1],
    "prefill begins a new text, 8 1 2, k = 3": [],
    "a drafter of 1 2 3 1 2, and another one is made; k = 2": [3, 1],
    "the other one, of 7 7 8": [],
}


@asked(list(enumerate(TOLD)), "{1}: proposed are", list(TOLD.values()))
def test_the_text_is_what_was_committed(one, number, what):
    """MyDrafter.observe: all of `committed` and nothing else becomes text; a proposal is not text yet."""
    drafter = started(one, [1, 2, 3, 4, 1, 2])
    found = [ids(drafter, 2), ids(drafter, 2)]
    for n_accepted, committed in ((1, [3, 9]), (0, [1]), (0, [2])):
        drafter.observe(n_accepted, committed)
    found.append(ids(drafter, 3))
    drafter.prefill(None, torch.tensor([[8, 1, 2]]), Sampling())
    found.append(ids(drafter, 3))
    first, second = started(one, COPY), started(one, [7, 7, 8])
    return [*found, ids(first, 2), ids(second, 2)][number]


def replay(make_drafter: Callable[[], Drafter]) -> tuple[int, int]:
    """Draft and verify over all texts: (tokens, rounds), each text's first token from the prompt's pass. A drafter's
    tokens per round follow from the text alone: no model, no clock."""
    n_tokens = n_rounds = 0
    for text in TEXTS:
        right, n, drafter = text["continuation"], 1, make_drafter()
        drafter.prefill(None, torch.tensor([text["prompt"]]), Sampling())
        drafter.observe(0, right[:1])
        while n < len(right):
            drafted = ids(drafter, min(K, len(right) - n - 1))
            n_accepted = next((i for i, token in enumerate(drafted) if token != right[n + i]), len(drafted))
            drafter.observe(n_accepted, right[n : n + n_accepted + 1])
            n += n_accepted + 1
            n_rounds += 1
        n_tokens += len(right) - 1
    return n_tokens, n_rounds


@asked([()], f"tokens per round on copied text, at least {TOKENS_PER_ROUND}", ["enough"])
def test_copied_text_takes_few_rounds(one):
    """MyDrafter: on three copy prompts of the lab at k = 4, at least 2.58 tokens per round. A count, no clock."""
    n_tokens, n_rounds = replay(one.MyDrafter)
    enough = n_tokens / n_rounds >= TOKENS_PER_ROUND
    return "enough" if enough else f"{n_tokens / n_rounds:.2f}, {n_tokens} tokens in {n_rounds} rounds"


def test_the_stated_figure():
    """The lab's own drafter reaches it; a fixed match length, a wrong order and a half-blind search do not."""
    enough = {72: NgramDrafter, 66: partial(NgramDrafter, 4, 1)}  # the second one takes one id for a match
    assert {n: replay(drafter)[1] for n, drafter in enough.items()} == {n: n for n in enough}
    few = {
        "only matches of two ids": 74,
        "the shortest match wins": 74,
        "the oldest match wins": 78,
        "a single token is proposed": 119,
        "only the prompt is searched": 182,
    }
    for begins, n_rounds in few.items():
        (name,) = [name for name in mistakes("ex07_ngram") if name.startswith(begins)]
        assert replay(mistaken("ex07_ngram", name).MyDrafter)[1] == n_rounds, name
    n_tokens, n_rounds = replay(partial(NgramDrafter, 400, 400))  # it finds nothing
    assert n_tokens == n_rounds == 189
    assert n_tokens / min(few.values()) < TOKENS_PER_ROUND <= n_tokens / max(enough)
