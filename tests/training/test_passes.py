"""What the target computes of rows that come again is kept, within its limit, and is the same as a pass of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from speclab.drafts.heads.rollout import target_pass
from tests.tiny_models import VOCAB, tiny
from training import passes
from training.heads import FEW_TOKENS, step_tokens
from training.passes import Passes, rows_at_once
from training.recipes import MOST_LIKELY
from training.room import Room
from training.texts import ANSWER, side_by_side

LAYERS = (0, 1)
BITS_OF_BFLOAT16 = 8


def rows(n: int, seed: int = 0, length: int = 20) -> Tensor:
    return torch.randint(0, VOCAB, (n, length), generator=torch.Generator().manual_seed(seed))


def check(read, target, some: Tensor) -> None:
    """States as a pass gives them, and the whole distribution, for a tiny vocabulary."""
    (states, found), (hidden, logits) = read(some), target_pass(target, some, LAYERS)
    assert (states - hidden).abs().max() < 2.0 ** (2 - BITS_OF_BFLOAT16) * hidden.abs().max()
    probs = torch.zeros_like(logits).scatter(-1, found.ids, found.probs.to(logits.dtype))
    assert VOCAB <= MOST_LIKELY
    assert torch.allclose(probs, logits.softmax(-1), atol=1e-3)
    assert torch.equal(found.ids[..., 0], logits.argmax(-1)), "the most probable one comes first"


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """The rows of each pass that the target makes."""
    made: list[int] = []

    def count(target, tokens, layers):
        made.append(len(tokens))
        return target_pass(target, tokens, layers)

    monkeypatch.setattr(passes, "target_pass", count)
    return made


def room_for(n_rows: float, target) -> Room:
    """Of which a third holds so many rows."""
    size = 20 * (2 * len(LAYERS) * target.config.hidden_size + 6 * VOCAB)  # bytes of a row
    return Room("cpu", int(3 * n_rows * size) + 3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_window"])
def test_a_row_is_computed_once(family, counted):
    caps = {"final_logit_softcapping": 30.0} if family == "gemma3_window" else {}
    target = tiny(family, dtype=torch.float32, **caps)
    read = Passes(target, LAYERS, room_for(9, target))
    some = rows(4)
    (first, likely), (again, likely_again) = read(some), read(some.flip(0))
    assert counted == [4]
    assert torch.equal(first, again.flip(0))
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(likely, likely_again, strict=True))
    check(read, target, torch.stack([some[2], rows(1, 1)[0], some[0]]))
    assert counted == [4, 1]


@pytest.mark.parametrize("n_kept", [0, 2.5, 9])
def test_no_more_is_kept_than_there_is_room_for(n_kept, counted):
    """Of rows that come twice in a batch and again, with room for none, some and all of them."""
    target, some = tiny("llama", dtype=torch.float32), rows(5)[[0, 1, 2, 1, 3, 4, 0]]
    read = Passes(target, LAYERS, room_for(n_kept, target))
    for _ in range(2):
        check(read, target, some)
    kept = min(5, int(n_kept))
    assert counted == [5] + [5 - kept] * (kept < 5), "a row that comes twice is read once"
    assert len(read.rows) == kept


def test_states_are_scaled_and_a_draft_s_ids_take_the_place_of_the_targets():
    """Also the last id, and one that comes from far behind."""
    target, some = tiny("llama", dtype=torch.float32), rows(2)
    own, scale = torch.tensor([3, 7, VOCAB - 1]), torch.rand(len(LAYERS) * target.config.hidden_size)
    states, in_own = Passes(target, LAYERS, Room(), own, scale)(some)
    plain, in_targets = Passes(target, LAYERS, Room())(some)
    assert torch.equal(states, plain * scale)
    assert torch.equal(in_own.probs, in_targets.probs)
    known = in_own.ids >= 0
    assert known.sum() == len(own) * some.numel(), "each of its ids is once in each distribution of a tiny target"
    assert torch.equal(own[in_own.ids[known]], in_targets.ids[known])


@given(st.integers(0, 2**38), st.integers(0, 2**38), st.sampled_from([256, 512, 1024]), st.integers(10, 300_000))
def test_more_memory_never_means_fewer_at_once(one, other, length, vocab):
    """Rows of a pass, tokens of a step, texts side by side: at least one, within memory where it holds one."""
    less, more = (Room("cuda", free) for free in sorted((one, other)))
    target = tiny("llama")
    for number in (
        lambda room: rows_at_once(room, length, vocab),
        step_tokens,
        lambda room: side_by_side(room, target, length),
    ):
        assert 1 <= number(less) <= number(more)
        assert number(Room("cpu", one)) == number(Room("cpu", other))
    n, tokens, texts = rows_at_once(more, length, vocab), step_tokens(more), side_by_side(more, target, length)
    assert n == 1 or n * length * vocab * 16 <= more.free / 6
    assert tokens == FEW_TOKENS or tokens * 2**19 <= more.free / 3
    keys_and_values = 2 * 2 * 2 * 8 * (length + ANSWER) * 2  # layers, kinds, heads, their width, tokens, bytes
    assert texts == 1 or texts * (keys_and_values + 5 * VOCAB * 4) <= more.free / 3
