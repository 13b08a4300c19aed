"""The rounded target: its numbers, what it shares with the target, the contract of all drafts, and what is refused."""

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.pytorch_utils import Conv1D

from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.extensions.int8 import rounded
from speclab.extensions.int8.register import Int8Drafter
from speclab.models import setup
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.cli.bad_inputs import Row, S
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture
from tests.contract import WAYS, check
from tests.tiny_models import on_engine, tiny


def coarse(model, on_engine) -> Int8Drafter:
    """A tiny model that is rounded to 8 bits is always right, so its weights are rounded to fewer steps here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounded, "STEPS", 6)
        copied = rounded.rounded(model)
    return Int8Drafter(on_engine(copied))


def in_a_tree(*given):
    return pytest.importorskip("speclab.extensions.trees.fixed").TreeDrafter(coarse(*given), (2, 2, 1))


@pytest.mark.parametrize("make", [coarse, in_a_tree])
@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
def test_a_draft_keeps_the_contract(engine, sampling, make):
    check(make, engine, sampling)


@pytest.mark.parametrize("engine", ["eager", "c"])
def test_a_note_says_where_it_is_as_slow_as_the_target(engine, capsys):
    model = tiny("llama", dtype=torch.float32)
    target = CachedModel(model, fast=on_engine(engine, model))
    registry.make("int8", setup.Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float32))
    assert ("costs as much as the target" in capsys.readouterr().err) == (engine == "eager")


def test_rows_are_whole_multiples_of_their_steps():
    """No kernel has a part in it, so every processor gives these numbers. Each row has its own step, and zeros stay."""
    torch.manual_seed(0)
    weight = torch.randn(24, 40) * torch.logspace(-3, 2, 24)[:, None]
    weight[5] = 0.0
    found = rounded.rounded_rows(weight).double()
    steps = weight.double().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    assert ((found / steps) - (found / steps).round()).abs().max() < 1e-4
    assert ((found - weight).abs() <= 0.501 * steps).all()
    assert (found[5] == 0).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_window"])
def test_both_engines_compute_with_the_same_weights(family):
    """The engine c reads a byte for each, and gives the library's logits of the same model."""
    copied = rounded.rounded(tiny(family, dtype=torch.float32))
    fast = setup.on_c(copied)
    setup.check_engine(copied, fast)
    n_weights = sum(layer.weight.numel() for layer in matrices(copied))
    assert 2.5 * n_weights < fast.bytes_spared < 3 * n_weights, "three of four bytes, less the scales"


def matrices(model) -> list[nn.Module]:
    """The linear layers, and those that the library calls Conv1D."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | Conv1D)]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_window"])
def test_everything_but_the_matrices_is_the_targets(family, tied):
    """A table that is both embedding and output layer is rounded as the output layer alone."""
    model = tiny(family, dtype=torch.float32, tie_word_embeddings=tied)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = rounded.rounded(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    rounded_ones = {id(layer.weight) for layer in matrices(copied)}
    assert len(rounded_ones) == len(matrices(model))
    assert not rounded_ones & own
    assert {id(tensor) for tensor in (*copied.parameters(), *copied.buffers())} - rounded_ones <= own
    assert copied.get_input_embeddings().weight is model.get_input_embeddings().weight
    ids = torch.arange(12)[None]
    right, found = model(ids).logits, copied(ids).logits
    assert 0 < (found - right).abs().max() < 0.1 * right.abs().max()
    assert CachedModel(copied).vocab_size == CachedModel(model).vocab_size


def test_a_model_that_is_hardly_rounded_is_refused():
    """The experts of a mixture lie in no linear layers, and hold most of its numbers. All matrices of GPT-2 do."""
    assert rounded.share_rounded(tiny("gpt2")) == rounded.share_rounded(tiny("llama")) == 1.0
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8}
    config = MixtralConfig(vocab_size=48, intermediate_size=64, num_hidden_layers=1, head_dim=8, **sizes)
    matrices = 2 * 32 * 32 + 2 * 32 * 16 + 32 * 8 + 48 * 32
    share = matrices / (matrices + 8 * 3 * 32 * 64)
    with pytest.raises(EnvironmentProblem, match=f"they hold {share:.0%} .*experts.*ngram"):
        rounded.rounded(MixtralForCausalLM(config))


def test_bad_input_is_one_line(folder, capfd, monkeypatch):  # noqa: F811
    check_row(folder, capfd, monkeypatch, Row(f"{S} --draft int8:4", 2, ("takes no argument", "give int8")))
