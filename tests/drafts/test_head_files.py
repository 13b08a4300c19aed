"""Heads in files: what is written comes back, published shapes are read, and what does not fit is one line."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from speclab.core.sampling import Sampling
from speclab.drafts import kinds
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.files import read_head, weights_of, write_head
from speclab.models import names
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.decoding import speculative_rounds
from tests.heads import block, prompts, tiny_block_head, tiny_head
from tests.tiny_models import VOCAB, tiny
from training.heads import main
from training.kinds import KINDS, head_to_train


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
    return list(speculative_rounds(target, drafter, prompts(1), 3, 40, sampling or Sampling(0.9), generator))


@pytest.mark.parametrize(
    ("qwen3", "flags"),
    [
        (True, {}),
        (False, {"norm_before_fc": True, "norm_output": True}),
        (True, {"fc_norm": True, "norm_before_residual": True}),
    ],
)
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


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_a_head_of_a_part_of_the_ids_comes_back(target, tmp_path, kind):
    """Without embedding and output layer, which are rows of the target's own."""
    ids = torch.tensor([1, 2, 5, 7, 11, 12, 20, 21, 30, 40, 41, 47])
    table, output = weights_of(target)
    if kind == "feature":
        head, make = tiny_head(draft_vocab=12), FeatureDrafter
        head.embed_tokens.weight.data, head.lm_head.weight.data = table.clone(), output[ids]
    else:
        head, make = tiny_block_head(target, markov_rank=3, draft_vocab=12), BlockDrafter
        head.output.weight = output[ids]
    write_head(tmp_path / "head", head, "some/target", ["LlamaForCausalLM"], 4, ids)
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    assert not any(name.startswith(("embed_tokens", "lm_head")) for name in tensors)
    assert torch.equal(tensors["d2t"] + torch.arange(12), ids)
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)
    read = read_head(str(tmp_path / "head"), target, kind)
    assert torch.equal(read.ids, ids)
    assert proposals(target, make(*read)) == proposals(target, make(head, ids))


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_what_is_the_target_s_own_does_not_learn(target, tmp_path, kind):
    """In a fresh head of a part of the ids, and in one that is trained further."""
    ids, target = torch.tensor([1, 2, 5, 7]), target.float()
    args = argparse.Namespace(kind=kind, init=None, intermediate=None, layers=None, seed=0)
    made = KINDS[kind].fresh(target, Fewer(), args, ids)
    table, output = weights_of(target)
    lent = {"embed_tokens.weight", "lm_head.weight"} if kind == "feature" else set()
    assert {name for name, weight in made.named_parameters() if not weight.requires_grad} == lent
    write_head(tmp_path / "head", made, "some/target", ["LlamaForCausalLM"], 4, ids)
    args.init = str(tmp_path / "head")
    head, own = head_to_train(target, Fewer(), args)
    assert torch.equal(own, ids)
    assert {name for name, weight in head.named_parameters() if not weight.requires_grad} == lent
    tables = (head.embed_tokens.weight, head.lm_head.weight) if kind == "feature" else (head.table, head.output.weight)
    assert torch.equal(tables[0], table)
    assert torch.equal(tables[1], output[ids])


class Fewer:
    """A tokenizer that has fewer ids than the target."""

    def get_vocab(self):
        return {}

    def __len__(self):
        return VOCAB - 1


PARTLY = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
DECODERS = [
    ({"num_attention_heads": 3}, "it has 3 heads of size 8|number of attention heads"),
    ({"head_dim": 7}, "it has 4 heads of size 7|head_dim"),
    ({"head_dim": 1 << 40}, "of size 1099511627776|head_dim"),
    ({"rope_parameters": {"rope_type": "nonsense", "rope_theta": 1e4}}, "rope_type is 'nonsense'|nonsense"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type is 'dynamic'"),
    ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "config.json"),
    ({"rope_parameters": PARTLY}, "partial_rotary_factor is 0.5; the lab does not"),
]


@pytest.mark.parametrize(("changes", "message"), DECODERS)
def test_a_decoder_that_does_not_exist_is_one_line(target, tmp_path, changes, message):
    folder = saved(tmp_path / "head", tiny_head())
    layer = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    edited(folder, transformer_layer_config=layer | changes)
    with pytest.raises((EnvironmentProblem, UsageProblem), match=message) as problem:
        read_head(str(folder), target)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500


