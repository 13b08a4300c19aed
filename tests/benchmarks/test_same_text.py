"""The texts of every way of decoding are the baseline's, and a difference that is no tie is called a bug."""

import pytest
import torch

from benchmarks import same_text
from speclab.core.sampling import GREEDY
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import show
from speclab.records import files
from tests.decoding import plain_text
from tests.llamas import tiny_llama

BUDGET = 12


@pytest.fixture
def setup(monkeypatch):
    monkeypatch.setattr(Setup, "token_text", lambda setup, prompt, text, token: str(token))
    return Setup(CachedModel(tiny_llama(0)), None, "tiny", GREEDY, torch.device("cpu"), torch.float32)


@pytest.fixture
def prompt():
    return Prompt("code", "", torch.tensor([[3, 1, 4, 1, 5]]))


def test_equal_texts_have_no_difference(setup, prompt):
    text = plain_text(setup.target, prompt.ids, BUDGET)
    assert same_text.difference(setup, prompt, text, text) is None


def test_the_logits_are_those_of_both_tokens_at_the_first_difference(setup, prompt):
    text = plain_text(setup.target, prompt.ids, BUDGET)
    other = [*text[:7], (text[7] + 1) % setup.target.vocab_size, *text[8:]]
    found = same_text.difference(setup, prompt, text, other)
    with torch.inference_mode():
        logits = setup.target.model(torch.cat([prompt.ids, torch.tensor([text[:7]])], dim=1)).logits[0, -1]
    assert found.position == 7
    assert found.tokens == [str(text[7]), str(other[7])]
    assert found.logits == pytest.approx([logits[text[7]].item(), logits[other[7]].item()], rel=1e-5)
    assert found.right == pytest.approx(found.logits, rel=1e-4)
    assert not found.near_tie


def test_a_text_that_ends_early_is_a_bug_without_logits(setup, prompt):
    """A loop that drops its last tokens is named; there is no token to show logits of."""
    text = [5, 6, 7, 8]
    found = same_text.difference(setup, prompt, text, text[:3])
    assert (found.position, found.logits, found.right, found.near_tie) == (3, [], [], False)


def test_a_wrong_loop_is_noticed_and_the_record_says_so(pair_folder, tmp_path, monkeypatch, capsys):
    words = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", str(BUDGET)]
    words += ["--no-chat", "-k", "2", "--out-dir", str(tmp_path)]
    monkeypatch.setattr(same_text, "DTYPES", ("float32",))
    assert same_text.main(words) == 0
    run = files.read(tmp_path / "results" / "local-same-text.json", same_text.SameTextRun)
    assert [(text.draft_length, text.n_tokens, text.difference) for text in run.raw] == [
        (k, BUDGET, None) for k in (0, 2)
    ]

    right = same_text.tokens_of
    calls = iter(range(2))
    monkeypatch.setattr(
        same_text,
        "tokens_of",
        lambda rounds: [t + next(calls) * (i > 4) if i == 5 else t for i, t in enumerate(right(rounds))],
    )
    assert same_text.main(words) == 1
    run = files.read(tmp_path / "results" / "local-same-text.json", same_text.SameTextRun)
    assert [text.difference is not None and not text.difference.near_tie for text in run.raw] == [False, True]
    assert show(same_text.page(run)).count("BUG") >= 2
