"""Weights in several places, or quantised: the same text, on the eager engine; or one line of refusal."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import optimized_speculative
from draft_models import ModelDrafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.models import engine_choice, loading
from speclab.models.cached import CachedModel
from speclab.models.checking import rounding
from speclab.models.outside import placement
from speclab.system.errors import EnvironmentProblem
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


def loaded(folder: str):
    return loading.load_model(folder, torch.device("cpu"), torch.float32)


def spread(folder: str):
    """The model with a layer on the disk, which is not the lab's to do: a machine without GPUs has no other place."""
    pytest.importorskip("accelerate")
    kind = AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, device_map=MAP, offload_folder=f"{folder}/disk").eval()


# --- the same text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "sampled"])
def test_texts_and_rounds_are_those_of_the_model_in_one_place(folder, sampling):
    check_the_same_rounds(folder, sampling, lambda drafter: drafter)


def check_the_same_rounds(folder, sampling, change):
    """With the weights in several places and in one, with `change(drafter of a model)` as the drafter."""
    whole, apart = loaded(folder), spread(folder)
    assert {parameter.device.type for parameter in apart.parameters()} == {"cpu", "meta"}
    assert plain_text(CachedModel(apart), PROMPT, N_NEW) == plain_text(CachedModel(whole), PROMPT, N_NEW)

    def rounds_of(model) -> list:
        target, drafter = CachedModel(model), change(ModelDrafter(CachedModel(perturbed(whole, 0.2))))
        target.hidden_layers = (0, 1)
        generator = torch.Generator().manual_seed(0)
        return list(speculative_rounds(target, drafter, PROMPT, 3, N_NEW, sampling, generator))

    mine, theirs = rounds_of(apart), rounds_of(whole)
    assert mine == theirs
    assert any(0 < r.n_accepted < r.n_drafted for r in mine)


def test_a_spread_model_runs_eagerly(folder):
    model = spread(folder)
    assert engine_choice.choose(model, "c") == (None, "llama runs eagerly: its weights lie on several devices")
    assert placement.describe(model) == "modules on cpu: 5, disk: 1"
    assert rounding._in_higher_precision(model) is None


def test_the_word_is_passed_through(pair_folder, capsys):
    """A script decodes with it, and the library alone says what it cannot do."""
    pytest.importorskip("accelerate")
    words = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", "8"]
    words += ["--threads", "1", "--draft", str(pair_folder / "draft"), "-k", "2"]
    texts = []
    for more in ([], ["--device-map", "auto"]):
        assert optimized_speculative.main([*words, *more]) == 0
        texts.append(capsys.readouterr().out.partition("tokens,")[0])
    assert texts[0] == texts[1]
    assert optimized_speculative.main([*words, "--device-map", "map.json"]) == 2
    assert "choose from auto, balanced, sequential" in capsys.readouterr().err.replace("'", "")


# --- quantised weights ------------------------------------------------------------------------------------------------


def test_quantised_weights_stay_as_they_are():
    model = tiny_llama(3, dtype=torch.float32)
    assert not placement.is_quantised(model)
    model.hf_quantizer = SimpleNamespace()
    assert engine_choice.choose(model, "auto") == (None, "llama runs eagerly: its weights are quantised")
    assert placement.describe(model) == "quantised"
    assert rounding._in_higher_precision(model) is None


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
