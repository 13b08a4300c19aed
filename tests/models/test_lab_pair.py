"""The committed pair: it is small, of one tokenizer, and trained as its card says."""

import json

import torch
from transformers import AutoConfig, AutoTokenizer

from speclab.models import loading
from speclab.system.files import ROOT


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


def test_the_page_of_curves_has_the_last_scores_of_the_block_head():
    about = json.loads((loading.LAB_PAIR / "block" / "training.json").read_text())
    scores = about["scores"]["all prompts"]
    shares = [f"{share:.3f}".removeprefix("0") for share in scores["by_position"]]
    row = ["block", f"{about['steps']:,} more", *shares, f"{scores['tokens_per_round']['7']:.2f}"]
    page = (ROOT / "docs" / "acceptance-curves.md").read_text("utf-8")
    assert f"| {' | '.join(row)} |" in page
    assert f"| block | {about['init']['steps']:,} steps |" in page
