"""Weights in several places, or quantised: the same text, on the eager engine."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import optimized_speculative
from draft_models import ModelDrafter
from speclab.core.sampling import Sampling
from speclab.models import loading, setup
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference
from tests.decoding import plain_text, speculative_rounds
from tests.llamas import tiny_llama
from tests.tiny_models import perturbed

MAP = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
MAP |= {"model.norm": "cpu", "lm_head": "cpu"}
N_NEW = 30
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("model"))
    tiny_llama(3, n_layers=2, dtype=torch.float32).save_pretrained(folder)
    return folder


def spread(folder: str, dtype: torch.dtype = torch.float32):
    """The model with a layer on the disk, which is not the lab's to do: a machine without GPUs has no other place."""
    kind = AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=dtype, device_map=MAP, offload_folder=f"{folder}/disk").eval()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "sampled"])
def test_texts_and_rounds_are_those_of_the_model_in_one_place(folder, prompt, sampling):
    whole, apart = loading.load_model(folder, torch.device("cpu"), torch.float32), spread(folder)
    assert {parameter.device.type for parameter in apart.parameters()} == {"cpu", "meta"}
    assert plain_text(CachedModel(apart), prompt, N_NEW) == plain_text(CachedModel(whole), prompt, N_NEW)
    drafter = ModelDrafter(CachedModel(perturbed(whole, 0.2)))
    mine, theirs = (
        list(speculative_rounds(CachedModel(one), drafter, prompt, 3, N_NEW, sampling)) for one in (apart, whole)
    )
    assert mine == theirs
    assert any(0 < r.n_accepted < r.n_drafted for r in mine)


def quantised(_):
    model = tiny_llama(3).bfloat16()
    model.hf_quantizer = SimpleNamespace()
    return model


MADE = [(lambda folder: spread(folder, torch.bfloat16), "its modules are on cpu, disk")]
MADE += [(quantised, "its weights are quantised")]


@pytest.mark.parametrize(("make", "said"), MADE)
def test_a_spread_model_runs_eagerly(folder, make, said):
    """And so does a quantised one; neither has a copy in float32."""
    model = make(folder)
    for wish in ("auto", "c"):
        assert setup.choose_engine(model, wish) == (None, f"llama runs eagerly: {said}")
    assert loading.describe_model("x", model).endswith(said)
    assert Reference(model)._higher is model


def test_the_word_is_passed_through(pair_folder, capsys):
    """A script decodes with it, and the library alone says what it cannot do."""
    words = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", "8"]
    words += ["--threads", "1", "--draft", str(pair_folder / "draft"), "-k", "2"]
    texts = []
    for more in ([], ["--device-map", "auto"]):
        assert optimized_speculative.main([*words, *more]) == 0
        texts.append(capsys.readouterr().out.partition("tokens,")[0])
    assert texts[0] == texts[1]
