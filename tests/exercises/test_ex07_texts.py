"""Guards of exercise 7: its texts are the lab's copy prompts, and the stated figure separates what it says it does."""

from functools import partial

from draft_models import NgramDrafter
from exercises import Todo, ex07_ngram
from solutions.ex07_ngram import MyDrafter
from speclab.system.errors import UsageProblem
from tests.exercises import make_copy_texts
from tests.exercises.answers import mistaken, mistakes
from tests.exercises.make_copy_texts import N_TOKENS, chosen_prompts, replay, texts
from tests.exercises.test_ex07_ngram import TOKENS_PER_ROUND


def test_the_texts_are_the_labs_copy_prompts():
    """Prompts or tokenizer have changed: run python -m tests.exercises.make_copy_texts again."""
    assert [text["prompt"] for text in texts()] == [prompt.id_list for prompt in chosen_prompts()]
    assert all(len(text["continuation"]) == N_TOKENS for text in texts())


def test_the_stated_figure():
    """The lab's own drafter reaches it; a fixed match length, a wrong order and a half-blind search do not."""
    enough = {72: NgramDrafter, 66: partial(NgramDrafter, 4, 1)}  # the second one takes one id for a match
    assert {n: replay(drafter)[1] for n, drafter in enough.items()} == {n: n for n in enough}
    few = {
        "only matches of two ids": 74,
        "the shortest match wins": 74,
        "the oldest match wins": 78,
        "only the prompt is searched": 93,
        "a single token is proposed": 119,
    }
    for begins, n_rounds in few.items():
        (name,) = [name for name in mistakes("ex07_ngram") if name.startswith(begins)]
        assert replay(mistaken("ex07_ngram", name).MyDrafter)[1] == n_rounds, name
    n_tokens, n_rounds = replay(partial(NgramDrafter, 40, 40))  # it finds nothing
    assert n_tokens == n_rounds == 189
    assert n_tokens / min(few.values()) < TOKENS_PER_ROUND <= n_tokens / max(enough)


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
