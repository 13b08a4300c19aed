"""Drafts unlike the target: seeded, of the same shape, worse in the way they say; and nobody's dice are touched."""

import pytest
import torch

from speclab.extensions.sweeps.__main__ import noisy, random_like
from tests.conftest import tiny_llama
from tests.tiny_models import tiny


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_noise_is_a_share_of_each_matrix_spread_and_goes_one_way():
    source = tiny_llama(0)
    with torch.no_grad():  # matrices of very different spread, and a norm that has some
        source.model.layers[0].mlp.up_proj.weight.mul_(100)
        source.model.norm.weight.copy_(torch.linspace(0.5, 2, 64))
        before = [w.clone() for w in source.parameters()]
    assert equal(source, noisy(source, 0, seed=1))
    near, far = noisy(source, 0.25, seed=3), noisy(source, 0.5, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(before, source.parameters(), strict=True)), "the source stays"
    for weight, moved, further in zip(source.parameters(), near.parameters(), far.parameters(), strict=True):
        if weight.ndim < 2:
            assert torch.equal(weight, moved)
        else:  # at least 2,048 numbers: a standard deviation is known to 1.6 %, six of these errors are allowed
            assert (moved - weight).std().item() == pytest.approx(0.25 * weight.std().item(), rel=0.1)
            assert torch.allclose(2 * (moved - weight), further - weight)


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.bfloat16), ("gemma3_window", torch.float32)])
@pytest.mark.parametrize("make", [lambda source, seed: noisy(source, 0.1, seed), random_like])
def test_any_model_gets_its_likes(make, family, dtype):
    source, state = tiny(family, dtype=dtype).train(), torch.get_rng_state()
    made = make(source, 9)
    assert torch.equal(torch.get_rng_state(), state)
    assert equal(made, make(source, 9))
    assert not equal(made, make(source, 8))
    assert not equal(made, source)
    assert type(made) is type(source)
    assert made.config.to_dict() == source.config.to_dict()
    assert [(w.shape, w.dtype) for w in made.parameters()] == [(w.shape, w.dtype) for w in source.parameters()]
    assert not made.training
    assert made(input_ids=torch.arange(8)[None]).logits.isfinite().all()
    assert source.training, "the source is left as it was"
    tied = make(tiny("llama", tie_word_embeddings=True), 0)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
