"""Heads in files: what is written comes back, published shapes are read, and what is wrong is one line."""

import argparse
import json
import math
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads import files
from speclab.drafts.heads.files import FEATURE, LAYER, ROPE, read_head, weights_of, write_head
from speclab.drafts.heads.parts import rotations
from speclab.models import names
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT
from tests.decoding import speculative_rounds
from tests.heads import block, prompts, tiny_head
from tests.tiny_models import VOCAB, tiny
from training.heads import KINDS, head_to_train

IDS = torch.tensor([1, 2, 5, 7, 11, 12, 20, 21, 30, 40, 41, 47])  # of a head that proposes a part
DECODER, TURNS = "transformer_layer_config", "rope_parameters"


@pytest.fixture
def target():
    return tiny("llama")


@pytest.fixture
def folder(tmp_path):
    return saved(tmp_path / "head", tiny_head())


def saved(folder, head, ids=None):
    write_head(folder, head, "some/target", ["LlamaForCausalLM"], 4, ids)
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


def refused(read, *given) -> str:
    with pytest.raises((EnvironmentProblem, UsageProblem)) as problem:
        read(*given)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500
    return str(problem.value)


def proposals(model, drafter, sampling=None):
    target = CachedModel(model)
    target.hidden_layers = drafter.head.config.layers
    generator = torch.Generator().manual_seed(1)
    return list(speculative_rounds(target, drafter, prompts(1), 3, 40, sampling or Sampling(0.9), generator))


# --- what is right ----------------------------------------------------------------------------------------------------


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
    config = entries(tmp_path / "head")
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2], "counted from 1 there"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config[DECODER]["model_type"] == ("qwen3" if qwen3 else "llama")


def test_a_published_shape_with_fewer_ids_and_the_targets_embedding(target, tmp_path):
    """As heads for large models are: d2t and t2d tables, no embedding, default layers, another width than the rest."""
    folder = saved(tmp_path / "head", tiny_head(draft_vocab=12))
    tensors = load_file(folder / "model.safetensors")
    del tensors["embed_tokens.weight"]
    chosen = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, IDS, True)
    save_file({**tensors, "d2t": IDS - torch.arange(12), "t2d": chosen}, folder / "model.safetensors")
    read = read_head(edited(folder, target_hidden_size=None), target)
    assert torch.equal(read.ids, IDS)
    assert torch.equal(read.head.embed_tokens.weight, target.get_input_embeddings().weight)
    rounds = proposals(target, FeatureDrafter(read.head, read.ids), Sampling())
    assert sum(r.n_drafted for r in rounds) > 0


def test_a_head_of_a_part_of_the_ids_comes_back(target, tmp_path):
    """Without embedding and output layer, which are rows of the target's own."""
    (table, output), head = weights_of(target), tiny_head(draft_vocab=12)
    head.embed_tokens.weight.data, head.lm_head.weight.data = table.clone(), output[IDS]
    folder = saved(tmp_path / "head", head, IDS)
    tensors = load_file(folder / "model.safetensors")
    assert not any(name.startswith(("embed_tokens", "lm_head")) for name in tensors)
    assert torch.equal(tensors["d2t"] + torch.arange(12), IDS)
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], IDS)
    read = read_head(str(folder), target)
    assert torch.equal(read.ids, IDS)
    assert proposals(target, FeatureDrafter(*read)) == proposals(target, FeatureDrafter(head, IDS))


# Entries of published heads, and others that change nothing: by where they stand.
NEUTRAL = {
    (): {"logit_scale": 1.0, "embedding_scale": 1, "quantization_config": {}, "sparkle": 3},
    (DECODER,): {"logit_scale": 1, "partial_rotary_factor": 1.0, "sliding_window": None, "pretraining_tp": 1},
    (DECODER, TURNS): {"mrope_section": [8, 4, 4], "mrope_interleaved": True, "partial_rotary_factor": 1},
}


