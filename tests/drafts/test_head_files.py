"""Heads in files: what is written comes back, published shapes are read, and what is wrong is one line."""

import argparse
import contextlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads import files
from speclab.drafts.heads.files import read_head, weights_of
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.padding import Shape, pad_to
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import ROOT
from tests.decoding import speculative_rounds
from tests.heads import prompts, tiny_head
from tests.tiny_models import VOCAB, tiny
from training.heads import KINDS, head_to_train
from training.writing import write_feature

IDS = torch.tensor([1, 2, 5, 7, 11, 12, 20, 21, 30, 40, 41, 47])  # of a head that proposes a part
DECODER, TURNS = "transformer_layer_config", "rope_parameters"


@pytest.fixture
def target():
    return tiny("llama")


@pytest.fixture
def folder(tmp_path):
    return saved(tmp_path / "head", tiny_head())


def saved(folder, head, ids=None):
    write_feature(folder, head, "some/target", ["LlamaForCausalLM"], 4, ids)
    return folder


def entries(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def edited(folder, *path, **changes):
    """The same config.json with other entries in the part at this path; None takes one away."""
    found = entries(folder)
    inner = found
    for step in path:
        inner = inner[step]
    inner |= changes
    for key in [key for key, value in inner.items() if value is None]:
        del inner[key]
    (folder / "config.json").write_text(json.dumps(found))
    return str(folder)


def other_weights(folder, **changes) -> str:
    """The same file of weights with other tensors; None takes one away."""
    tensors = load_file(folder / "model.safetensors") | {name.replace("__", "."): new for name, new in changes.items()}
    save_file({name: new for name, new in tensors.items() if new is not None}, folder / "model.safetensors")
    return str(folder)


def refused(read, *given) -> str:
    with pytest.raises((EnvironmentProblem, UsageProblem)) as problem:
        read(*given)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500
    return str(problem.value)


def proposals(model, drafter, sampling=None):
    target = CachedModel(model)
    target.hidden_layers = drafter.head.config.layers
    return list(speculative_rounds(target, drafter, prompts(1), 3, 40, sampling or Sampling(0.9), seed=1))


# --- what is right ----------------------------------------------------------------------------------------------------

SHAPES = [(True, {}), (False, {"norm_before_fc": True, "norm_output": True})]
SHAPES += [(True, {"fc_norm": True, "norm_before_residual": True})]


@pytest.mark.parametrize(("qwen3", "flags"), SHAPES)
def test_what_is_written_comes_back(target, tmp_path, flags, qwen3):
    head = tiny_head(qwen3=qwen3, **flags)
    read = read_head(str(saved(tmp_path / "head", head)), target)
    assert (read.ids, read.head.config.layers) == (None, (0, 1))
    weights = read.head.state_dict()
    assert weights.keys() == head.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in head.state_dict().items())
    assert proposals(target, FeatureDrafter(read.head)) == proposals(target, FeatureDrafter(head))
    config = entries(tmp_path / "head")
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2], "counted from 1 there"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config[DECODER]["model_type"] == ("qwen3" if qwen3 else "llama")


def test_a_head_of_a_part_of_the_ids_comes_back(target, tmp_path):
    """Without embedding and output layer, which are rows of the target's own."""
    (table, output), head = weights_of(target), tiny_head(draft_vocab=12)
    head.embed_tokens.weight.data, head.lm_head.weight.data = table.clone(), output[IDS]
    folder = saved(tmp_path / "head", head, IDS)
    tensors = load_file(folder / "model.safetensors")
    assert not any(name.startswith(("embed_tokens", "lm_head")) for name in tensors)
    assert torch.equal(tensors["d2t"] + torch.arange(12), IDS)
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], IDS)
    read = read_head(edited(folder, target_hidden_size=None), target)
    assert torch.equal(read.ids, IDS)
    assert proposals(target, FeatureDrafter(*read)) == proposals(target, FeatureDrafter(head, IDS))


ORIGINAL = {"original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}
ENTRIES = [  # of published heads, and others: where they stand, and whether they change what is proposed
    ((), {"logit_scale": 1.0, "embedding_scale": 1, "quantization_config": {}, "sparkle": 3}, False),
    ((DECODER,), {"logit_scale": 1, "partial_rotary_factor": 1.0, "sliding_window": None, "pretraining_tp": 1}, False),
    ((DECODER, TURNS), {"mrope_section": [8, 4, 4], "mrope_interleaved": True, "partial_rotary_factor": 1}, False),
    ((DECODER,), {TURNS: {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}}, True),
    ((DECODER,), {TURNS: {"rope_theta": 1e4, "rope_type": "yarn", "factor": 2.0, **ORIGINAL}}, True),
    ((DECODER,), {TURNS: {"rope_theta": 1e4, **LLAMA3}}, True),
]


@pytest.mark.parametrize(("path", "more", "changes"), ENTRIES)
def test_entries_that_change_nothing_change_nothing_and_other_rotary_positions_are_read(
    target, folder, path, more, changes
):
    plain = proposals(target, FeatureDrafter(read_head(str(folder), target).head))
    edited(folder, *path, **more)
    assert (proposals(target, FeatureDrafter(read_head(str(folder), target).head)) != plain) == changes


def test_the_labs_own_heads_are_read():
    for place in ("lab-pair", "smollm2"):
        files.feature_config(files.read_config(ROOT / "models" / place / "feature" / "config.json"), 30)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8)])
