"""What the target computes of rows that come again is kept, within its limit, and is the same as a pass of its own."""

import pytest
import torch
from torch import Tensor

from speclab.drafts.heads.rollout import target_pass
from tests.tiny_models import VOCAB, tiny
from training import passes
from training.passes import Kept, reading
from training.texts import batch

LAYERS = (0, 1)
GIB = 2.0**-10
BITS_OF_BFLOAT16 = 8


def rows(n: int, seed: int = 0, length: int = 20) -> Tensor:
    return torch.randint(0, VOCAB, (n, length), generator=torch.Generator().manual_seed(seed))


def close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all((a - b).abs().max() < 2.0 ** (2 - BITS_OF_BFLOAT16) * b.abs().max() for a, b in pairs)


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """The rows of each pass that the target makes."""
    made: list[int] = []

    def count(target, tokens, layers):
        made.append(len(tokens))
        return target_pass(target, tokens, layers)

    monkeypatch.setattr(passes, "target_pass", count)
    return made


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_row_is_computed_once_and_has_the_same_values_each_time(family, counted):
    target = tiny(family, dtype=torch.float32)
    read = reading(target, LAYERS, GIB)
    some = rows(4)
    first, again = read(some), read(some.flip(0))
    assert counted == [4]
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(first, again, strict=True))
    assert close(first, target_pass(target, some, LAYERS))
    mixed = torch.stack([some[2], rows(1, 1)[0], some[0]])
    assert close(read(mixed), target_pass(target, mixed, LAYERS))
    assert counted == [4, 1]


def test_no_more_than_the_limit_is_kept(counted):
    target = tiny("llama", dtype=torch.float32)
    some = rows(4)
    size = 2 * some.shape[1] * 3 * target.config.hidden_size  # bytes of a row: two layers and the output layer's input
    read = Kept(target, LAYERS, 2 * size + size // 2)
    for _ in range(2):
        assert close(read(some), target_pass(target, some, LAYERS))
    assert counted == [4, 2]
    assert (len(read.rows), read.free) == (2, size // 2)


def test_nothing_is_kept_for_a_target_that_caps_its_logits(counted):
    """Its logits are not what the output layer gives."""
    target = tiny("gemma3_window", dtype=torch.float32, final_logit_softcapping=30.0)
    read, some = reading(target, LAYERS, GIB), rows(2)
    for _ in range(2):
        assert torch.equal(read(some)[1], target_pass(target, some, LAYERS)[1])
    assert not isinstance(read, Kept)
    assert isinstance(reading(tiny("llama"), LAYERS, GIB), Kept)
    assert not isinstance(reading(tiny("llama"), LAYERS, 0), Kept)


def test_pieces_of_text_come_again():
    """Of text with four pieces of 256 tokens, a training sees these four."""
    stream = torch.arange(1100, dtype=torch.int32)
    seen = {int(row[0]) for step in range(100) for row in batch(stream, {}, step, 0, 512) if len(row) == 256}
    assert seen == {0, 256, 512, 768}
