"""Adapters for early exit in files, by `--draft exit:N` and `exit:FOLDER`, and what rounds with them cost."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import compare
import optimized_speculative
from optimized_speculative import speculative_decode
from speclab import load
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength
from speclab.drafts.suffix import SuffixDrafter
from speclab.extensions.exits.adapter_files import FORMAT, exit_layer_of, read_adapter, write_adapter
from speclab.extensions.exits.drafter import ExitDrafter
from speclab.extensions.exits.tests.adapters import tiny_adapter
from speclab.lab.instruments import LoopFunctions
from speclab.lab.round_costs import measure_costs
from speclab.models import loading
from speclab.models import prompts as lab_prompts
from speclab.models.cached import CachedModel
from speclab.models.padded.padding import pad_to
from speclab.models.setup import Setup
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.decoding import speculative_rounds
from tests.heads import prompts
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def target():
    return tiny("llama", num_hidden_layers=3)


@pytest.fixture
def folder(target, tmp_path):
    write_adapter(tmp_path / "adapter", tiny_adapter(target, 2), "some/target", ["LlamaForCausalLM"])
    return tmp_path / "adapter"


def edited(folder, **changes):
    """The same config.json with other entries; None takes one away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_what_is_written_comes_back(target, folder):
    """All but the output layer, which is the target's."""
    adapter = tiny_adapter(target, 2)
    found = read_adapter(str(folder), target)
    assert found.config.exit_layer == exit_layer_of(str(folder)) == 2
    weights = found.state_dict()
    assert weights.keys() == adapter.state_dict().keys() == load_file(folder / "model.safetensors").keys()
    assert not any("output" in name for name in weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in adapter.state_dict().items())
    assert torch.equal(found.output.weight, target.get_output_embeddings().weight)
    config = json.loads((folder / "config.json").read_text())
    assert (config["format"], config["target_layers"]) == (FORMAT, 3)
    assert config["target"] == {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]}


LAYER = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 48}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "eagle3"}, "its format is 'eagle3'; --draft exit reads"),
        ({"exit_layer": 0}, "it exits after layer 0 of 3"),
        ({"exit_layer": 3}, "it exits after layer 3 of 3"),
        ({"target_layers": 2**20, "exit_layer": 2**19}, "belongs to a target with 1048576 layers"),
        ({"transformer_layer_config": LAYER | {"num_hidden_layers": 2}}, "with 2 layers of llama of its own"),
        ({"transformer_layer_config": LAYER | {"vocab_size": 50}}, "50 ids; this one has 3 layers of width 32 and 48"),
    ],
)
def test_a_config_that_does_not_fit_is_one_line(target, folder, changes, message):
    edited(folder, **changes)
    with pytest.raises((EnvironmentProblem, UsageProblem), match=message) as problem:
        read_adapter(str(folder), target)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500


def test_damaged_and_foreign_adapters_are_one_line(target, folder):
    for other in (tiny("llama"), tiny("llama", num_hidden_layers=3, hidden_size=64)):
        with pytest.raises(UsageProblem, match="3 layers of width 32 and 48 ids; this one has"):
            read_adapter(str(folder), other)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if "norm" not in name}, folder / "model.safetensors")
    with pytest.raises(EnvironmentProblem, match="its weights cannot be used"):
        read_adapter(str(folder), target)
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(EnvironmentProblem, match=r"its config\.json and weights cannot be used"):
        read_adapter(str(folder), target)
    (folder / "config.json").write_text("[")
    assert exit_layer_of(str(folder)) is None


def test_a_padded_target_is_drafted_for_as_the_one_that_it_was_padded_from():
    """Its states begin with the small one's."""
    changes = {"num_hidden_layers": 4, "num_key_value_heads": 4, "head_dim": 8}
    small = tiny("llama", dtype=torch.float32, **changes)
    shape = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 96}
    wide = pad_to(small, shape | {"num_hidden_layers": 5}, torch.device("cpu"), torch.float32)
    assert wide.config.hidden_size > 32
    found = []
    for model in (small, wide):
        adapter = tiny_adapter(small, 2)
        target = CachedModel(model)
        target.hidden_layers = (1,)
        drafter = ExitDrafter(adapter)
        found.append(list(speculative_rounds(target, drafter, prompts(1), 3, 20)))
    assert found[0] == found[1]


# --- by name ---------------------------------------------------------------------------------------------------------


def test_names_of_adapters(folder):
    layer = exit_layer_of(loading.LAB_PAIR / "exit")
    for kind in ("exit", f"exit:{layer}", f"hybrid:suffix+exit:{layer}", f"exit:{folder}"):
        registry.read(kind)
    assert registry.read("exit").name == registry.read(f"exit:0{layer}").name == f"exit:{layer}"
    assert registry.read(f"exit:{folder}").name == "exit:adapter"
    assert registry.read(f"hybrid:ngram+exit:{folder}").name == "hybrid:ngram+exit:adapter"


