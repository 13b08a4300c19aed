"""Entries of a head's config.json and the header of its weights: each wrong one is named, before memory is taken."""

import json
import math
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from speclab.drafts.heads import files
from speclab.drafts.heads.files import read_head, write_head
from speclab.drafts.heads.parts import rotations
from speclab.drafts.heads.schema import KINDS, Layer, Rotary, checked
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT
from tests.heads import tiny_block_head, tiny_head
from tests.tiny_models import VOCAB, tiny

LAYER, ROPE = "transformer_layer_config", "rope_parameters"
WRONG = ("false", math.nan, math.inf, -1.5, [{}], 10**30, -1)  # for every entry, whatever its type is
DRAWN = [1, 2, 5, 7, 11, 12, 20, 21, 30, 40, 41, 47]  # ids of a head that proposes twelve


@pytest.fixture(scope="module")
def target():
    return tiny("llama", num_hidden_layers=3)


def write(folder, target, kind):
    head = tiny_head() if kind == "feature" else tiny_block_head(target, markov_rank=3)
    write_head(folder, head, "some/target", ["LlamaForCausalLM"], 4)


# How a head of each kind is written into a folder, and read from there.
FILES = dict.fromkeys(KINDS, (write, lambda folder, target, kind: read_head(str(folder), target, kind)))


def written(folder, target, kind):
    FILES[kind][0](folder, target, kind)
    return folder


def read(folder, target, kind):
    return FILES[kind][1](folder, target, kind)


