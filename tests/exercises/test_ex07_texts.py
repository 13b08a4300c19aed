"""Guards of exercise 7: its texts are the lab's copy prompts, and the stated figure separates what it says it does."""

from collections.abc import Callable

import torch
from torch import Tensor

from draft_models import NgramDrafter
from exercises import Todo, ex07_ngram
from solutions.ex07_ngram import MyDrafter
from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling
from speclab.system.errors import UsageProblem
from tests.exercises import make_copy_texts
from tests.exercises.make_copy_texts import N_TOKENS, chosen_prompts, replay, texts
from tests.exercises.test_ex07_ngram import TOKENS_PER_ROUND


def found(text: list[int], k: int, sizes=(4, 3, 2), oldest: bool = False, within: int | None = None) -> list[int]:
    """A search with one thing done in another way."""
    for n in sizes:
        ends = [e for e in range(n, min(len(text), within or len(text))) if text[e - n : e] == text[-n:]]
        if ends:
            end = ends[0 if oldest else -1]
            return text[end : end + k]
    return []


class Searcher:
    """A drafter around a search, a function of the text and k."""

    def __init__(self, search: Callable[[list[int], int], list[int]]):
        self.search = search

    def prefill(self, target: None, prompt: Tensor, sampling: Sampling) -> None:
        self.text = prompt[0].tolist()

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        ids = self.search(self.text, k)
        return Draft(torch.tensor([ids], dtype=torch.long), torch.tensor([len(ids)]))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self.text += committed


def test_the_texts_are_the_labs_copy_prompts():
    """Prompts or tokenizer have changed: run python -m tests.exercises.make_copy_texts again."""
    assert [text["prompt"] for text in texts()] == [prompt.id_list for prompt in chosen_prompts()]
    assert all(len(text["continuation"]) == N_TOKENS for text in texts())


def test_the_stated_figure():
    """The lab's own drafter reaches it; a fixed match length, a wrong order and a half-blind search do not."""

    prompts = [text["prompt"] for text in texts()]

    def prompt_only(text: list[int], k: int) -> list[int]:
        prompt = next(p for p in prompts if text[: len(p)] == p)
        return found(text, k, within=len(prompt))

    searches = {
        "the same, written plainly": found,
        "bigrams": lambda text, k: found(text, k, (2,)),
        "shortest first": lambda text, k: found(text, k, (2, 3, 4)),
        "oldest": lambda text, k: found(text, k, oldest=True),
        "prompt only": prompt_only,
        "one token": lambda text, k: found(text, k)[:1],
        "one id is a match": lambda text, k: found(text, k, (4, 3, 2, 1)),
        "no draft": lambda text, k: [],
    }
    rounds = {name: replay(lambda search=search: Searcher(search)) for name, search in searches.items()}
    rounds["lab"] = replay(NgramDrafter)
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


def test_a_reader_can_see_their_own_count(monkeypatch, capsys):
    """`--rounds` on a finished drafter and on an open hole; the file of texts is not written."""
    before = make_copy_texts.FILE.read_bytes()
    monkeypatch.setattr(ex07_ngram, "MyDrafter", MyDrafter)
    assert make_copy_texts.main(["--rounds"]) == 0
    assert capsys.readouterr().out == "k = 4: 189 tokens in 72 rounds, 2.62 tokens per round\n"

    def todo():
        raise Todo("ex07: MyDrafter.prefill")

    monkeypatch.setattr(ex07_ngram, "MyDrafter", todo)
    assert make_copy_texts.main(["--rounds"]) == UsageProblem.exit_code
    assert "todo: ex07: MyDrafter.prefill" in capsys.readouterr().err
    assert make_copy_texts.FILE.read_bytes() == before
