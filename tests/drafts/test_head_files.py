"""Heads in files: what is written comes back, published shapes are read, and what does not fit is one line."""

import json

import pytest
import torch
from decoding import speculative_rounds
from heads import block, prompts, tiny_head
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB, tiny

from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.files import read_head, write_head
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem, UsageProblem


@pytest.fixture
def target():
    return tiny("llama")


def saved(folder, head):
    write_head(folder, head, "some/target", ["LlamaForCausalLM"], 4)
    return folder


def edited(folder, **changes):
    """The same config.json with other entries; None takes one away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def proposals(model, drafter, sampling=None):
    target = CachedModel(model)
    target.hidden_layers = drafter.head.config.layers
    generator = torch.Generator().manual_seed(1)
    return list(speculative_rounds(target, drafter, prompts(1), 3, 20, sampling or Sampling(0.9), generator))


@pytest.mark.parametrize(
    "flags", [{}, {"norm_before_fc": True, "norm_output": True}, {"fc_norm": True, "norm_before_residual": True}]
)
@pytest.mark.parametrize("qwen3", [False, True])
def test_what_is_written_comes_back(target, tmp_path, flags, qwen3):
    head = tiny_head(qwen3=qwen3, **flags)
    read = read_head(str(saved(tmp_path / "head", head)), target)
    assert read.ids is None
    assert read.head.config.layers == (0, 1)
    weights = read.head.state_dict()
    assert weights.keys() == head.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in head.state_dict().items())
    assert proposals(target, FeatureDrafter(read.head)) == proposals(target, FeatureDrafter(head))
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2], "counted from 1 there"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config["transformer_layer_config"]["model_type"] == ("qwen3" if qwen3 else "llama")


def test_a_published_shape_with_fewer_ids_and_the_targets_embedding(target, tmp_path):
    """As heads for large models are: d2t and t2d tables, no embedding, default layers, another width than the rest."""
    folder = saved(tmp_path / "head", tiny_head(draft_vocab=12))
    ids = torch.tensor([1, 2, 5, 7, 11, 12, 20, 21, 30, 40, 41, 47])
    tensors = load_file(folder / "model.safetensors")
    del tensors["embed_tokens.weight"]
    chosen = torch.zeros(VOCAB, dtype=torch.bool)
    chosen[ids] = True
    save_file({**tensors, "d2t": ids - torch.arange(12), "t2d": chosen}, folder / "model.safetensors")
    edited(folder, target_hidden_size=None)
    read = read_head(str(folder), target)
    assert torch.equal(read.ids, ids)
    assert torch.equal(read.head.embed_tokens.weight, target.get_input_embeddings().weight)
    rounds = proposals(target, FeatureDrafter(read.head, read.ids), Sampling())
    assert sum(r.n_drafted for r in rounds) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "medusa"}, "speculators_model_type is 'medusa'; --draft feature reads eagle3"),
        ({"speculators_model_type": None}, "speculators_model_type is None"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, r"it reads states \[1, 3\] of a target with 2 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1]}, r"it reads states \[0, 1\]"),
        ({"draft_vocab_size": 12}, "it proposes 12 of 48 ids and has no d2t table|size mismatch"),
        ({"transformer_layer_config": block(hidden=1 << 20).to_dict()}, "size mismatch|size 1048576"),
        ({"transformer_layer_config": block().to_dict() | {"num_hidden_layers": 2}}, "is not one layer of llama"),
        ({"transformer_layer_config": block().to_dict() | {"model_type": "mamba"}}, "is not one layer of llama"),
        ({"transformer_layer_config": 3}, "config.json"),
        ({"draft_vocab_size": None}, "draft_vocab_size"),
    ],
)
def test_a_config_that_does_not_fit_is_one_line(target, tmp_path, changes, message):
    folder = saved(tmp_path / "head", tiny_head())
    edited(folder, **changes)
    with pytest.raises((EnvironmentProblem, UsageProblem), match=message) as problem:
        read_head(str(folder), target)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500


def test_tables_of_ids_are_checked(target, tmp_path):
    folder = saved(tmp_path / "head", tiny_head(draft_vocab=12))
    tensors = load_file(folder / "model.safetensors")
    for wrong in (
        torch.full((12,), VOCAB),
        torch.arange(12, 0, -1),
        torch.zeros(11, dtype=torch.long),
        torch.zeros(12),
    ):
        save_file({**tensors, "d2t": wrong}, folder / "model.safetensors")
        with pytest.raises(EnvironmentProblem, match="its d2t table"):
            read_head(str(folder), target)


def test_damaged_missing_and_foreign_heads_are_one_line(target, tmp_path):
    folder = saved(tmp_path / "head", tiny_head())
    with pytest.raises(UsageProblem, match="reads states of width 32 and the target's are 64 wide"):
        read_head(str(folder), tiny("llama", hidden_size=64))
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(EnvironmentProblem, match=r"its config\.json and weights cannot be used"):
        read_head(str(folder), target)
    (folder / "model.safetensors").unlink()
    with pytest.raises(EnvironmentProblem, match=r"model\.safetensors"):
        read_head(str(folder), target)
