"""The target in 8 bits: rounded weights, tokens that do not depend on each other, and the contract of all drafts."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.pytorch_utils import Conv1D

from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.int8 import __main__ as command
from speclab.extensions.int8 import rounded
from speclab.extensions.int8.kinds import Int8Drafter
from speclab.models.backends.exported import ExportedModel
from speclab.models.cached import CachedModel
from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from tests.cli.bad_inputs import Row, S
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture
from tests.contract import WAYS, check
from tests.decoding import speculative_rounds
from tests.tiny_models import tiny


def coarse(model, on_engine) -> Int8Drafter:
    """A tiny model that is rounded to 8 bits is always right, so its weights are rounded to fewer steps here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounded, "STEPS", 6)
        copied = rounded.rounded(model)
    return Int8Drafter(CachedModel(copied, fast=ExportedModel(copied, layers=()) if on_engine(model).fast else None))


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
def test_a_draft_keeps_the_contract(engine, sampling):
    check(coarse, engine, sampling)


def right_product(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What a layer gives whose weights are whole multiples of their row's step."""
    weight, bias = linear.weight.detach().double(), linear.bias.detach().double()
    steps = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
    return x.double() @ ((weight / steps).round() * steps).T + bias


def test_a_product_is_that_of_rounded_rows():
    torch.manual_seed(0)
    linear, x = nn.Linear(40, 24, bias=True), torch.randn(3, 40)
    with torch.no_grad():
        linear.weight[5] = 0.0
        linear.weight *= torch.logspace(-3, 2, 24)[:, None]
    x[1] *= 1e4
    x[2] = 0.0
    found = rounded.Int8Linear(linear.weight, linear.bias)(x).double()
    assert torch.allclose(found, right_product(linear, x), rtol=1e-5, atol=1e-6)
    assert (found[2] == linear.bias).all()


@pytest.mark.parametrize("instructions", ["default", "avx2", "avx512"])
def test_a_product_does_not_depend_on_the_processors_instructions(instructions, tmp_path):
    """In a process of its own, for which PyTorch takes no instructions beyond the named ones."""
    torch.manual_seed(2)
    linear, x = nn.Linear(70, 33), 1e3 * torch.randn(5, 70)
    torch.save((linear.weight.data, linear.bias.data, x), tmp_path / "x.pt")
    code = (
        "import sys, torch; from speclab.extensions.int8 import rounded; rounded.check_product(); "
        "weight, bias, x = torch.load(sys.argv[1]); torch.save(rounded.Int8Linear(weight, bias)(x), sys.argv[2])"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "x.pt"), str(tmp_path / "y.pt")]
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT), "ATEN_CPU_CAPABILITY": instructions}
    subprocess.run(words, env=environment, check=True)
    right = right_product(linear, x)
    assert (torch.load(tmp_path / "y.pt").double() - right).abs().max() < 1e-5 * right.abs().max()


def saturating(x: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The product of a processor that adds pairs of 8-bit products in sixteen bits."""
    steps = x.abs().amax(1, keepdim=True) / 127
    pairs = ((x / steps).round()[:, None] * rows).unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1)
    return pairs.sum(-1) * steps * scales


def test_a_product_that_saturates_is_refused_when_it_is_loaded(monkeypatch):
    monkeypatch.setattr(rounded, "product", saturating)
    with pytest.raises(EnvironmentProblem, match=r"processor.*ngram"):
        rounded.rounded(tiny("llama"))


def test_a_token_does_not_depend_on_the_others_of_its_pass():
    torch.manual_seed(1)
    layer = rounded.Int8Linear(torch.randn(48, 64), None)
    x = torch.randn(5, 64) * torch.logspace(-2, 3, 5)[:, None]
    together = layer(x)
    assert all(torch.equal(layer(x[i : i + 1])[0], together[i]) for i in range(5))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_window", "gpt2"])
def test_everything_but_the_matrices_is_the_targets(family):
    model = tiny(family, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = rounded.rounded(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    of_layers = {
        id(b) for module in copied.modules() if isinstance(module, rounded.Int8Linear) for b in module.buffers()
    }
    assert {id(tensor) for tensor in (*copied.parameters(), *copied.buffers())} - of_layers <= own
    assert not any(type(module) in (nn.Linear, Conv1D) for module in copied.modules())
    assert rounded.share_rounded(model) == 1.0
    ids = torch.arange(12)[None]
    right, found = model(ids).logits, copied(ids).logits
    assert 0 < (found - right).abs().max() < 0.1 * right.abs().max()
    assert CachedModel(copied).vocab_size == CachedModel(model).vocab_size


def test_what_is_drafted_is_drawn_from_its_law():
    """The law comes from one uncached pass, the drafts from passes over one token or two."""
    model, sampling = tiny("llama"), Sampling(0.8)
    drafter, target, drafts = coarse(model, CachedModel), CachedModel(model), []
    propose = drafter.propose
    drafter.propose = lambda k, uniforms: drafts.append(propose(k, uniforms)) or drafts[-1]
    prompt = torch.arange(9)[None]
    rounds = list(speculative_rounds(target, drafter, prompt, 3, 24, sampling))
    text = tokens_of(rounds)
    law = drafter.law(target, prompt[0].tolist(), text, sampling, 3)
    start, n_compared = 1, 0
    for draft, round_ in zip(drafts, rounds[1:], strict=True):
        n_known = min(round_.n_accepted + 1, draft.tokens.shape[1])  # behind them, the text is another one
        rows = law.drawn_from([(start, depth, 3) for depth in range(n_known)])
        assert torch.allclose(draft.probs[0][:n_known], rows, atol=1e-9)
        n_compared, start = n_compared + n_known, start + len(round_.tokens)
    assert n_compared > 12


def test_another_device_is_refused():
    with pytest.raises(EnvironmentProblem, match="--device cpu"):
        rounded.rounded(tiny("llama").to("meta"))


def test_a_model_that_is_hardly_rounded_is_refused():
    """The experts of a mixture are no linear layers, and hold most of its numbers."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8}
    config = MixtralConfig(vocab_size=48, intermediate_size=64, num_hidden_layers=1, head_dim=8, **sizes)
    matrices = 2 * 32 * 32 + 2 * 32 * 16 + 32 * 8 + 48 * 32
    share = matrices / (matrices + 8 * 3 * 32 * 64)
    with pytest.raises(EnvironmentProblem, match=f"they hold {share:.0%} .*experts.*ngram"):
        rounded.rounded(MixtralForCausalLM(config))


@pytest.mark.parametrize("row", [Row(f"{S} --draft int8:4", 2, ("takes no argument", "give int8"))], ids=str)
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row):  # noqa: F811
    check_row(folder, capfd, monkeypatch, row)


def test_texts_are_compared_up_to_their_first_difference():
    pairs = [
        command.compared("a", ([1, 2, 3, 4], 2.0), ([1, 2, 9, 4], 1.0)),
        command.compared("a", ([1, 2], 4.0), ([1, 2], 1.0)),
    ]
    assert command.total(pairs, "all") == ("all", 2, 6, 4, 1, (6.0, 2.0))


def test_the_command_decodes_with_both(pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", "8", "--no-chat"]
    assert command.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:4:3] == ["all", "8"]
