"""Guards of exercise 7: its texts are the lab's copy prompts, and the stated figure separates what it says it does."""

import torch

from draft_models import NgramDrafter
from speclab.sampling import Sampling
from tests.exercises.make_copy_texts import N_TOKENS, chosen_prompts, replay, texts
from tests.exercises.test_ex07_ngram import TOKENS_PER_ROUND, K


def found(text: list[int], k: int, sizes=(4, 3, 2), oldest: bool = False, within: int | None = None) -> list[int]:
    """A search with one thing done in another way."""
    for n in sizes:
        ends = [e for e in range(n, min(len(text), within or len(text))) if text[e - n : e] == text[-n:]]
        if ends:
            end = ends[0 if oldest else -1]
            return text[end : end + k]
    return []


def test_the_texts_are_the_labs_copy_prompts():
    """Prompts or tokenizer have changed: run python -m tests.exercises.make_copy_texts again."""
    assert [text["prompt"] for text in texts()] == [prompt.id_list for prompt in chosen_prompts()]
    assert all(len(text["continuation"]) == N_TOKENS for text in texts())


def test_the_stated_figure():
    """The lab's own drafter reaches it; a fixed match length, a wrong order and a half-blind search do not."""

    def lab(text: list[int], k: int) -> list[int]:
        drafter = NgramDrafter()
        drafter.start(None, torch.tensor([text]), Sampling())
        return drafter.lookup(k)

    prompts = [text["prompt"] for text in texts()]

    def prompt_only(text: list[int], k: int) -> list[int]:
        prompt = next(p for p in prompts if text[: len(p)] == p)
        return found(text, k, within=len(prompt))

    rounds = {
        "lab": replay(lab, K),
        "the same, written plainly": replay(found, K),
        "bigrams": replay(lambda text, k: found(text, k, (2,)), K),
        "shortest first": replay(lambda text, k: found(text, k, (2, 3, 4)), K),
        "oldest": replay(lambda text, k: found(text, k, oldest=True), K),
        "prompt only": replay(prompt_only, K),
        "one token": replay(lambda text, k: found(text, k)[:1], K),
        "one id is a match": replay(lambda text, k: found(text, k, (4, 3, 2, 1)), K),
        "no draft": replay(lambda text, k: [], K),
    }
    assert {name: n_rounds for name, (_, n_rounds) in rounds.items()} == {
        "lab": 72,
        "the same, written plainly": 72,
        "bigrams": 74,
        "shortest first": 74,
        "oldest": 78,
        "prompt only": 92,
        "one token": 119,
        "one id is a match": 66,
        "no draft": 189,
    }
    assert {name for name, (n_tokens, n) in rounds.items() if n_tokens / n >= TOKENS_PER_ROUND} == {
        "lab",
        "the same, written plainly",
        "one id is a match",
    }
