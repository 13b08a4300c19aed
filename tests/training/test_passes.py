"""What the target computes of rows that come again is kept, within its limit, and is the same as a pass of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from speclab.drafts.heads.rollout import target_pass
from speclab.system.errors import EnvironmentProblem
from tests.tiny_models import VOCAB, tiny
from training import passes
from training.heads import FEW_TOKENS, step_tokens
from training.passes import InMemory, Kept, OnDisk, reading, rows_at_once
from training.recipes import MOST_LIKELY
from training.room import Room
from training.texts import ANSWER, side_by_side
from training.work import save_tensors

LAYERS = (0, 1)
GIB = 2.0**-10
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


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_window"])
def test_a_row_is_computed_once_also_by_the_next_training(family, counted, tmp_path):
    caps = {"final_logit_softcapping": 30.0} if family == "gemma3_window" else {}
    target = tiny(family, dtype=torch.float32, **caps)
    read = reading(target, LAYERS, None, tmp_path, GIB)
    some = rows(4)
    (first, likely), (again, likely_again) = read(some), read(some.flip(0))
    assert counted == [4]
    assert torch.equal(first, again.flip(0))
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(likely, likely_again, strict=True))
    check(read, target, some)
    mixed = torch.stack([some[2], rows(1, 1)[0], some[0]])
    check(reading(target, LAYERS, None, tmp_path, GIB), target, mixed)
    assert counted == [4, 1]


def test_states_of_other_layers_are_others(counted, tmp_path):
    target, some = tiny("llama", dtype=torch.float32), rows(2)
    first, _ = reading(target, (0,), None, tmp_path, GIB)(some)
    second, _ = reading(target, (1,), None, tmp_path, GIB)(some)
    assert counted == [2, 2]
    assert not torch.equal(first, second)


def test_no_more_than_the_limit_is_kept(counted, tmp_path):
    target = tiny("llama", dtype=torch.float32)
    some = rows(4)
    size = some.shape[1] * (2 * len(LAYERS) * target.config.hidden_size + 6 * VOCAB)  # bytes of a row
    store = OnDisk(target, LAYERS, tmp_path, (2 * size + size // 2) / 2**30)
    read = Kept(target, LAYERS, store)
    for _ in range(2):
        check(read, target, some)
    assert counted == [4, 2]
    assert (len(list(tmp_path.iterdir())), store.room) == (2, size // 2)


@pytest.mark.parametrize("n_kept", [0, 2.5, 9])
def test_memory_gives_what_the_disk_gives(n_kept, counted, tmp_path):
    """Of rows that come twice in a batch and again, with room for none, some and all of them."""
    target, some = tiny("llama", dtype=torch.float32), rows(5)[[0, 1, 2, 1, 3, 4, 0]]
    size = some.shape[1] * (2 * len(LAYERS) * target.config.hidden_size + 6 * VOCAB)  # bytes of a row
    stores = InMemory(target.device, int(n_kept * size)), OnDisk(target, LAYERS, tmp_path, n_kept * size / 2**30)
    found = []
    for store in stores:
        read = Kept(target, LAYERS, store)
        for batch in (some, some[:4]):
            states, (probs, ids) = read(batch)
            found.append((states, probs, ids))
        found.append((torch.tensor(store.room),))
    assert len(counted) % 2 == 0
    assert counted[: len(counted) // 2] == counted[len(counted) // 2 :]
    assert counted[0] == 5, "a row that comes twice is read once"
    assert len(counted) == 2 * (1 if n_kept == 9 else 2)
    for in_memory, on_disk in zip(found[:3], found[3:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(in_memory, on_disk, strict=True))
    check(Kept(target, LAYERS, stores[0]), target, some)


def test_rows_in_memory_stay_within_the_room():
    target, size = tiny("llama", dtype=torch.float32), 20 * (2 * len(LAYERS) * 32 + 6 * VOCAB)
    store = InMemory(target.device, 3 * size + 1)
    Kept(target, LAYERS, store)(rows(7))
    assert len(store.rows) == 3
    assert store.room == 1


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


def test_a_draft_s_ids_take_the_place_of_the_targets(tmp_path):
    """Also the last one, and one that comes from far behind."""
    target, some = tiny("llama", dtype=torch.float32), rows(2)
    own = torch.tensor([3, 7, VOCAB - 1])
    _, in_own = reading(target, LAYERS, own, tmp_path, 0)(some)
    _, in_targets = reading(target, LAYERS, None, tmp_path, 0)(some)
    assert torch.equal(in_own.probs, in_targets.probs)
    known = in_own.ids >= 0
    assert known.sum() == len(own) * some.numel(), "each of its ids is once in each distribution of a tiny target"
    assert torch.equal(own[in_own.ids[known]], in_targets.ids[known])


DAMAGE = {
    "no list": {"a": torch.ones(2)},
    "states of other rows": [torch.zeros(3, 64).bfloat16(), torch.zeros(3, 4).half(), torch.zeros(3, 4).int()],
    "states of another type": [torch.zeros(20, 64), torch.zeros(20, 4).half(), torch.zeros(20, 4).int()],
    "ids beyond the target's": [
        torch.zeros(20, 64).bfloat16(),
        torch.zeros(20, 4).half(),
        torch.full((20, 4), VOCAB).int(),
    ],
    "fewer ids": [torch.zeros(20, 64).bfloat16(), torch.zeros(20, 4).half(), torch.zeros(20, 3).int()],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_row_in_a_file_that_is_none_is_one_line(damage, tmp_path):
    target, some = tiny("llama", dtype=torch.float32), rows(1)
    read = reading(target, LAYERS, None, tmp_path, GIB)
    read(some)
    (file,) = tmp_path.iterdir()
    save_tensors(file, damage)
    with pytest.raises(EnvironmentProblem, match="cannot go on from"):
        read(some)
