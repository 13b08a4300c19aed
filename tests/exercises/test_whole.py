"""What the checks let pass: whole numbers of any kind, a list of two for a pair, arguments that are used up."""

import importlib

import numpy
import pytest
import torch

from tests.exercises.conftest import with_wrong_answer
from tests.exercises.test_messages import said
from tests.exercises.whole import whole

NUMPYS_SHAPES = """
def shapes(n_cached, n_new, d_model, n_heads, vocab_size):
    import numpy

    head_dim, n_asked = numpy.int64(d_model) // n_heads, numpy.int32(n_cached + n_new)
    kv = (n_heads, n_asked, head_dim)
    return {
        "ids": (n_new,),
        "hidden": (n_new, d_model),
        "q": (n_heads, n_new, head_dim),
        "k": kv,
        "v": kv,
        "scores": torch.Size((n_heads, n_new, int(n_asked))),
        "logits": (n_new, vocab_size),
    }
"""
NUMPYS_COUNT = """
def count_accepted(drafted, own):
    import numpy

    return (numpy.array(drafted, dtype=int) == numpy.array(own[:-1], dtype=int)).cumprod().sum()
"""
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


@pytest.mark.parametrize("answer", [4, numpy.int64(4), torch.tensor(4)])
def test_an_index_is_a_whole_number(answer):
    assert whole(answer) == 4
    assert type(whole(answer)) is int


@pytest.mark.parametrize("answer", [4.0, numpy.float64(4), torch.tensor(4.0), "4", None, [4]])
def test_nothing_else_is(answer):
    assert whole(answer) is None


@pytest.mark.parametrize(
    ("stem", "hole", "source"),
    [
        ("ex01_shapes", "shapes", NUMPYS_SHAPES),
        ("ex02_greedy", "count_accepted", NUMPYS_COUNT),
        ("ex02_greedy", "next_token", "def next_token(own, n_accepted):\n    return torch.tensor(own)[n_accepted]"),
        ("ex04_rejection", "verify_draft", USED_UP),
    ],
    ids=["shapes", "count_accepted", "next_token", "verify_draft"],
)
def test_a_right_answer_of_another_kind_passes(stem, hole, source):
    learner = with_wrong_answer(stem, hole, source)
    learner.torch = torch
    assert list(said(learner, importlib.import_module(f"tests.exercises.test_{stem}"))) == []
