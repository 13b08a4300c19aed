"""A head proposes for a padded target what it proposes for the target that it was trained for."""

import pytest
import torch

from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.files import read_head, write_head
from speclab.models.cached import CachedModel
from speclab.models.padded.padding import pad_to
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.heads import tiny_head
from tests.tiny_models import VOCAB, tiny

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
}


@pytest.fixture(scope="module")
def small():
    return tiny("llama", dtype=torch.float64)


@pytest.fixture(scope="module")
def wide(small):
    return pad_to(small, SHAPE, torch.device("cpu"), torch.float64)


@pytest.fixture
def folder(tmp_path):
    write_head(tmp_path / "head", tiny_head(), "tiny", ["LlamaForCausalLM"], 4)
    return str(tmp_path / "head")


def proposals(model, head, how: Sampling) -> list[list[int]]:
    """And that the text is the baseline's where it is greedy."""
    target, kept = CachedModel(model), []
    target.hidden_layers = head.config.layers

    class Kept(FeatureDrafter):
        def propose(self, k, uniforms):
            draft = super().propose(k, uniforms)
            kept.append(draft.tokens[0].tolist())
            return draft

    rounds = list(speculative_rounds(target, Kept(head), PROMPT, 3, 30, how))
    if how.greedy:
        assert tokens_of(rounds) == plain_text(CachedModel(model), PROMPT, 30)
    return kept


@pytest.mark.parametrize("how", [Sampling(), Sampling(0.8)])
def test_it_proposes_the_same(small, wide, folder, how):
    expected = proposals(small, read_head(folder, small).head, how)
    saved = read_head(folder, wide, own_width=32)
    assert proposals(wide, saved.head, how) == expected
    assert len(expected) > 8
    assert saved.head.config.block.hidden_size == 32


def test_a_head_that_normalises_the_states_does_not_read_a_padded_target(wide, tmp_path):
    write_head(tmp_path / "head", tiny_head(fc_norm=True), "tiny", ["LlamaForCausalLM"], 4)
    with pytest.raises(UsageProblem, match="a head like the lab's own; give feature"):
        read_head(str(tmp_path / "head"), wide, own_width=32)


def test_an_unpadded_target_must_have_the_heads_width(wide, folder):
    with pytest.raises(UsageProblem, match="reads states of width 32"):
        read_head(folder, wide)


def test_a_head_of_another_width_than_what_was_padded(wide, tmp_path):
    write_head(tmp_path / "head", tiny_head(target_hidden=48), "tiny", ["LlamaForCausalLM"], 4)
    with pytest.raises(UsageProblem, match="reads states of width 48 and the target's are 32 wide"):
        read_head(str(tmp_path / "head"), wide, own_width=32)