def test_entries_that_change_nothing_change_nothing(target, folder):
    """And whole numbers may be written with a point."""
    right = files.feature_config(entries(folder), 2)
    for path, more in NEUTRAL.items():
        edited(folder, *path, **more)
    found = files.feature_config(entries(folder), 2)
    assert found.block.to_dict() == right.block.to_dict()
    pointed = files.feature_config(json.loads((folder / "config.json").read_text(), parse_int=float), 2)
    assert pointed.block.to_dict() == right.block.to_dict()
    assert (found.layers, found.draft_vocab) == (pointed.layers, pointed.draft_vocab) == (right.layers, VOCAB)
    read_head(str(folder), target)


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
def test_other_rotary_positions_are_read(target, folder, rotary):
    plain = proposals(target, FeatureDrafter(read_head(str(folder), target).head))
    edited(folder, DECODER, rope_parameters={"rope_theta": 1e4, **rotary})
    assert proposals(target, FeatureDrafter(read_head(str(folder), target).head)) != plain


def test_yarn_without_a_scale_of_its_own_turns_as_if_it_were_left_out(folder):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    turned = []
    for more in ({}, {"mscale": 0.0, "mscale_all_dim": 0.0}, {"mscale": 0, "mscale_all_dim": 1.0}):
        said = entries(folder)[DECODER] | {TURNS: rope | more}
        turned.append(torch.stack(rotations(files.decoder_of(said, "llama"), torch.arange(9))))
    assert torch.equal(turned[0], turned[1])
    assert torch.equal(turned[0], turned[2])


def test_the_labs_own_heads_are_read():
    for place in ("lab-pair", "smollm2"):
        files.feature_config(files.read_config(ROOT / "models" / place / "feature" / "config.json"), 30)


# --- what is wrong ----------------------------------------------------------------------------------------------------

WRONG = ("false", math.nan, math.inf, -1.5, [{}], 10**30, -1)  # for every entry, whatever its type is


def check_every_entry(found: dict, read, types: dict) -> None:
    """Every entry that is read is refused by its name where its value is wrong. types: by the place of the entries."""
    read(found)
    for path, group in types.items():
        for name in group:
            for wrong in WRONG:
                changed = json.loads(json.dumps(found))
                inner = changed
                for step in path:
                    inner = inner[step]
                inner[name] = wrong
                if type(wrong) is not group[name] or isinstance(wrong, float):
                    with pytest.raises(ValueError, match=name):
                        pytest.fail(f"{name} = {wrong} is {read(changed)}")


def test_every_entry_that_is_read_is_refused_by_its_name(folder):
    types = {(): FEATURE, (DECODER,): LAYER, (DECODER, TURNS): ROPE}
    check_every_entry(entries(folder), lambda found: files.feature_config(found, 2), types)