class Graphed:
    """A form that cannot be run in two parts."""

    graphed = True


def test_an_engine_that_cannot_split_gives_way_to_the_eager_one(target, folder, capsys):
    """In both arms, and other drafts are made afterwards."""
    setup = Setup(
        CachedModel(target, fast=Graphed()),
        None,
        "tiny",
        Sampling(),
        torch.device("cpu"),
        torch.float64,
        {"engine": ""},
    )
    made = registry.make_all(registry.read_all(["ngram", f"exit:{folder}"]), setup, 0)
    assert list(made) == ["ngram", "exit:adapter"]
    assert setup.engine == setup.target.engine == "eager"
    assert "CUDA graphs do not" in setup.reasons["engine"]
    assert "both arms run on the eager engine" in capsys.readouterr().err
    assert setup.target.hidden_layers == (1,)


# --- in the scripts --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair_adapter(pair_folder, tmp_path):
    """A random adapter for the tiny pair's target, as --draft takes it."""
    target = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    write_adapter(tmp_path / "adapter", tiny_adapter(target, 1), "tiny", ["LlamaForCausalLM"])
    return f"exit:{tmp_path / 'adapter'}"


def test_one_script_decodes_with_it(pair_folder, pair_adapter, capsys):
    common = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", "12"]
    common += ["--ignore-eos", "--threads", "1", "--engine", "c", "-k", "auto"]
    texts = []
    for draft in (f"hybrid:suffix+{pair_adapter}", "ngram"):
        assert optimized_speculative.main([*common, "--draft", draft]) == 0
        texts.append(capsys.readouterr().out.split("def f(x):")[-1].splitlines()[0])
    assert texts[0] == texts[1]


def test_a_comparison_proves_it_forecasts_it_and_names_it(pair_folder, pair_adapter, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lab_prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    words = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},{pair_adapter}", "-k", "2"]
    words += ["--limit", "1", "--max-new-tokens", "16", "--threads", "1", "--engine", "eager"]
    assert compare.main([*words, "--out-dir", str(tmp_path / "out")]) == 0
    assert "token for token: identical" in capsys.readouterr().out
    run = read(tmp_path / "out" / "results" / "local.json", ComparisonRun)
    rows = [row for row in run.rows if row.method == "exit:adapter" and row.prompt_kind == "all"]
    assert [row.temperature for row in rows] == [0.0, 0.8]
    assert all(row.forecast is not None for row in rows)
    assert run.models["exit:adapter"].startswith("exit:adapter: the target's first 1 of 2 layers, and an adapter")


# --- costs -----------------------------------------------------------------------------------------------------------


def test_a_lookups_rounds_are_priced_apart(target, monkeypatch):
    """With early exit the rest of a round is a part of a pass; where a lookup drafts, the pass is whole."""
    cached = CachedModel(target)
    cached.hidden_layers = (1,)
    seconds = {True: 1.0, False: 3.0}

    def rounds(functions, target, drafter, prompts, settings, asked):
        timed = []
        (round_,) = speculative_rounds(CachedModel(tiny("llama")), SuffixDrafter(), prompts[0], 2, 1)
        for own in (True, False):
            for n in range(9):
                phases = {"draft": 0.1 * n, "verify": seconds[own] + n}
                timed.append((round_._replace(n_drafted=n, seconds=phases), own))
        return timed

    monkeypatch.setattr("speclab.lab.round_costs.timed_rounds", rounds)
    settings = DecodeSettings(20)
    for inner in (ExitDrafter(tiny_adapter(target, 2)), AutoLength(ExitDrafter(tiny_adapter(target, 2)))):
        hybrid = HybridDrafter(SuffixDrafter(), inner)
        measure_costs(LoopFunctions(speculative_decode), cached, hybrid, [prompts(1)], settings)
        assert hybrid.costs[0.0].rest == tuple(1.0 + n for n in range(9))
        assert hybrid.costs[0.0].looked_up == tuple(3.0 + n for n in range(9))


def test_costs_are_measured(target):
    cached = CachedModel(target)
    cached.hidden_layers = (1,)
    auto = AutoLength(ExitDrafter(tiny_adapter(target, 2)))
    measure_costs(LoopFunctions(speculative_decode), cached, auto, [prompts(1)], DecodeSettings(40, Sampling(0.8)))
    costs = auto.costs[0.8]
    assert len(costs.draft) == len(costs.rest) == len(costs.looked_up) == 9
    assert min(costs.rest) > 0