def entries(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def refused(folder, target, kind) -> str:
    with pytest.raises((EnvironmentProblem, UsageProblem)) as problem:
        read(folder, target, kind)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 600
    return str(problem.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_that_is_read_is_refused_by_its_name(tmp_path, target, kind):
    found = entries(written(tmp_path / "head", target, kind))
    groups = {(): KINDS[kind], (LAYER,): Layer, (LAYER, ROPE): Rotary}
    checked(found, KINDS[kind])
    n_tried = 0
    for path, group in groups.items():
        for name in group.model_fields:
            for wrong in WRONG:
                changed = json.loads(json.dumps(found))
                inner = changed
                for step in path:
                    inner = inner[step]
                inner[name] = wrong
                with pytest.raises(ValueError, match=name):
                    pytest.fail(f"{name} = {wrong} is {checked(changed, KINDS[kind])}")
                n_tried += 1
    assert n_tried > 300


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", ["null", None])
def test_what_a_head_must_say_is_named_where_it_is_missing(tmp_path, target, kind, value):
    folder = written(tmp_path / "head", target, kind)
    for name in [name for name, field in KINDS[kind].model_fields.items() if field.is_required()]:
        found = entries(folder)
        if value:
            found[name] = None
        else:
            del found[name]
        with pytest.raises(ValueError, match=f"{name} is missing or null; it should be"):
            checked(found, KINDS[kind])


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_entries_that_would_change_what_it_computes_are_refused(tmp_path, target, kind):
    folder = written(tmp_path / "head", target, kind)
    found = entries(folder)
    for what, said in (
        ("attention_factor", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1e39}),
        (
            "is 2.0; the lab does not know it, and it may change how positions turn; it should be left out",
            {"rope_type": "default", "rope_theta": 1e4, "twist": 2.0},
        ),
        ("partial_rotary_factor", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ):
        changed = found | {LAYER: found[LAYER] | {ROPE: said}}
        (folder / "config.json").write_text(json.dumps(changed))
        assert what in refused(folder, target, kind)


# Entries of published heads, and others that change nothing: by where they stand.
NEUTRAL = {
    (): {
        "base_model_ep_plan": None,
        "logit_scale": 1.0,
        "embedding_scale": 1,
        "final_logit_softcapping": None,
        "quantization_config": {},
    },
    (LAYER,): {
        "logit_scale": 1,
        "quantization_config": {},
        "partial_rotary_factor": 1.0,
        "attn_logit_softcapping": None,
        "sliding_window": None,
        "pretraining_tp": 1,
    },
    (LAYER, ROPE): {"mrope_section": [8, 4, 4], "mrope_interleaved": True, "partial_rotary_factor": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_change_nothing_are_read_and_change_nothing(tmp_path, target, kind):
    folder = written(tmp_path / "head", target, kind)
    right, found = checked(entries(folder), KINDS[kind]), entries(folder)
    found[LAYER][ROPE] = {"rope_type": "default", "rope_theta": 1e4}
    for path, more in NEUTRAL.items():
        inner = found
        for step in path:
            inner = inner[step]
        inner |= more
    assert checked(found, KINDS[kind]).transformer_layer_config.options() == right.transformer_layer_config.options()
    (folder / "config.json").write_text(json.dumps(found))
    read(folder, target, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_may_be_written_with_a_point(tmp_path, target, kind):
    found = entries(written(tmp_path / "head", target, kind))
    found[LAYER][ROPE] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2, "original_max_position_embeddings": 64}
    pointed = json.loads(json.dumps(found), parse_int=float)
    assert checked(pointed, KINDS[kind]) == checked(found, KINDS[kind])


def test_yarn_without_a_scale_of_its_own_turns_as_if_it_were_left_out(tmp_path, target):
    found = entries(written(tmp_path / "head", target, "feature"))
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    turned = []
    for more in ({}, {"mscale": 0.0, "mscale_all_dim": 0.0}, {"mscale": 0, "mscale_all_dim": 1.0}):
        found[LAYER][ROPE] = rope | more
        said = checked(found, KINDS["feature"]).transformer_layer_config
        turned.append(torch.stack(rotations(files.decoder_of(said, "llama"), torch.arange(9))))
    assert torch.equal(turned[0], turned[1])
    assert torch.equal(turned[0], turned[2])


def test_both_norms_shifted_labels_and_a_causal_block(tmp_path, target):
    folder = written(tmp_path / "head", target, "feature")
    (folder / "config.json").write_text(json.dumps(entries(folder) | {"norm_before_fc": True, "fc_norm": True}))
    assert "norm_before_fc and fc_norm" in refused(folder, target, "feature")
    block = written(tmp_path / "block", target, "block")
    right = entries(block)
    (block / "config.json").write_text(json.dumps(right | {"shift_label": True}))
    assert "shift_label is True; it should be False" in refused(block, target, "block")
    for causal in (True, False):
        (block / "config.json").write_text(json.dumps(right | {"causal": causal, "shift_label": False}))
        assert read(block, target, "block").head.config.causal is causal


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_entries_are_named_in_one_line_and_known_ones_are_not(tmp_path, target, kind, capsys):
    folder = written(tmp_path / "head", target, kind)
    read(folder, target, kind)
    assert capsys.readouterr().err == ""
    found = entries(folder)
    more = {
        "embed_requires_grad": True,
        "dtype": "bfloat16",
        "sparkle": 3,
        LAYER: found[LAYER] | {"num_labels": 10**12},
    }
    more[LAYER]["glow\x1b"] = {"x": 1}
    (folder / "config.json").write_text(json.dumps(found | more))
    read(folder, target, kind)
    err = capsys.readouterr().err
    assert "sparkle" in err
    assert "transformer_layer_config.glow" in err
    assert "\x1b" not in err
    assert len(err.splitlines()) == 1
    assert "embed_requires_grad" not in err
    assert "dtype" not in err


JSON = {
    "deep": b'{"x": ' + b"[" * 100_000,
    "twice": b'{"draft_vocab_size": 48, "draft_vocab_size": 12, "draft_vocab_size": 48}',
    "digits": b'{"x": ' + b"9" * 5000 + b"}",
    "a list": b"[1]",
    "large": b" " * 2**21,
    "no UTF-8": b'{"x": "\xff"}',
}


@pytest.mark.parametrize("kind", ["feature"])
@pytest.mark.parametrize("content", JSON.values(), ids=JSON)
def test_damaged_json_is_one_line(tmp_path, target, kind, content):
    folder = written(tmp_path / "head", target, kind)
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refused(folder, target, kind)


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_many_layer_ids_are_refused_by_their_number(tmp_path, target, kind):
    folder = written(tmp_path / "head", target, kind)
    name = "eagle_aux_hidden_state_layer_ids" if kind == "feature" else "aux_hidden_state_layer_ids"
    (folder / "config.json").write_text(json.dumps(entries(folder) | {name: [1] * 300_000, "fc_norm": True}))
    assert name in refused(folder, target, kind)


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


@pytest.mark.parametrize("kind", KINDS)
def test_names_shapes_and_types_are_compared_before_a_number_is_read(tmp_path, target, kind, monkeypatch):
    folder = written(tmp_path / "head", target, kind)
    right = load_file(folder / "model.safetensors")
    monkeypatch.setattr(files, "safe_open", Unread)
    wide = {"norm.weight": torch.ones(33).double()}
    for changes, message in (
        (wide, "norm.weight has the shape (33,)"),
        ({"norm.weight": None}, "norm.weight is missing"),
        ({"more.weight": torch.ones(3)}, "more.weight is a weight that"),
        ({"norm.weight": torch.ones(32, dtype=torch.int64)}, "norm.weight is of the type I64"),
        ({"norm.weight": torch.ones(32).to(torch.float8_e4m3fn)}, "norm.weight is of the type F8"),
        ({}, "a tensor was read"),
    ):
        changed = {name: tensor for name, tensor in (right | changes).items() if tensor is not None}
        save_file(changed, folder / "model.safetensors")
        assert message in refused(folder, target, kind)


def test_a_sparse_file_of_half_a_gigabyte_takes_no_memory(tmp_path, target):
    """Its header declares an embedding of 2**28 numbers, and the disk holds none of them."""
    folder = written(tmp_path / "head", target, "feature")
    n_bytes = 2**29
    header = {"norm.weight": {"dtype": "BF16", "shape": [2**14, 2**14], "data_offsets": [0, n_bytes]}}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + n_bytes)
    assert "is missing" in refused(folder, target, "feature")


def with_tables(folder, target, offsets, chosen):
    """This writes a head that proposes twelve ids, with these tables."""
    write_head(folder, tiny_head(draft_vocab=12), "some/target", ["LlamaForCausalLM"], 4)
    tables = {"d2t": offsets, "t2d": chosen}
    tensors = load_file(folder / "model.safetensors") | {k: v for k, v in tables.items() if v is not None}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_tables_that_disagree_are_refused(tmp_path, target):
    ids = torch.tensor(DRAWN)
    offsets, chosen = ids - torch.arange(12), torch.zeros(VOCAB, dtype=torch.bool)
    chosen[ids] = True
    for table in (chosen, None):
        folder = with_tables(tmp_path / "right", target, offsets, table)
        assert torch.equal(read_head(str(folder), target).ids, ids)
    first = torch.arange(VOCAB) < 12
    for other in (~chosen, first, torch.zeros_like(chosen), chosen | first):
        assert "its tables disagree" in refused(
            with_tables(tmp_path / "wrong", target, offsets, other), target, "feature"
        )
    zeros = with_tables(tmp_path / "zeros", target, torch.zeros_like(offsets), chosen)
    assert "d2t names 12 ids, t2d 12, and both name 5 of them" in refused(zeros, target, "feature")
    wrong_type = with_tables(tmp_path / "type", target, offsets, chosen.long())
    assert "t2d is of the type I64, not BOOL" in refused(wrong_type, target, "feature")


@pytest.mark.parametrize("kind", KINDS)
def test_the_labs_own_heads_say_nothing_unknown(kind):
    found = files.read_config(ROOT / "models" / "lab-pair" / kind / "config.json")
    checked(found, KINDS[kind])
    assert files.schema().unknown(found, KINDS[kind]) == []
