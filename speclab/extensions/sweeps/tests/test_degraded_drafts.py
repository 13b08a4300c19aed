"""Drafts unlike the target: seeded, of the same shape, worse in the way they say; and nobody's dice are touched."""

import math

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from speclab.extensions.sweeps import degraded_drafts
from speclab.lab.noisy import noisy
from speclab.system.errors import UsageProblem
from tests.conftest import tiny_llama
from tests.tiny_models import tiny
from training import corpus, steps
from training.corpus import Document
from training.pair import train_tokenizer
from training.steps import next_token_loss

TEXT = "".join(f"def add_{i % 7}(first, second):\n    return first + second\n\n\n" for i in range(400))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(iter([TEXT]))


@pytest.fixture
def library(monkeypatch):
    """Instead of the standard library: a few documents, one of them held out."""
    documents = [Document(f"module_{i}.py", TEXT) for i in range(3)] + [Document("secret.py", "held out " * 9000)]
    monkeypatch.setattr(Document, "held_out", property(lambda d: d.name == "secret.py"))
    monkeypatch.setattr(corpus, "standard_library", lambda: iter(documents))


@pytest.fixture
def ticks(monkeypatch):
    """A clock that moves a second at each look, so that a number of seconds is a number of steps."""
    looks = iter(range(10_000))
    monkeypatch.setattr(steps.time, "monotonic", lambda: float(next(looks)))


def weights(model) -> list[torch.Tensor]:
    return list(model.parameters())


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_no_noise_is_the_model_itself(dtype):
    source = tiny_llama(0, dtype=dtype)
    copied = noisy(source, 0, seed=1)
    assert equal(source, copied)
    assert copied is not source
    assert weights(copied)[0].data_ptr() != weights(source)[0].data_ptr()


def test_noise_is_a_share_of_each_matrix_spread():
    source = tiny_llama(0)
    with torch.no_grad():  # matrices of very different spread, and a norm that has some
        source.model.layers[0].mlp.up_proj.weight.mul_(100)
        source.model.norm.weight.copy_(torch.linspace(0.5, 2, 64))
        before = [w.clone() for w in weights(source)]
    copied = noisy(source, 0.25, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(source), strict=True)), "the source stays as it is"
    for weight, moved in zip(weights(source), weights(copied), strict=True):
        if weight.ndim < 2:
            assert torch.equal(weight, moved)
        else:  # at least 2,048 numbers: a standard deviation is known to 1.6 %, six of these errors are allowed
            assert (moved - weight).std().item() == pytest.approx(0.25 * weight.std().item(), rel=0.1)


def test_noise_is_seeded_and_goes_one_way():
    source = tiny_llama(0)
    assert equal(noisy(source, 0.2, 5), noisy(source, 0.2, 5))
    assert not equal(noisy(source, 0.2, 5), noisy(source, 0.2, 6))
    near, far = (weights(noisy(source, amount, 5))[0] - weights(source)[0] for amount in (0.1, 0.4))
    assert torch.allclose(4 * near, far)
    with pytest.raises(ValueError, match="negative"):
        noisy(source, -0.1, 0)


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.bfloat16), ("gemma3_window", torch.float32)])
def test_any_model_gets_its_likes(family, dtype):
    source = tiny(family, dtype=dtype).train()
    ids = torch.arange(8)[None]
    for made in (
        noisy(source, 0.1, 0),
        degraded_drafts.random_like(source, 9),
    ):  # seed 0 would be the source again
        assert type(made) is type(source)
        assert made.config.to_dict() == source.config.to_dict()
        assert {w.dtype for w in weights(made)} == {dtype}
        assert [w.shape for w in weights(made)] == [w.shape for w in weights(source)]
        assert made.device == source.device
        assert not made.training
        assert made.config._attn_implementation == source.config._attn_implementation
        assert not equal(made, source)
        assert made(input_ids=ids).logits.isfinite().all()
    assert source.training, "the source is left as it was"


def test_tied_weights_stay_tied():
    source = tiny("llama", tie_word_embeddings=True)
    for made in (noisy(source, 0.3, 0), degraded_drafts.random_like(source, 0)):
        assert made.lm_head.weight is made.model.embed_tokens.weight


def test_random_is_seeded_and_initialised():
    source = tiny_llama(0, dtype=torch.float32)
    assert equal(degraded_drafts.random_like(source, 1), degraded_drafts.random_like(source, 1))
    assert not equal(degraded_drafts.random_like(source, 1), degraded_drafts.random_like(source, 2))
    fresh = degraded_drafts.random_like(source, 1)
    # The configuration's own spread, 0.15, known to 1.1 % from 4,096 numbers.
    assert fresh.model.layers[0].self_attn.q_proj.weight.std().item() == pytest.approx(0.15, rel=0.08)
    assert torch.equal(fresh.model.norm.weight, torch.ones(64)), "norms begin at one"


def test_training_lowers_the_loss(tokenizer, library, ticks):
    """The clock is looked at to begin with, and once a step: 12 seconds are 12 steps."""
    source = tiny_llama(0, n_layers=1, vocab_size=len(tokenizer), dtype=torch.bfloat16).requires_grad_(False)
    draft, facts = degraded_drafts.trained_on_the_spot(source, tokenizer, 12, seed=0)
    assert facts.steps == 12
    assert facts.tokens == 12 * degraded_drafts.BATCH_TOKENS
    assert facts.first_loss == pytest.approx(math.log(len(tokenizer)), abs=1), "fresh weights know nothing"
    assert facts.last_loss < facts.first_loss - 0.5
    assert draft.dtype == torch.bfloat16
    assert draft.device == source.device
    assert not draft.training
    assert not any(w.requires_grad for w in weights(draft))
    text = torch.tensor([tokenizer(TEXT).input_ids[:300]])
    with torch.no_grad():
        fresh, trained = (next_token_loss(m.float(), text) for m in (degraded_drafts.random_like(source, 0), draft))
    assert trained < fresh - 0.5


def test_training_stops_by_the_clock_and_is_a_function_of_its_seed(tokenizer, library, ticks):
    source = tiny_llama(0, n_layers=1, vocab_size=len(tokenizer), dtype=torch.float32)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    drafts = []
    for seconds, seed, n_steps in ((3, 0, 3), (3, 0, 3), (3, 1, 3), (1e-9, 0, 1)):
        draft, facts = degraded_drafts.trained_on_the_spot(source, tokenizer, seconds, seed)
        assert facts.steps == n_steps, "one step is always made"
        drafts.append(draft)
    assert equal(drafts[0], drafts[1])
    assert not equal(drafts[0], drafts[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_foreign_tokenizer_is_refused(tokenizer):
    source = tiny_llama(0, vocab_size=len(tokenizer) - 1)
    with pytest.raises(UsageProblem, match=f"ids up to {len(tokenizer) - 1}.*give a draft model"):
        degraded_drafts.trained_on_the_spot(source, tokenizer, 1, 0)
