"""The choice of an engine: what `c` cannot run stays eager, and nothing wrong gets through the check."""

import importlib.util
import sys

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from speclab.engines import c_pass, eager
from speclab.models import setup
from speclab.models.cached import CachedModel
from tests.decoding import row_of
from tests.engines.families import tiny as tiny_case
from tests.mutants.bugs import ROOT, mutants_of
from tests.tiny_models import VOCAB, tiny

ENGINES = mutants_of(ROOT / "tests" / "mutants" / "engines.txt")


def float32(family: str = "llama", **changes):
    return tiny(family, dtype=torch.float32, **changes)


def mixtral():
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return MixtralForCausalLM(MixtralConfig(**sizes, num_key_value_heads=2, vocab_size=VOCAB)).eval()


def damaged():
    model = float32(seed=5)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3] = torch.nan
    return model


def headless():
    model = float32()
    model.lm_head = None
    return model


OTHERS = (torch.float64, torch.bfloat16, torch.float16)
CHOICES = {  # the model, the wish, the engine, and words of the reason
    "auto": (float32, "auto", "c", "a whole pass in C"),
    "c": (float32, "c", "c", "asked for"),
    "eager": (float32, "eager", "eager", "asked for"),
    "graphs": (float32, "graphs", "eager", "is for CUDA"),
    "another family": (mixtral, "auto", "eager", "does not know mixtral"),
    "another activation": (lambda: float32(hidden_act="tanh"), "auto", "eager", "the activation tanh"),
    "damaged weights": (damaged, "auto", "eager", "off by nan"),
    "any trouble": (headless, "c", "eager", "AttributeError"),
    **{str(dtype): (lambda dtype=dtype: tiny("llama", dtype=dtype), "auto", "eager", "float32") for dtype in OTHERS},
}


@pytest.mark.parametrize(("make", "wish", "engine", "words"), CHOICES.values(), ids=CHOICES)
def test_the_engine_and_the_reason_are_these(make, wish, engine, words):
    fast, why = setup.choose_engine(model := make(), wish)
    assert CachedModel(model, fast=fast).engine == engine
    assert words in why
    assert len(why.splitlines()) == 1


def test_wrong_logits_are_no_engine_however_noisy_the_eager_one(monkeypatch):
    """The bound comes from uncached logits: an eager cache that is broken as well does not widen it."""
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n_tokens, length: None)
    right = c_pass.CBackend.run
    monkeypatch.setattr(c_pass.CBackend, "run", lambda *args: right(*args).flip(-1))
    fast, why = setup.choose_engine(float32(), "c")
    assert fast is None
    assert float(why.rpartition("rounding explains ")[2]) < 1e-3


def test_an_engine_that_loses_what_was_rolled_back_is_refused(monkeypatch):
    """Its logits are right as long as nothing is rejected."""
    monkeypatch.setattr(c_pass.CBackend, "crop", loses_its_last_key)
    fast, why = setup.choose_engine(float32(), "c")
    assert fast is None
    assert "off by" in why


def loses_its_last_key(backend: c_pass.CBackend, n_tokens: int, length: int) -> None:
    if n_tokens:
        keys, _ = row_of(backend, length - n_tokens - 1)
        with torch.inference_mode():
            keys.zero_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_of_the_weights_needs_room(dtype, monkeypatch):
    """Half as much where bfloat16 holds them."""
    model = float32().to(dtype).float()
    needed = sum(p.numel() for p in model.parameters()) * dtype.itemsize / setup.USABLE
    for share, fits in ((0.95, False), (1.05, True)):
        monkeypatch.setattr(setup, "free_memory", lambda device, share=share: share * needed)
        fast, why = setup.choose_engine(model, "c")
        assert (fast is not None) == fits
        assert ("its copy of the weights takes" in why) != fits


def test_the_model_itself_is_left_as_it_was():
    """Weights are packed as copies; checks and `generate` go on using the model."""
    model = float32("qwen2")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    assert setup.build_engine(model)[0] is not None
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())


@pytest.mark.parametrize("mutant", [one for one in ENGINES if one.refused], ids=lambda one: one.what)
def test_the_check_at_load_refuses_a_pass_that_is_wrong(mutant, monkeypatch):
    """Mistakes that a chain of tokens shows. Trees have a check of their own (speclab/extensions/trees/register.py)."""
    model = tiny_case(mutant.refused)
    assert setup.build_engine(model)[0] is not None
    for name in dict.fromkeys([mutant.apply.name, c_pass.__name__]):
        spec = mutant.apply.find_spec(name) or sys.modules[name].__spec__
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules[name])
    monkeypatch.setattr(setup, "CModel", sys.modules[c_pass.__name__].CModel)
    fast, why = setup.build_engine(model)
    assert fast is None
    assert "off by" in why
