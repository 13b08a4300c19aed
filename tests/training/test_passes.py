"""What the target computes of rows that come again is kept, within its limit, and is the same as a pass of its own."""

import pytest
import torch
from torch import Tensor

from speclab.drafts.heads.rollout import target_pass
from speclab.lab.training.recipes import MOST_LIKELY
from speclab.system.errors import EnvironmentProblem
from tests.tiny_models import VOCAB, tiny
from training import passes
from training.passes import Kept, reading
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
    read = Kept(target, LAYERS, tmp_path, 2 * size + size // 2)
    for _ in range(2):
        check(read, target, some)
    assert counted == [4, 2]
    assert (len(list(tmp_path.iterdir())), read.room) == (2, size // 2)


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
