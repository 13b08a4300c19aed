"""Weights in several places, or quantised: the same text, on the eager engine; or one line of refusal."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import optimized_speculative
from draft_models import ModelDrafter
from speclab.core.sampling import Sampling
from speclab.models import engine_choice, loading
from speclab.models.cached import CachedModel
from speclab.models.checking.rounding import Reference
from speclab.system.errors import EnvironmentProblem
from tests.decoding import plain_text, speculative_rounds
from tests.llamas import tiny_llama
from tests.tiny_models import perturbed

MAP = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
MAP |= {"model.norm": "cpu", "lm_head": "cpu"}
N_NEW = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("model"))
    tiny_llama(3, n_layers=2, dtype=torch.float32).save_pretrained(folder)
    return folder


def loaded(folder: str):
    return loading.load_model(folder, torch.device("cpu"), torch.float32)


def spread(folder: str, dtype: torch.dtype = torch.float32):
    """The model with a layer on the disk, which is not the lab's to do: a machine without GPUs has no other place."""
    pytest.importorskip("accelerate")
    kind = AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=dtype, device_map=MAP, offload_folder=f"{folder}/disk").eval()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "sampled"])
def test_texts_and_rounds_are_those_of_the_model_in_one_place(folder, prompt, sampling):
    check_the_same_rounds(folder, prompt, sampling, lambda drafter: drafter)


def check_the_same_rounds(folder, prompt, sampling, change):
    """With the weights in several places and in one, with `change(drafter of a model)` as the drafter."""
    whole, apart = loaded(folder), spread(folder)
    assert {parameter.device.type for parameter in apart.parameters()} == {"cpu", "meta"}
    assert plain_text(CachedModel(apart), prompt, N_NEW) == plain_text(CachedModel(whole), prompt, N_NEW)

    def rounds_of(model) -> list:
        target, drafter = CachedModel(model), change(ModelDrafter(CachedModel(perturbed(whole, 0.2))))
        target.hidden_layers = (0, 1)
        return list(speculative_rounds(target, drafter, prompt, 3, N_NEW, sampling))

    mine, theirs = rounds_of(apart), rounds_of(whole)
    assert mine == theirs
    assert any(0 < r.n_accepted < r.n_drafted for r in mine)


def quantised(folder: str):
    model = loaded(folder).bfloat16()
    model.hf_quantizer = SimpleNamespace()
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: spread(folder, torch.bfloat16), "modules on cpu: 5, disk: 1"),
        (quantised, "its weights are quantised"),
    ],
)
def test_a_spread_model_runs_eagerly(folder, make, said):
    """And so does a quantised one; neither has a copy in float32."""
    model = make(folder)
    for wish in ("auto", "c"):
        assert engine_choice.choose(model, wish) == (None, f"llama runs eagerly: {said}")
    assert loading.describe_model("x", model).endswith(said)
    assert Reference(model)._higher is model


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


def test_a_checkpoint_whose_package_is_missing_is_one_line(tmp_path):
    tiny_llama(3).save_pretrained(tmp_path)
    file = Path(tmp_path) / "config.json"
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": gptq}))
    with pytest.raises(EnvironmentProblem, match="cannot load") as problem:
        loaded(str(tmp_path))
    assert "\n" not in str(problem.value)
