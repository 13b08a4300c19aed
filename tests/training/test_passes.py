"""What the target computes of rows that come again is kept, within its limit, and is the same as a pass of its own."""

import pytest
import torch
from torch import Tensor

from speclab.drafts.heads.feature import target_pass
from tests.tiny_models import VOCAB, tiny
from training import passes, steps
from training.passes import Passes
from training.recipes import MOST_LIKELY

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


@pytest.mark.parametrize("n_kept", [0, 2.5, 9])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_window"])
def test_a_row_is_computed_once_as_long_as_there_is_room(family, n_kept, monkeypatch):
    """Of rows that come twice in a batch and again, with room for none, some and all of them."""
    caps = {"final_logit_softcapping": 30.0} if family == "gemma3_window" else {}
    target, some, made = tiny(family, dtype=torch.float32, **caps), rows(5)[[0, 1, 2, 1, 3, 4, 0]], []
    size = 20 * (2 * len(LAYERS) * target.config.hidden_size + 6 * VOCAB)  # bytes of a row

    def count(target, tokens, layers):
        made.append(len(tokens))
        return target_pass(target, tokens, layers)

    monkeypatch.setattr(passes, "target_pass", count)
    monkeypatch.setattr(passes, "free_memory", lambda device: int(3 * n_kept * size) + 3)
    read = Passes(target, LAYERS)
    for _ in range(2):
        check(read, target, some)
    kept = min(5, int(n_kept))
    assert made == [5] + [5 - kept] * (kept < 5), "a row that comes twice is read once"
    assert len(read.rows) == kept


def test_states_are_scaled_and_a_draft_s_ids_take_the_place_of_the_targets():
    """Also the last id, and one that comes from far behind."""
    target, some = tiny("llama", dtype=torch.float32), rows(2)
    own, scale = torch.tensor([3, 7, VOCAB - 1]), torch.rand(len(LAYERS) * target.config.hidden_size)
    states, in_own = Passes(target, LAYERS, own, scale)(some)
    plain, in_targets = Passes(target, LAYERS)(some)
    assert torch.equal(states, plain * scale)
    assert torch.equal(in_own.probs, in_targets.probs)
    known = in_own.ids >= 0
    assert known.sum() == len(own) * some.numel(), "each of its ids is once in each distribution of a tiny target"
    assert torch.equal(own[in_own.ids[known]], in_targets.ids[known])


def test_a_gpu_does_as_much_at_once_as_its_memory_holds(monkeypatch):
    sizes = [0, 10**3, 6 * 10**6, 10**12]
    cuda, found = torch.device("cuda"), []
    for free in sizes:
        monkeypatch.setattr(steps, "free_memory", lambda device, free=free: free)
        found.append(steps.at_once(cuda, 8, 4096, 10**4))
        assert steps.at_once(torch.device("cpu"), 8, 4096, 10**4) == 8
    assert found == [1, 1, 100, 4096]
