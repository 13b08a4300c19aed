"""Block heads in files: what is written comes back, published shapes are read, and what is wrong is one line."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from speclab.drafts.heads import files
from speclab.drafts.heads.files import weights_of
from speclab.extensions.blocks.block_drafter import BlockDrafter
from speclab.extensions.blocks.files import config_from, read_block
from speclab.extensions.blocks.recipe import write_block
from speclab.extensions.blocks.tests.block_heads import tiny_block_head
from speclab.system.files import ROOT
from tests.drafts.test_head_files import (
    DECODER,
    IDS,
    MISSING,
    check_lent,
    check_weights,
    edited,
    entries,
    proposals,
    refused,
)
from tests.tiny_models import VOCAB, tiny


@pytest.fixture
def target():
    return tiny("llama")


@pytest.fixture
def folder(target, tmp_path):
    return saved(tmp_path / "head", tiny_block_head(target, markov_rank=3))


def saved(folder, head, ids=None):
    write_block(folder, head, "some/target", ["LlamaForCausalLM"], ids)
    return folder


SHAPES = [{"layers": 1}, {"markov_rank": 3, "from_anchor": False}, {"from_anchor": False, "slots": 9}]


@pytest.mark.parametrize("options", SHAPES)
def test_what_is_written_comes_back(target, tmp_path, options):
    head = tiny_block_head(target, **options)
    folder = saved(tmp_path / "head", head)
    kind = "dspark" if "markov_rank" in options else "dflash"
    read = read_block(edited(folder, speculators_model_type=kind), target)
    assert read.ids is None
    changed = {"block": None}
    assert vars(read.head.config) | changed == vars(head.config) | changed
    weights = read.head.state_dict()
    assert weights.keys() == head.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in head.state_dict().items())
    assert proposals(target, BlockDrafter(read.head)) == proposals(target, BlockDrafter(head))
    config = entries(tmp_path / "head")
    assert config["aux_hidden_state_layer_ids"] == [1, 2], "counted from 1 there"
    assert config["block_size"] - (not config["sample_from_anchor"]) == head.config.longest
    (method,) = config["speculators_config"]["proposal_methods"]
    assert method["speculative_tokens"] == head.config.longest
    assert not any("embed" in name or "lm_head" in name for name in load_file(tmp_path / "head" / "model.safetensors"))


@pytest.mark.parametrize("published", [False, True])
def test_a_head_of_a_part_of_the_ids_comes_back(target, tmp_path, published):
    """Embedding and output layer are the target's, also where a published file has some, and parts of its training. No
    word about the slots means that the anchor predicts none."""
    head = tiny_block_head(target, markov_rank=3, draft_vocab=12, from_anchor=not published)
    head.output = weights_of(target)[1][IDS]
    folder = saved(tmp_path / "head", head, None if published else IDS)
    if published:
        edited(folder, sample_from_anchor=None)
        more = {"d2t": IDS - torch.arange(12), "lm_head.weight": torch.zeros(12, 32)}
        more |= {"embed_tokens.weight": torch.zeros(VOCAB, 32), "verifier_norm.weight": torch.ones(32)}
        more |= {"confidence_head.proj.weight": torch.ones(1, 35)}
        save_file({**load_file(folder / "model.safetensors"), **more}, folder / "model.safetensors")
    read = read_block(str(folder), target)
    assert torch.equal(read.ids, IDS)
    assert proposals(target, BlockDrafter(*read)) == proposals(target, BlockDrafter(head, IDS))


def test_the_labs_own_head_is_read():
    config_from(files.read_config(ROOT / "models" / "lab-pair" / "block" / "config.json"), 12)


WINDOW = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9, "use_sliding_window": True}
CONFIGS = [
    ((), {"speculators_model_type": "eagle3"}, "'eagle3'; the draft block reads dflash and dspark"),
    ((), {"speculators_model_type": "dflash"}, "markov_head.markov_w1.weight is ("),
    ((), {"mask_token_id": None}, f"mask_token_id is None, {MISSING} int"),
    ((), {"causal": True}, "its slots do not attend to all of the text"),
    ((), {"sample_from_anchor": 0}, f"sample_from_anchor is 0, {MISSING} bool"),
    ((), {"markov_head_type": "gated"}, "markov_head_type is 'gated'; it should be 'vanilla'"),
    ((), {"projector_type": "domino"}, "projector_type is 'domino'"),
    ((), {"shift_label": True}, "shift_label is True; it should be False"),
    ((), {"aux_hidden_state_layer_ids": [1, 3]}, "it reads states [1, 3] of a target with 2 layers"),
    ((), {"mask_token_id": VOCAB}, "mask_token_id is 48"),
    ((), {"block_size": 1 << 20}, "block_size is 1048576"),
    ((), {"block_size": 1, "sample_from_anchor": False}, "block_size is 1"),
    ((), {"markov_rank": 4}, "markov_w1.weight is ("),
    ((), {"draft_vocab_size": 12}, "d2t is missing"),
    ((DECODER,), {"num_hidden_layers": 1 << 20}, "num_hidden_layers is 1048576"),
    ((DECODER,), {"model_type": "llama"}, "is not layers of qwen3"),
    ((DECODER,), {"vocab_size": 49}, "works with 49 embeddings of width 32 and the target has 48"),
    ((DECODER,), WINDOW, "its slots do not attend to all of the text"),
]


@pytest.mark.parametrize(("path", "changes", "message"), CONFIGS)
def test_a_config_that_does_not_fit_is_one_line(target, folder, path, changes, message):
    assert message in refused(read_block, edited(folder, *path, **changes), target)


def test_weights_are_looked_at_before_they_are_read(target, folder, monkeypatch):
    check_weights(folder, lambda: read_block(str(folder), target), monkeypatch)


def test_what_is_the_targets_own_does_not_learn(target, tmp_path):
    check_lent("block", write_block, target, tmp_path, set(), lambda head: (head.table, head.output))