PARTLY = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5}
CONFIGS = [  # where, what is changed, and what the line says
    ((), {"speculators_model_type": "medusa"}, "speculators_model_type is 'medusa'; the draft feature reads eagle3"),
    ((), {"eagle_aux_hidden_state_layer_ids": [1, 3]}, "it reads states [1, 3] of a target with 2 layers"),
    ((), {"eagle_aux_hidden_state_layer_ids": [1] * 300_000}, "eagle_aux_hidden_state_layer_ids"),
    ((), {"draft_vocab_size": 12}, "lm_head.weight has the shape"),
    ((), {"draft_vocab_size": None}, "draft_vocab_size is missing or null"),
    ((), {"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm"),
    ((), {"logit_scale": 0.5}, "logit_scale is 0.5; the lab does not compute it"),
    ((), {DECODER: block(hidden=1 << 20).to_dict()}, "embed_tokens.weight has the shape"),
    ((DECODER,), {"num_hidden_layers": 2}, "is not one layer of llama"),
    ((DECODER,), {"model_type": "mamba"}, "model_type is 'mamba'"),
    ((DECODER,), {"hidden_act": "warm"}, "hidden_act is 'warm'"),
    ((DECODER,), {"num_attention_heads": 3}, "heads"),
    ((DECODER,), {"num_key_value_heads": 3}, "it has 4 heads of size 8 over 3"),
    ((DECODER,), {"head_dim": 7}, "head_dim"),
    ((DECODER,), {"head_dim": 1 << 40}, "head_dim is '1099511627776'"),
    ((DECODER,), {TURNS: {"rope_type": "nonsense", "rope_theta": 1e4}}, "rope_type is 'nonsense'"),
    ((DECODER,), {TURNS: {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type is 'dynamic'"),
    ((DECODER,), {TURNS: {"rope_type": "llama3", "rope_theta": 1e4}}, "config.json"),
    ((DECODER,), {TURNS: PARTLY}, "partial_rotary_factor is 0.5; the lab does not"),
    ((DECODER,), {TURNS: {"rope_type": "default", "rope_theta": 1e4, "twist": 2.0}}, "twist is an entry of how"),
    (
        (DECODER,),
        {TURNS: {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1e39}},
        "attention_factor",
    ),
    ((DECODER,), {"model_type": "qwen3", "layer_types": ["sliding_attention"]}, "its layer attends to a window"),
]


@pytest.mark.parametrize(("path", "changes", "message"), CONFIGS)
def test_a_config_that_does_not_fit_is_one_line(target, folder, path, changes, message):
    assert message in refused(read_head, edited(folder, *path, **changes), target)


JSON = {
    "deep": b'{"x": ' + b"[" * 100_000,
    "twice": b'{"draft_vocab_size": 48, "draft_vocab_size": 12, "draft_vocab_size": 48}',
    "digits": b'{"x": ' + b"9" * 5000 + b"}",
    "a list": b"[1]",
    "large": b" " * 2**21,
    "no UTF-8": b'{"x": "\xff"}',
}


@pytest.mark.parametrize("content", JSON.values(), ids=JSON)
def test_damaged_json_is_one_line(target, folder, content):
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refused(read_head, str(folder), target)


def test_damaged_missing_and_foreign_heads_are_one_line(target, folder):
    wide = tiny("llama", hidden_size=64)
    assert "reads states of width 32 and the target's are 64 wide" in refused(read_head, str(folder), wide)
    (folder / "model.safetensors").write_bytes(b"half")
    assert "its config.json and weights cannot be used" in refused(read_head, str(folder), target)
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refused(read_head, str(folder), target)


class Unread:
    """This is an open file of weights that must not be read: its header alone may be."""

    def __init__(self, *args):
        self.file = right_open(*args)

    def __enter__(self):
        self.inner = self.file.__enter__()
        return self

    def __exit__(self, *args):
        return self.file.__exit__(*args)

    def keys(self):
        return self.inner.keys()

    def get_slice(self, name):
        return self.inner.get_slice(name)

    def get_tensor(self, name):
        raise AssertionError("a tensor was read")


right_open = files.safe_open
WEIGHTS = (
    ({"norm.weight": torch.ones(33).double()}, "norm.weight has the shape (33,)"),
    ({"norm.weight": None}, "norm.weight is missing"),
    ({"more.weight": torch.ones(3)}, "more.weight is a weight that"),
    ({"norm.weight": torch.ones(32, dtype=torch.int64)}, "norm.weight is of the type I64"),
    ({"norm.weight": torch.ones(32).to(torch.float8_e4m3fn)}, "norm.weight is of the type F8"),
    ({}, "a tensor was read"),
)


def check_weights(folder, read, monkeypatch) -> None:
    """Names, shapes and types are compared before a number is read."""
    right = load_file(folder / "model.safetensors")
    monkeypatch.setattr(files, "safe_open", Unread)
    for changes, message in WEIGHTS:
        changed = {name: tensor for name, tensor in (right | changes).items() if tensor is not None}
        save_file(changed, folder / "model.safetensors")
        assert message in refused(read)


def test_names_shapes_and_types_are_compared_before_a_number_is_read(target, folder, monkeypatch):
    check_weights(folder, lambda: read_head(str(folder), target), monkeypatch)


def check_finite(folder, read) -> None:
    """Weights that are not finite are refused by their name."""
    tensors = load_file(folder / "model.safetensors")
    for wrong in (float("nan"), float("inf")):
        tensors["norm.weight"][0] = wrong
        save_file(tensors, folder / "model.safetensors")
        assert "norm.weight has numbers that are not finite in float64" in refused(read)


def test_weights_that_are_not_finite_are_one_line(target, folder):
    check_finite(folder, lambda: read_head(str(folder), target))


def test_a_sparse_file_of_half_a_gigabyte_takes_no_memory(target, folder):
    """Its header declares an embedding of 2**28 numbers, and the disk holds none of them."""
    n_bytes = 2**29
    header = {"norm.weight": {"dtype": "BF16", "shape": [2**14, 2**14], "data_offsets": [0, n_bytes]}}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + n_bytes)
    assert "is missing" in refused(read_head, str(folder), target)


def test_tables_that_are_wrong_or_disagree_are_refused(target, tmp_path):
    folder = saved(tmp_path / "head", tiny_head(draft_vocab=12))
    tensors = load_file(folder / "model.safetensors")

    def read(offsets, chosen=None):
        tables = {"d2t": offsets} | ({} if chosen is None else {"t2d": chosen})
        save_file({**tensors, **tables}, folder / "model.safetensors")
        return read_head(str(folder), target)

    offsets, chosen = IDS - torch.arange(12), torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, IDS, True)
    for table in (chosen, None):
        assert torch.equal(read(offsets, table).ids, IDS)
    first = torch.arange(VOCAB) < 12
    for other in (~chosen, first, torch.zeros_like(chosen), chosen | first):
        assert "its tables disagree" in refused(read, offsets, other)
    assert "d2t names 12 ids, t2d 12, and both name 5 of them" in refused(read, torch.zeros_like(offsets), chosen)
    for given, message in (
        ((offsets, chosen.long()), "t2d is of the type I64, not BOOL"),
        ((torch.full((12,), VOCAB),), "its d2t table"),
        ((torch.arange(12, 0, -1),), "its d2t table"),
        ((torch.full((12,), 2**63 - 1),), "its d2t table"),
        ((torch.zeros(11, dtype=torch.long),), "d2t has the shape"),
        ((torch.zeros(12),), "d2t is of the type F32"),
    ):
        assert message in refused(read, *given)


# --- training, and names ----------------------------------------------------------------------------------------------


def check_lent(kind, write, target, tmp_path, lent, tables_of) -> None:
    """What is the target's own does not learn: in a fresh head of a part of the ids, and in one trained further."""
    ids, target = torch.tensor([1, 2, 5, 7]), target.float()
    args = argparse.Namespace(kind=kind, init=None, intermediate=None, layers=None, seed=0)
    made = KINDS[kind].fresh(target, Fewer(), args, ids)
    table, output = weights_of(target)
    assert {name for name, weight in made.named_parameters() if not weight.requires_grad} == lent
    write(tmp_path / "head", made, "some/target", ["LlamaForCausalLM"], ids=ids)
    args.init = str(tmp_path / "head")
    head, own = head_to_train(target, Fewer(), args)
    assert torch.equal(own, ids)
    assert {name for name, weight in head.named_parameters() if not weight.requires_grad} == lent
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
    tensors = load_file(folder / "model.safetensors")
    del tensors["embed_tokens.weight"]
    save_file(tensors, folder / "model.safetensors")
    head, ids = head_to_train(target, None, argparse.Namespace(kind="feature", init=str(folder)))
    assert ids is None
    own = {weight.data_ptr() for weight in target.parameters()}
    assert all(weight.requires_grad and weight.data_ptr() not in own for weight in head.parameters())
    assert torch.equal(head.embed_tokens.weight, target.get_input_embeddings().weight)
    assert len(list(head.parameters())) == len(list(tiny_head().parameters()))


@pytest.mark.parametrize(
    ("target", "own"),
    [("smollm2", True), ("lab:8b", False), ("models/smollm2", False), ("../models/smollm2", False), ("gpt2", False)],
)
def test_a_target_of_this_name_gets_its_own_head(target, own):
    """Any other gets the head of the lab's pair; a path is no such name."""
    found = Path(registry.own_head("feature", target))
    assert found == (names.MODELS / target / "feature" if own else names.LAB_PAIR / "feature")
    assert (found / "model.safetensors").stat().st_size <= 6_000_000
