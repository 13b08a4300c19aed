"""The checks of exercise 1: shapes of one pass, and the rows that judge the drafts."""

import random
from types import ModuleType

import torch
from torch import Tensor, nn

from tests.exercises.answers import asked, whole


def attend(n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict[str, Tensor]:
    """A real pass through one attention layer and an output layer: the tensors of the table."""

    def split(x: Tensor) -> Tensor:  # (tokens, d_model) -> (heads, tokens, head_dim)
        return x.unflatten(-1, (n_heads, -1)).transpose(0, 1)

    ids = torch.zeros(n_new, dtype=torch.long)
    hidden = nn.functional.embedding(ids, torch.rand(vocab_size, d_model))
    q, new_k, new_v = (split(hidden @ torch.rand(d_model, d_model)) for _ in range(3))
    k, v = (torch.cat([split(torch.rand(n_cached, d_model)), new], dim=1) for new in (new_k, new_v))
    scores = q @ k.transpose(1, 2)
    mask = torch.ones(n_new, n_cached + n_new, dtype=torch.bool).tril(n_cached)
    read = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v  # (heads, n_new, head_dim)
    logits = read.transpose(0, 1).flatten(1) @ torch.rand(d_model, vocab_size)
    return {"ids": ids, "hidden": hidden, "q": q, "k": k, "v": v, "scores": scores, "logits": logits}


def entries(*all_sizes: tuple[int, ...]) -> tuple[list[tuple], str, list[tuple[int, ...]]]:
    """Cases of tables of these sizes, in words, and the right shapes."""
    right = {(name, *sizes): tuple(x.shape) for sizes in all_sizes for name, x in attend(*sizes).items()}
    about = "{0} of {2} fed tokens, {1} cached, d_model {3}, {4} heads, vocabulary {5}"
    return list(right), about, list(right.values())


def entry(one: ModuleType, name: str, *sizes: int) -> object:
    """One shape of the learner's table."""
    return tuple(map(whole, one.shapes(*sizes)[name]))


# The first two are the chapter's trace: prefix of 3, then 3 drafts; d_model 8, 2 heads, vocabulary of 1000.
SIZES = [(0, 6, 8, 2, 1000), (2, 4, 8, 2, 1000), (17, 1, 8, 4, 50), (0, 1, 6, 3, 60), (40, 9, 35, 5, 90)]
SIZES += [(5, 2, 8, 1, 70), (1, 8, 28, 4, 80)]


@asked(*entries(*SIZES))
def test_a_pass_without_a_cache_and_one_with_it(one, *case):
    """shapes: the table equals the tensors of a real attention layer; cached tokens are not fed again and ask nothing,
    but they are asked by every one that is fed."""
    return entry(one, *case)


def judged(one: ModuleType, n_prefix: int, n_drafted: int) -> tuple:
    """What a target that looks at one token gives the drafts: row x of its table is its distribution after x."""
    table = torch.rand((20, 20), generator=torch.Generator().manual_seed(n_prefix), dtype=torch.float64).softmax(-1)
    fed = random.Random(n_prefix).sample(range(20), n_prefix + n_drafted)
    got = one.verifying_probs(table[fed], fed[n_prefix:])
    return tuple(got.shape), [round(x, 5) for x in got.flatten().tolist()]


ROWS = "{} rows in front of the drafts, {} drafted: the shape of the tensor, and its numbers"


@asked([(1, 3), (1, 1), (1, 0), (5, 0), (3, 3), (9, 4)], ROWS)
def test_the_rows_that_judge_the_drafts(one, *case):
    """verifying_probs: each draft is judged by the row in front of its own, the last row judges none, and the prompt's
    rows stand in front of the ones that count."""
    return judged(one, *case)
