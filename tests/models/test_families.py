"""A dozen families of models that differ in what decoding depends on."""

import pytest
import torch

from tests import one_family, tiny_families
from tests.one_family import BOTH, BROKEN, CANNOT, EAGER, REFUSED

# family -> its outcome and words of its reason
COVERING = {
    "llama": (BOTH, ""),
    "gpt2": (BOTH, ""),  # learned positions
    "falcon": (EAGER, "does not know"),  # attention beside the MLP, one head of keys for all
    "mixtral": (EAGER, "does not know"),  # a mixture of experts
    "deepseek_v3": (EAGER, "does not know"),  # latent attention
    "gemma3_text": (BOTH, ""),  # sliding windows among full layers
    "llama4_text": (EAGER, "does not know"),
    "bloom": (EAGER, "does not know"),  # ALiBi
    "recurrent_gemma": (REFUSED, "cannot be rolled back"),  # the state is no part of its cache
    "rwkv": (REFUSED, "ignores its cache"),
    "openai-gpt": (REFUSED, "ignores its cache"),  # has none
    "bert": (REFUSED, "attends to later tokens"),  # an encoder
    "gemma4_assistant": (CANNOT, ""),  # the draft head of another model
}

# Of those that are decoded.
NO_TREES = {"llama4_text", "bloom"}
NO_BATCHES = NO_TREES


# Of each kind of cache, and of each reason for a refusal, the family that is examined fastest.
OFTEN = {"gpt2", "bloom", "llama4_text", "recurrent_gemma", "rwkv", "bert", "gemma4_assistant"}


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=[] if one in OFTEN else pytest.mark.full) for one in COVERING]
)
def test_outcome(family):
    outcome, words = COVERING[family]
    row = one_family.examine(family)
    assert row.outcome == outcome, row
    assert words in row.reason
    if outcome in (BOTH, EAGER):
        assert row.accepted > 0
        assert row.rejected > 0
        assert (row.no_trees == "") == (family not in NO_TREES)
        assert (row.no_batches == "") == (family not in NO_BATCHES)


def test_a_wrong_text_is_broken(monkeypatch):
    monkeypatch.setattr(one_family, "library_text", lambda model, prompt: [1] * one_family.N_TOKENS)
    row = one_family.examine("gpt2")
    assert row.outcome == BROKEN
    assert "eager engine, prompt of 6 tokens, no drafts" in row.reason


def test_building_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    one, other = tiny_families.tiny("llama"), tiny_families.tiny("llama")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
