"""The checks of exercise 1: shapes of one pass, and the rows that judge the drafts."""

import random

import pytest
import torch
from torch import Tensor, nn

from tests.exercises.answers import whole

# The chapter's trace: prefix of 3, then 3 drafts; d_model 8, 2 heads, vocabulary of 1000.
WITHOUT_A_CACHE = {"n_cached": 0, "n_new": 6, "d_model": 8, "n_heads": 2, "vocab_size": 1000}
WITH_A_CACHE = {**WITHOUT_A_CACHE, "n_cached": 2, "n_new": 4}


def attend(n_cached: int, n_new: int, d_model: int, n_heads: int, vocab_size: int) -> dict[str, Tensor]:
    """A real pass through one attention layer and an output layer, random weights: the tensors of the table."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def split(x: Tensor) -> Tensor:  # (tokens, d_model) -> (heads, tokens, head_dim)
        return x.unflatten(-1, (n_heads, -1)).transpose(0, 1)

    ids = torch.randint(0, vocab_size, (n_new,), generator=generator)
    hidden = nn.functional.embedding(ids, rand(vocab_size, d_model))
    q, new_k, new_v = (split(hidden @ rand(d_model, d_model)) for _ in range(3))
    k, v = (torch.cat([split(rand(n_cached, d_model)), new], dim=1) for new in (new_k, new_v))
    scores = q @ k.transpose(1, 2)
    mask = torch.ones(n_new, n_cached + n_new, dtype=torch.bool).tril(n_cached)
    read = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v  # (heads, n_new, head_dim)
    logits = read.transpose(0, 1).flatten(1) @ rand(d_model, vocab_size)
    return {"ids": ids, "hidden": hidden, "q": q, "k": k, "v": v, "scores": scores, "logits": logits}


def complaint(table: object, sizes: dict[str, int]) -> str:
    """What is wrong with a table of shapes, in one line; empty if nothing is."""
    if not isinstance(table, dict):
        return f"shapes must return a dict, you got {table!r}"
    n_cached, n_new, vocab_size = (sizes[name] for name in ("n_cached", "n_new", "vocab_size"))
    d_model, n_heads = sizes["d_model"], sizes["n_heads"]
    n_all = n_cached + n_new
    for name, tensor in attend(**sizes).items():
        right = tuple(tensor.shape)
        if name not in table:
            return f"the table has no entry {name!r}"
        if not isinstance(table[name], tuple):
            return f"{name}: a shape is a tuple of ints, you got {table[name]!r}"
        sizes_given = [whole(size) for size in table[name]]
        if None in sizes_given:
            return f"{name}: sizes are whole numbers, you got {table[name]}; / gives a float, // a whole number"
        got = tuple(sizes_given)
        if got == right:
            continue
        start = f"{name} of {n_new} fed tokens, {n_cached} cached: you got {got}; "
        if len(got) == len(right) + 1 and got[0] == 1:
            return start + "there is no batch axis here"
        if name == "logits" and got in ((vocab_size,), (1, vocab_size)):
            return start + "that is one row, for the last token; verifying needs a row for every fed token"
        if len(got) != len(right):
            return start + f"that is {len(got)} axes, not {len(right)}"
        if sorted(got) == sorted(right):
            return start + "the right numbers in another order than the docstring names them"
        if name in ("q", "k", "v") and got[-1] != right[-1]:
            return start + f"the heads share the {d_model} numbers of d_model, each gets {d_model // n_heads}"
        if name in ("k", "v") and got[1] == n_new:
            return start + "attention reads the cached keys and values too: the cache saves computing them, not reading"
        if name == "scores" and n_cached and got[1:] == (n_new, n_new):
            return start + "a new token asks the cached ones too, so there are more columns than rows"
        if n_cached and n_all in got and n_all not in right:
            return start + "cached tokens are not fed again: only the new ones have ids, hidden vectors and queries"
        if name == "scores" and n_cached and got[1:] == (n_all, n_all):
            return start + "cached tokens ask nothing: only the fed ones have rows of scores"
        return start + "see which axes the docstring names"
    return ""


def test_a_pass_without_a_cache(learner):
    """All six tokens are fed, and 6 x 6 scores come out of each head."""
    wrong = complaint(learner.shapes(**WITHOUT_A_CACHE), WITHOUT_A_CACHE)
    assert not wrong, wrong


def test_a_pass_with_a_cache(learner):
    """Four tokens are fed, two lie in the cache, and 4 x 6 scores come out of each head."""
    wrong = complaint(learner.shapes(**WITH_A_CACHE), WITH_A_CACHE)
    assert not wrong, wrong


@pytest.mark.whole
def test_shapes_of_any_size(learner):
    """The table equals the tensors of a real attention layer, for random sizes and for plain decoding."""
    dice = random.Random(0)
    cases = [(dice.randint(0, 40), dice.randint(1, 9)) for _ in range(20)] + [(17, 1), (0, 1)]  # the last ones: plain
    for n_cached, n_new in cases:
        n_heads = dice.choice([1, 3, 4, 5])
        sizes = {"n_cached": n_cached, "n_new": n_new, "d_model": n_heads * dice.choice([2, 7, 8]), "n_heads": n_heads}
        sizes["vocab_size"] = dice.randint(50, 90)
        wrong = complaint(learner.shapes(**sizes), sizes)
        assert not wrong, wrong


def target_table(n_ids: int, seed: int) -> Tensor:
    """(n_ids, n_ids) a target that looks at one token only: row x is its distribution after token x."""
    return torch.rand((n_ids, n_ids), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


def judge(got: object, fed: list[int], n_drafted: int, table: Tensor) -> str:
    """What is wrong with the verifying probabilities of a pass over `fed`, in one line; empty if nothing is."""
    drafted, before = fed[len(fed) - n_drafted :], fed[len(fed) - n_drafted - 1 : -1]

    def same(rows: list[int]) -> bool:
        return torch.allclose(got.double(), table[rows, drafted], rtol=0, atol=1e-6)

    if not isinstance(got, Tensor):
        return f"verifying_probs must return a tensor, you got {got!r}"
    if got.shape != (n_drafted,):
        return f"one number for each of {n_drafted} drafted tokens is shape ({n_drafted},), you got {tuple(got.shape)}"
    if same(before):
        return ""
    start = f"{len(fed)} tokens fed, the last {n_drafted} of them drafted: "
    rows = table[before]
    if torch.allclose(got.double(), rows.max(-1).values, rtol=0, atol=1e-6):
        return start + "you return the largest probability of each row; the draft is judged by the one of its own id"
    if torch.allclose(got.double(), rows.softmax(-1)[range(n_drafted), drafted], rtol=0, atol=1e-6):
        return start + "you put a softmax over probabilities; they are probabilities already, take them as they are"
    if torch.allclose(got.double(), rows.log()[range(n_drafted), drafted], rtol=0, atol=1e-6):
        return start + "these are logarithms; take the probabilities as they are"
    if torch.equal(got.double(), (rows.argmax(-1) == torch.tensor(drafted)).double()):
        return start + "that says whether a draft is the most probable id; asked for is its probability"
    if same(drafted):
        return start + "you paired each draft with the row of the token itself; that row tells what comes after it"
    if same(fed[:n_drafted]):
        return start + "your rows are the first ones, which follow the prompt's tokens; the drafts are at the other end"
    if len(fed) > 2 * n_drafted and same(fed[-2 * n_drafted - 1 : -n_drafted - 1]):
        return start + "your rows end where the drafts begin: they belong to the prompt"
    if n_drafted and same([fed[-1]] * n_drafted):
        return start + "you judge every draft by the last row, which belongs to the bonus token; each has its own row"
    if n_drafted and same([before[0]] * n_drafted):
        return start + "you judge every draft by the same row; each has its own, the one in front of it"
    shifted = [i for i in range(1 - len(fed), len(fed)) if i and _shifted(got, fed, drafted, table, i)]
    if shifted:
        return start + f"your rows are off by {abs(shifted[0])}, {'too late' if shifted[0] > 0 else 'too early'}"
    return start + f"you got {[round(x, 3) for x in got.tolist()]}, which no run of rows explains"


def _shifted(got: Tensor, fed: list[int], drafted: list[int], table: Tensor, shift: int) -> bool:
    first = len(fed) - len(drafted) - 1 + shift
    if first < 0 or first + len(drafted) > len(fed):
        return False
    return torch.allclose(got.double(), table[fed[first : first + len(drafted)], drafted], rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_drafted", [3, 1])
def test_rows_of_a_cached_pass(learner, n_drafted):
    """k + 1 tokens were fed: each draft is judged by the row in front of its own, the last row judges none."""
    fed = random.Random(n_drafted).sample(range(20), n_drafted + 1)
    table = target_table(20, seed=n_drafted)
    wrong = judge(learner.verifying_probs(table[fed], fed[1:]), fed, n_drafted, table)
    assert not wrong, wrong


@pytest.mark.whole
@pytest.mark.parametrize(("n_prefix", "n_drafted"), [(3, 3), (9, 4)])
def test_rows_of_the_prompt_in_front(learner, n_prefix, n_drafted):
    """Without a cache the prompt's rows stand in front of the ones that count."""
    fed = random.Random(n_prefix).sample(range(20), n_prefix + n_drafted)
    table = target_table(20, seed=n_prefix)
    wrong = judge(learner.verifying_probs(table[fed], fed[n_prefix:]), fed, n_drafted, table)
    assert not wrong, wrong


@pytest.mark.parametrize("n_rows", [1, 5])
def test_nothing_drafted(learner, n_rows):
    """k = 0: no draft is judged, and the result is an empty tensor."""
    got = learner.verifying_probs(target_table(n_rows, seed=0), [])
    assert isinstance(got, Tensor), f"no drafts: an empty tensor, you got {got!r}"
    assert got.shape == (0,), f"no drafts: a tensor of shape (0,), you got shape {tuple(got.shape)}"
