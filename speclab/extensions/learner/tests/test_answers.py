"""Right answers of other kinds pass the checks: numbers of any kind, lists for pairs, arguments that are used up.
Wrong ones that are easy to give fail one, and the first check that fails names the idea behind it."""

import re

import pytest
import torch

from exercises import distilled
from speclab.extensions.learner import checks
from speclab.models import prompts
from speclab.models.loading import LAB_DRAFT
from tests.exercises.answers import VOICES, copy_of, failures, mistaken, mistakes, with_mistakes, with_wrong_answer

USED_UP = """
def verify_draft(drafted, draft_probs, target_probs, uniforms, draw):
    import numpy

    last, kept = uniforms.pop(), numpy.int64(0)
    while drafted:
        token, i = drafted.pop(0), int(kept)
        if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms.pop(0)):
            target_probs[i] = residual(target_probs[i], draft_probs[i])
            break
        kept += 1
    return [kept, numpy.int64(draw(target_probs[int(kept)], last))]
"""
STACKED = """
def walk(logits, bias, last, probs, draw):
    import numpy

    logits, tokens = logits.clone(), [numpy.int64(last)]
    for i in range(len(logits)):
        logits[i] += bias(tokens[-1])
        tokens.append(numpy.int64(draw(probs(logits[i : i + 1])[0])))
    return tokens[1:], list(probs(logits))
"""


IN_FLOAT32 = """
def expected_tokens(drawn, later):
    import torch

    sums = 1 + torch.tensor([*drawn, *later]).cumprod(0).cumsum(0)
    return [1.0, *sums.tolist()][len(drawn) :]
"""
RIGHT = {
    "next_token": ("ex02_greedy", "def next_token(own, n_accepted):\n    return torch.tensor(own)[n_accepted]"),
    "verify_draft": ("ex04_rejection", USED_UP),
    "walk": ("ex12_block_draft", STACKED),
    "expected_tokens": ("ex09_stop_when_unsure", IN_FLOAT32),
}


@pytest.mark.parametrize("hole", RIGHT)
def test_a_right_answer_of_another_kind_passes(hole):
    stem, source = RIGHT[hole]
    learner = with_wrong_answer(stem, hole, source)
    learner.torch = torch
    assert list(failures(learner, stem)) == []


def test_what_exercise_18_says_of_a_real_draft(monkeypatch, capsys):
    """On one short prompt: the loss promises less than what is kept, and at best what a perfect draft has."""
    standard = prompts.standard()
    monkeypatch.setattr(prompts, "standard", lambda: standard[:1])
    monkeypatch.setattr(distilled, "NEW", 16)
    assert distilled.main([LAB_DRAFT, "--impl", "solutions"]) == 0
    loss, entropy, least, kept, choice, promised, replayed = map(float, capsys.readouterr().out.split()[-7:])
    assert loss > entropy > 0
    assert 0 <= least <= kept < 1
    assert 1 < promised == pytest.approx(sum(choice**i for i in range(5)), abs=0.05)
    assert 1 < replayed <= 5


# An exception and a time limit say that something is wrong, and not what.
NO_WORDS = re.compile(r"\w*(Error|Exception|Iteration|Exit|Interrupt)\b|still running|\w+ returned None")
STEMS = [exercise.stem for exercise in checks.exercises() if exercise.number != 8]  # that one has its own table


@pytest.mark.parametrize("stem", STEMS)
def test_every_known_wrong_answer_fails_a_check(stem):
    """And says why in words: no bare assertion, no exception from inside the check. The words are about the code, "it
    looks as if yours ...", or about the rule, "remember: ..."."""
    assert len(mistakes(stem)) >= 2
    for answer in mistakes(stem):
        _, said = next(failures(mistaken(stem, answer), stem), ("", ""))
        assert said, f"no check notices: {answer}"
        assert not said.startswith("assert "), answer
        assert NO_WORDS.match(said) or VOICES.search(said), f"{answer}: {said}"


@pytest.mark.parametrize(
    ("right", "wrong", "check"),
    [
        ("draws[:, :draft_length], draws[:, draft_length:]", "draws, draws", "test_nothing_else_is_broken"),
        ("n_accepted, n_rejected = i + 1, 0", "n_accepted = i + 1", "test_nothing_follows_an_end_of_text"),
        (
            "n_accepted, n_rejected = i + 1, 0",
            "n_accepted, n_rejected = i + 1, 0\n                else:\n                    n_rejected = 0",
            "test_nothing_follows_an_end_of_text",
        ),
    ],
    ids=["uniforms used twice", "n_rejected not reset", "n_rejected always reset"],
)
def test_a_wrong_loop_fails_its_check(right, wrong, check):
    """Exercise 8: what its checks have let pass."""
    stem = "ex08_bug_hunt"
    source = with_mistakes(stem)
    assert right in source
    assert next(failures(copy_of(stem, source.replace(right, wrong)), stem))[0] == check