@pytest.mark.parametrize(
    "rotary",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_other_rotary_positions_are_read(target, tmp_path, rotary):
    folder = saved(tmp_path / "head", tiny_head())
    plain = proposals(target, FeatureDrafter(read_head(str(folder), target).head))
    layer = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    edited(folder, transformer_layer_config=layer | {"rope_parameters": {"rope_theta": 1e4, **rotary}})
    assert proposals(target, FeatureDrafter(read_head(str(folder), target).head)) != plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "medusa"}, "speculators_model_type is 'medusa'; the draft feature reads eagle3"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, r"it reads states \[1, 3\] of a target with 2 layers"),
        ({"draft_vocab_size": 12}, "lm_head.weight has the shape"),
        ({"transformer_layer_config": block(hidden=1 << 20).to_dict()}, "embed_tokens.weight has the shape"),
        ({"transformer_layer_config": block().to_dict() | {"num_hidden_layers": 2}}, "is not one layer of llama"),
        (
            {"transformer_layer_config": block().to_dict() | {"model_type": "mamba"}},
            "model_type is 'mamba'",
        ),
        (
            {"transformer_layer_config": block(qwen3=True).to_dict() | {"layer_types": ["sliding_attention"]}},
            "its layer attends to a window",
        ),
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
    for wrong, message in (
        (torch.full((12,), VOCAB), "its d2t table"),
        (torch.arange(12, 0, -1), "its d2t table"),
        (torch.full((12,), 2**63 - 1), "its d2t table"),
        (torch.zeros(11, dtype=torch.long), "d2t has the shape"),
        (torch.zeros(12), "d2t is of the type F32"),
    ):
        save_file({**tensors, "d2t": wrong}, folder / "model.safetensors")
        with pytest.raises(EnvironmentProblem, match=message):
            read_head(str(folder), target)


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_weights_that_are_not_finite_are_one_line(target, tmp_path, kind):
    head = tiny_head() if kind == "feature" else tiny_block_head(target, markov_rank=3)
    folder = saved(tmp_path / "head", head)
    tensors = load_file(folder / "model.safetensors")
    for wrong in (float("nan"), float("inf")):
        tensors["norm.weight"][0] = wrong
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(EnvironmentProblem, match=r"norm\.weight has numbers that are not finite in float64"):
            read_head(str(folder), target, kind)


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


BLOCK_SHAPES = [
    {"layers": 1},
    {"markov_rank": 3, "causal": True},
    {"markov_rank": 3, "from_anchor": False},
    {"from_anchor": False, "slots": 9, "causal": True},
]


@pytest.mark.parametrize("options", BLOCK_SHAPES)
def test_a_block_that_is_written_comes_back(target, tmp_path, options):
    head = tiny_block_head(target, **options)
    read = read_head(str(saved(tmp_path / "head", head)), target, "block")
    assert read.ids is None
    changed = {"block": None}
    assert vars(read.head.config) | changed == vars(head.config) | changed
    weights = read.head.state_dict()
    assert weights.keys() == head.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in head.state_dict().items())
    assert proposals(target, BlockDrafter(read.head)) == proposals(target, BlockDrafter(head))
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["speculators_model_type"] == ("dspark" if options.get("markov_rank") else "dflash")
    assert config["aux_hidden_state_layer_ids"] == [1, 2], "counted from 1 there"
    assert config["block_size"] - (not config["sample_from_anchor"]) == head.config.longest
    (method,) = config["speculators_config"]["proposal_methods"]
    assert method["speculative_tokens"] == head.config.longest
    assert not any("embed" in name or "lm_head" in name for name in load_file(tmp_path / "head" / "model.safetensors"))


