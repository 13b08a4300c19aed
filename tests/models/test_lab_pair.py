"""The committed pair: it is small, of one tokenizer, and trained as its card says."""

import json

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from draft_models import ModelDrafter
from speclab.core.counts import Counts
from speclab.core.rounds import tokens_of
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds


def test_size_and_card():
    """Head counts divisible by 4, room for 4,096 positions, bfloat16 on disk; losses as the card says."""
    sizes = [f.stat().st_size for f in loading.LAB_PAIR.rglob("*") if f.is_file()]
    assert sum(sizes) < 48e6
    assert max(sizes) < 15e6
    loading.check_same_tokenizer(*map(AutoTokenizer.from_pretrained, loading.LAB.values()), "target", "draft")
    for config in map(AutoConfig.from_pretrained, loading.LAB.values()):
        assert config.num_attention_heads % 4 == config.num_key_value_heads % 4 == 0
        assert config.max_position_embeddings >= 4096
        assert config.dtype == torch.bfloat16
    facts = json.loads((loading.LAB_PAIR / "training.json").read_text())
    assert facts["held_out_loss"]["target"] < facts["held_out_loss"]["draft"] - 0.2
    assert facts["corpus"]["held_out"]
    assert f"{facts['held_out_loss']['target']:.2f}" in (loading.LAB_PAIR / "README.md").read_text()


def test_speculation_with_the_pair_is_exact_and_its_draft_is_one():
    """On a prompt of code: the baseline's text, and the draft is right often enough, and not always."""
    target, draft = (
        CachedModel(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
        for folder in loading.LAB.values()
    )
    ids = torch.tensor([AutoTokenizer.from_pretrained(loading.LAB_TARGET)(prompts.standard()[0][1]).input_ids])
    rounds = list(speculative_rounds(target, ModelDrafter(draft), ids, 4, 48))
    counts = Counts()
    for round_ in rounds:
        counts.add(round_)
    assert tokens_of(rounds) == plain_text(target, ids, 48)
    assert counts.acceptance_rate > 0.3
    assert counts.n_rejected > 0
