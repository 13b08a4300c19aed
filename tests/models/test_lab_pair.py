"""The committed pair: it loads like any other model, it is small, it is trained, and speculation with it is exact."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.counts import Counts
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.system.paths import ROOT
from tests.decoding import plain_text, speculative_rounds


@pytest.fixture(scope="module")
def pair():
    tokenizer = AutoTokenizer.from_pretrained(loading.LAB_TARGET)
    models = (
        AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (loading.LAB_TARGET, loading.LAB_DRAFT)
    )
    return (tokenizer, *(CachedModel(m) for m in models))


def test_size_and_shape(pair):
    """Head counts divisible by 4, room for 4,096 positions, one tokenizer, bfloat16 on disk."""
    sizes = [f.stat().st_size for f in loading.LAB_PAIR.rglob("*") if f.is_file()]
    assert sum(sizes) < 48e6
    assert max(sizes) < 15e6
    tokenizer, *models = pair
    loading.check_same_tokenizer(tokenizer, AutoTokenizer.from_pretrained(loading.LAB_DRAFT), "target", "draft")
    for model, folder in zip(models, (loading.LAB_TARGET, loading.LAB_DRAFT), strict=True):
        config = model.model.config
        assert config.num_attention_heads % 4 == config.num_key_value_heads % 4 == 0
        assert config.max_position_embeddings >= 4096
        assert json.loads(Path(folder, "config.json").read_text())["dtype"] == "bfloat16"


def test_card_states_what_training_measured():
    facts = json.loads((loading.LAB_PAIR / "training.json").read_text())
    assert facts["held_out_loss"]["target"] < facts["held_out_loss"]["draft"] - 0.2
    assert len(facts["corpus"]["sha256"]) == 64
    assert facts["corpus"]["held_out"]
    text = (loading.LAB_PAIR / "README.md").read_text()
    assert f"{facts['held_out_loss']['target']:.2f}" in text


@pytest.mark.parametrize("kind", ["code", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("prose", "copy"))])
def test_speculation_on_real_text_is_exact_and_accepts(pair, kind):
    """One prompt of each kind: identical text, and the draft is right often enough to be a draft."""
    tokenizer, target, draft = pair
    text = next(text for k, text in prompts.standard() if k == kind)
    ids = torch.tensor([tokenizer(text).input_ids])
    expected = plain_text(target, ids, 48)
    for drafter in (ModelDrafter(draft), NgramDrafter()):
        counts, output = Counts(), []
        for round_ in speculative_rounds(target, drafter, ids, 4, 48):
            counts.add(round_)
            output += round_.tokens
        assert output == expected
        if isinstance(drafter, ModelDrafter):
            assert counts.acceptance_rate > 0.3
            assert counts.n_rejected > 0


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_the_page_of_curves_has_the_last_scores_of_each_head(kind):
    about = json.loads((loading.LAB_PAIR / kind / "training.json").read_text())
    scores = about["scores"]["all prompts"]
    shares = [f"{share:.3f}".removeprefix("0") for share in scores["by_position"]]
    row = [kind, f"{about['steps']:,} more", *shares, f"{scores['tokens_per_round']['7']:.2f}"]
    page = (ROOT / "docs" / "acceptance-curves.md").read_text("utf-8")
    assert f"| {' | '.join(row)} |" in page
    assert f"| {kind} | {about['init']['steps']:,} steps |" in page