def test_a_published_block_with_fewer_ids_and_parts_of_its_training(target, tmp_path):
    """Its embedding is the target's, whatever is there; no word about the slots means that the anchor predicts none."""
    head = tiny_block_head(target, markov_rank=3, draft_vocab=12, from_anchor=False)
    folder = saved(tmp_path / "head", head)
    ids = torch.tensor([1, 2, 5, 7, 11, 12, 20, 21, 30, 40, 41, 47])
    more = {
        "d2t": ids - torch.arange(12),
        "lm_head.weight": head.output.weight.contiguous(),
        "embed_tokens.weight": torch.zeros(VOCAB, 32),
        "verifier_norm.weight": torch.ones(32),
        "confidence_head.proj.weight": torch.ones(1, 35),
    }
    save_file({**load_file(folder / "model.safetensors"), **more}, folder / "model.safetensors")
    edited(folder, sample_from_anchor=None)
    read = read_head(str(folder), target, "block")
    assert torch.equal(read.ids, ids)
    assert proposals(target, BlockDrafter(*read)) == proposals(target, BlockDrafter(head, ids))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "'eagle3'; the draft block reads dflash and dspark"),
        ({"speculators_model_type": "dflash2"}, "'dflash2'; the draft block reads dflash and dspark"),
        ({"speculators_model_type": "dflash"}, "markov_head.markov_w1.weight is a weight that"),
        ({"markov_head_type": "gated"}, "markov_head_type is 'gated'; it should be 'vanilla'"),
        ({"projector_type": "domino"}, "projector_type is 'domino'"),
        ({"aux_hidden_state_layer_ids": [1, 3]}, r"it reads states \[1, 3\] of a target with 2 layers"),
        ({"mask_token_id": VOCAB}, "mask_token_id is 48"),
        ({"block_size": 1 << 30}, "block_size is 1073741824"),
        ({"markov_rank": 4}, "markov_w1.weight has the shape"),
        ({"markov_rank": 1 << 40}, "markov_rank is 1099511627776"),
        ({"draft_vocab_size": 12}, "lm_head.weight has the shape"),
        ({"transformer_layer_config": {"num_hidden_layers": 1 << 20}}, "num_hidden_layers is 1048576"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "is not 1 to 64 layers of qwen3"),
        ({"transformer_layer_config": {"intermediate_size": 1 << 30}}, "intermediate_size is 1073741824"),
        (
            {"transformer_layer_config": {"vocab_size": 49}},
            "works with 49 embeddings of width 32 and the target has 48",
        ),
        (
            {
                "transformer_layer_config": {
                    "layer_types": ["sliding_attention"] * 2,
                    "sliding_window": 9,
                    "use_sliding_window": True,
                }
            },
            "some of its layers attend to a window",
        ),
    ],
)
def test_a_config_of_a_block_that_does_not_fit_is_one_line(target, tmp_path, changes, message):
    folder = saved(tmp_path / "head", tiny_block_head(target, markov_rank=3))
    layer = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    if "transformer_layer_config" in changes:
        changes = {"transformer_layer_config": layer | changes["transformer_layer_config"]}
    edited(folder, **changes)
    with pytest.raises((EnvironmentProblem, UsageProblem), match=message) as problem:
        read_head(str(folder), target, "block")
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500


def test_a_head_that_is_trained_further_leaves_the_target_alone(target, tmp_path):
    """An embedding that is not in the file is the target's: what learns is a copy."""
    folder = saved(tmp_path / "head", tiny_head())
    tensors = load_file(folder / "model.safetensors")
    del tensors["embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors")
    head, ids = head_to_train(target, None, argparse.Namespace(kind="feature", init=str(folder)))
    assert ids is None
    own = {weight.data_ptr() for weight in target.parameters()}
    assert all(weight.requires_grad and weight.data_ptr() not in own for weight in head.parameters())
    assert torch.equal(head.embed_tokens.weight, target.get_input_embeddings().weight)
    assert len(list(head.parameters())) == len(list(tiny_head().parameters()))


def test_what_a_trained_head_has_is_not_said_again(capsys):
    assert main(["feature", "--init", "models/lab-pair/feature", "--intermediate", "9"]) == 2
    assert "--intermediate is what the head of --init has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "own"),
    [("smollm2", True), ("lab:8b", False), ("models/smollm2", False), ("../models/smollm2", False), ("gpt2", False)],
)
def test_a_target_of_this_name_gets_its_own_head(target, own):
    """Any other gets the head of the lab's pair; a path is no such name."""
    found = Path(kinds.own_head("feature", target))
    assert found == (names.MODELS / target / "feature" if own else names.LAB_PAIR / "feature")
    assert (found / "model.safetensors").stat().st_size <= 6_000_000