def test_a_padded_target_is_drafted_for_as_the_one_that_it_was_padded_from(target, folder, sampling):
    wide = pad_to(target, Shape(64, 4, 96, 3), torch.device("cpu"), torch.float64, 48)
    assert "reads states of width 32, not 64" in refused(read_head, str(folder), wide)
    head = read_head(str(folder), wide, own_width=32).head
    right = proposals(target, FeatureDrafter(read_head(str(folder), target).head), sampling)
    assert proposals(wide, FeatureDrafter(head), sampling) == right
    other = str(saved(folder, tiny_head(target_hidden=48)))
    assert "reads states of width 48, not 32" in refused(read_head, other, wide, 32)
    normed = str(saved(folder, tiny_head(fc_norm=True)))
    assert "a head like the lab's own; give feature" in refused(read_head, normed, wide, 32)


# --- what is wrong ----------------------------------------------------------------------------------------------------

MISSING = "which is missing, negative or no"
CONFIGS = [  # where, what is changed, and what the line says
    ((), {"speculators_model_type": "medusa"}, "speculators_model_type is 'medusa'; the draft feature reads eagle3"),
    ((), {"eagle_aux_hidden_state_layer_ids": [1, 3]}, "it reads states [1, 3] of a target with 2 layers"),
    ((), {"draft_vocab_size": 12}, "d2t is missing; its config.json asks for (12,)"),
    ((), {"draft_vocab_size": None}, f"draft_vocab_size is None, {MISSING} int"),
    ((), {"fc_norm": "false"}, f"fc_norm is 'false', {MISSING} bool"),
    ((), {"logit_scale": 0.5}, "logit_scale is 0.5, which the lab does not compute"),
    ((), {DECODER: [1]}, f"{DECODER} is [1], {MISSING} dict"),
    ((DECODER,), {"hidden_size": 1 << 20}, "embed_tokens.weight is (48, 32)"),
    ((DECODER,), {"hidden_size": "wide"}, "hidden_size"),
    ((DECODER,), {"hidden_size": -32}, "its weights cannot be used"),
    ((DECODER,), {"num_hidden_layers": 2}, "is not one layer of llama"),
    ((DECODER,), {"num_hidden_layers": 1 << 20}, "num_hidden_layers is 1048576; the lab reads at most 64"),
    ((DECODER,), {"model_type": "mamba"}, "its model_type is 'mamba'"),
    ((DECODER,), {"hidden_act": "warm"}, "warm"),
    ((DECODER,), {"head_dim": 7}, "its config.json cannot be used"),
    ((DECODER,), {TURNS: {"rope_type": "nonsense", "rope_theta": 1e4}}, "its rope_type is 'nonsense'"),
    ((DECODER,), {TURNS: {"rope_type": "llama3", "rope_theta": 1e4}}, "config.json"),
    ((DECODER, TURNS), {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which the lab does not"),
    ((DECODER,), {"model_type": "qwen3", "layer_types": ["sliding_attention"]}, "attends to the whole text"),
]


DAMAGE = [  # what is done to a folder, and what the line says
    *((lambda folder, row=row: edited(folder, *row[0], **row[1]), row[2]) for row in CONFIGS),
    *(
        (lambda folder, content=content: (folder / "config.json").write_bytes(content), "config.json")
        for content in (*(b'{"x": ' + x for x in (b"[" * 10**5, b"9" * 5000 + b"}", b'"\xff"}')), b"[1]", b" " * 2**21)
    ),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"half"), "its config.json and weights cannot be used"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_a_damaged_head_is_one_line(target, folder, damage, message):
    damage(folder)
    assert message in refused(read_head, str(folder), target)


def test_a_head_that_the_engine_c_does_not_know_drafts_eagerly(target, folder, capsys):
    edited(folder, DECODER, hidden_act="relu")
    setup = SimpleNamespace(target=SimpleNamespace(model=target, hidden_layers=(), engine="c"), target_name="tiny")
    assert registry.read(f"feature:{folder}").make(setup, 0).packed is None
    assert "drafts eagerly: the engine c does not know the activation relu" in capsys.readouterr().err


right_open = files.safe_open


@contextlib.contextmanager
def unread(*args):
    """An open file of weights that must not be read: its header alone may be."""

    def read(name):
        raise AssertionError("a tensor was read")

    with right_open(*args) as file:
        yield SimpleNamespace(keys=file.keys, get_slice=file.get_slice, get_tensor=read)


WEIGHTS = (
    (torch.ones(33), "norm.weight is (33,); its config.json asks for (32,)"),
    (None, "norm.weight is missing"),
    (torch.ones(32), "a tensor was read"),
)


def check_weights(folder, read, monkeypatch) -> None:
    """Names and shapes are compared before a number is read, and numbers that are not finite are refused."""
    right = load_file(folder / "model.safetensors")["norm.weight"]
    with monkeypatch.context() as patch:
        patch.setattr(files, "safe_open", unread)
        for tensor, message in WEIGHTS:
            other_weights(folder, norm__weight=tensor)
            assert message in refused(read)
        other_weights(folder, norm__weight=right, more=torch.ones(3))
        assert "more is (3,); its config.json asks for no such weight" in refused(read)
    for wrong in (math.nan, math.inf):
        other_weights(folder, more=None, norm__weight=right.index_fill(0, torch.tensor([0]), wrong))
        assert "norm.weight has numbers that are not finite in torch.float64" in refused(read)


def test_names_and_shapes_are_compared_before_a_number_is_read(target, folder, monkeypatch):
    check_weights(folder, lambda: read_head(str(folder), target), monkeypatch)


def test_tables_that_are_wrong_are_refused(target, tmp_path):
    folder = saved(tmp_path / "head", tiny_head(draft_vocab=12))
    offsets = IDS - torch.arange(12)
    assert torch.equal(read_head(other_weights(folder, d2t=offsets), target).ids, IDS)
    for table, message in (
        (torch.full((12,), VOCAB), "its d2t table"),
        (torch.arange(12, 0, -1), "its d2t table"),
        (torch.full((12,), 2**63 - 1), "its d2t table"),
        (torch.zeros(11, dtype=torch.long), "d2t is (11,)"),
        (None, "d2t is missing"),
    ):
        assert message in refused(read_head, other_weights(folder, d2t=table), target)


# --- training, and names ----------------------------------------------------------------------------------------------


def check_lent(kind, write, target, tmp_path, lent, tables_of) -> None:
    """What is the target's own does not learn: in a fresh head of a part of the ids, and in one trained further."""
    ids, target = torch.tensor([1, 2, 5, 7]), target.float()
    args = argparse.Namespace(kind=kind, init=None, intermediate=None, layers=None, seed=0)
    made = KINDS[kind].fresh(target, Fewer(), args, ids)
    write(tmp_path / "head", made, "some/target", ["LlamaForCausalLM"], ids=ids)
    args.init = str(tmp_path / "head")
    head, own = head_to_train(target, Fewer(), args)
    for one in (made, head):
        assert {name for name, weight in one.named_parameters() if not weight.requires_grad} == lent
    table, output = weights_of(target)
    assert torch.equal(own, ids)
    assert torch.equal(tables_of(head)[0], table)
    assert torch.equal(tables_of(head)[1], output[ids])


class Fewer:
    """A tokenizer that has fewer ids than the target."""

    def get_vocab(self):
        return {}

    def __len__(self):
        return VOCAB - 1


def test_what_is_the_targets_own_does_not_learn(target, tmp_path):
    lent = {"embed_tokens.weight", "lm_head.weight"}
    tables = lambda head: (head.embed_tokens.weight, head.lm_head.weight)  # noqa: E731
    check_lent("feature", KINDS["feature"].write, target, tmp_path, lent, tables)


def test_a_head_that_is_trained_further_leaves_the_target_alone(target, folder):
    """An embedding that is not in the file is the target's: what learns is a copy."""
    place = other_weights(folder, embed_tokens__weight=None)
    head, ids = head_to_train(target, None, argparse.Namespace(kind="feature", init=place))
    assert ids is None
    own = {weight.data_ptr() for weight in target.parameters()}
    assert all(weight.requires_grad and weight.data_ptr() not in own for weight in head.parameters())
    assert torch.equal(head.embed_tokens.weight, target.get_input_embeddings().weight)


OWN = [("smollm2", True), ("lab:8b", False), ("models/smollm2", False), ("../models/smollm2", False), ("gpt2", False)]


@pytest.mark.parametrize(("target", "own"), OWN)
def test_a_target_of_this_name_gets_its_own_head(target, own):
    """Any other gets the head of the lab's pair; a path is no such name."""
    found = Path(registry.own_head("feature", target))
    assert found == (loading.MODELS / target / "feature" if own else loading.LAB_PAIR / "feature")
    assert (found / "model.safetensors").stat().st_size <= 6_000_000
