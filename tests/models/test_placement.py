"""Weights in several places, or quantised: the same text, on the eager engine; or one line of refusal."""

import copy
import gc
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import optimized_speculative
from draft_models import ModelDrafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.models import engine_choice, loading
from speclab.models.cached import CachedModel
from speclab.models.checking import rounding
from speclab.models.outside import device_maps, placement
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.llamas import VOCAB, tiny_llama
from tests.tiny_models import perturbed

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(2))
MAP = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
MAP |= {"model.norm": "cpu", "lm_head": "cpu"}
N_NEW = 30


@pytest.fixture
def folder(tmp_path):
    tiny_llama(3, n_layers=2, dtype=torch.float32).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def loaded(folder: str, device_map=None):
    return loading.load_model(folder, torch.device("cpu"), torch.float32, device_map=device_map)


# --- the same text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "sampled"])
def test_texts_and_rounds_are_those_of_the_model_in_one_place(folder, sampling):
    check_the_same_rounds(folder, sampling, lambda drafter: drafter)


def check_the_same_rounds(folder, sampling, change):
    """With the weights in several places and in one, with `change(drafter of a model)` as the drafter."""
    pytest.importorskip("accelerate")
    whole, spread = loaded(folder), loaded(folder, MAP)
    assert {parameter.device.type for parameter in spread.parameters()} == {"cpu", "meta"}
    assert plain_text(CachedModel(spread), PROMPT, N_NEW) == plain_text(CachedModel(whole), PROMPT, N_NEW)

    def rounds_of(model) -> list:
        drafter = change(ModelDrafter(CachedModel(perturbed(whole, 0.2))))
        target = CachedModel(model)
        target.hidden_layers = (0, 1)
        generator = torch.Generator().manual_seed(0)
        return list(speculative_rounds(target, drafter, PROMPT, 3, N_NEW, sampling, generator))

    mine, theirs = rounds_of(spread), rounds_of(whole)
    assert tokens_of(mine) == tokens_of(theirs)
    assert [(r.n_drafted, r.n_accepted) for r in mine] == [(r.n_drafted, r.n_accepted) for r in theirs]
    assert any(0 < r.n_accepted < r.n_drafted for r in mine)


def test_a_spread_model_runs_eagerly_and_its_weights_on_disk_go_with_it(folder, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setattr(placement.tempfile, "tempdir", str(tmp_path))
    model = loaded(folder, MAP)
    (on_disk,) = tmp_path.glob("weights-*")
    assert engine_choice.choose(model, "c") == (None, "llama runs eagerly: its weights lie on several devices")
    assert placement.describe(model) == "modules on cpu: 5, disk: 1"
    assert rounding._in_higher_precision(model) is model
    del model
    gc.collect()
    assert not on_disk.exists()


def test_one_script_decodes_with_it(pair_folder, tmp_path, capsys):
    pytest.importorskip("accelerate")
    file = tmp_path / "map.json"
    file.write_text(json.dumps(MAP))
    words = [
        "--target",
        str(pair_folder / "target"),
        "--prompt",
        "def f(x):",
        "--max-new-tokens",
        "8",
        "--threads",
        "1",
    ]
    words += ["--draft", str(pair_folder / "draft"), "-k", "2"]
    texts = []
    for more in ([], ["--device-map", str(file)]):
        assert optimized_speculative.main([*words, *more]) == 0
        captured = capsys.readouterr()
        texts.append(captured.out.partition("tokens,")[0])
    assert texts[0] == texts[1]
    assert "modules on cpu: 5, disk: 1" in captured.err + captured.out


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is no plan and no JSON file"),
        ("{", "is no plan and no JSON file"),
        ("[1]", "holds no devices of modules"),
        ("{}", "holds no devices of modules"),
        ('{"model": "tpu"}', "'tpu'; a device is 0, 1"),
        ('{"model": -1}', "-1; a device is 0, 1"),
        ('{"model": true}', "True; a device is 0, 1"),
    ],
)
def test_files_that_are_no_device_map(tmp_path, content, said):
    file = tmp_path / "map.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageProblem, match=said) as problem:
        device_maps.read_device_map(str(file))
    assert "\n" not in str(problem.value)


def test_what_a_device_map_needs(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(placement.torch.cuda, "device_count", lambda: 1)
    pytest.importorskip("accelerate")
    with pytest.raises(EnvironmentProblem, match="there is no GPU 1 here"):
        placement.map_options({"model": 1})
    monkeypatch.setattr(placement.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="the embeddings must lie where passes run"):
        loaded(folder, MAP | {"model.embed_tokens": "disk"})
    with pytest.raises(EnvironmentProblem, match="leaves out some of its weights; name the modules of all"):
        loaded(folder, {name: place for name, place in MAP.items() if name not in ("model.norm", "lm_head")})
    gc.collect()
    assert not list(tmp_path.glob("weights-*")), "nothing is left of a model that was not loaded"
    monkeypatch.setattr(placement.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="pip install accelerate"):
        placement.map_options("auto")


# --- quantised weights ------------------------------------------------------------------------------------------------


def test_quantised_weights_stay_as_they_are():
    model = copy.deepcopy(tiny_llama(3, dtype=torch.float32))
    assert not placement.is_quantised(model)
    model.hf_quantizer = SimpleNamespace()
    assert engine_choice.choose(model, "auto") == (None, "llama runs eagerly: its weights are quantised")
    assert placement.describe(model) == "quantised"
    assert rounding._in_higher_precision(model) is model


def test_a_checkpoint_whose_package_is_missing_is_one_line(folder):
    file = Path(folder) / "config.json"
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantised}))
    with pytest.raises(EnvironmentProblem, match="cannot load") as problem:
        loaded(folder)
    assert "\n" not in str(problem.value)


def test_a_quantised_checkpoint_is_decoded_as_it_is(folder, tmp_path):
    torchao = pytest.importorskip("torchao.quantization")
    transformers = pytest.importorskip("transformers")
    settings = transformers.TorchAoConfig(torchao.Int8WeightOnlyConfig())
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32, quantization_config=settings, device_map={"": "cpu"})
    model.save_pretrained(tmp_path / "quantised")
    model = loaded(str(tmp_path / "quantised"))
    assert placement.is_quantised(model)
    drafter = ModelDrafter(CachedModel(loaded(folder)))
    rounds = list(speculative_rounds(CachedModel(model), drafter, PROMPT, 3, N_NEW))
    assert tokens_of(rounds) == plain_text(CachedModel(model), PROMPT, N_NEW)
