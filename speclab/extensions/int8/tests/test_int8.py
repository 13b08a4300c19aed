"""The target in 8 bits: rounded weights, tokens that do not depend on each other, and the contract of all drafts."""

import pytest
import torch
from speclab.models.backends.exported import ExportedModel
from torch import nn

from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.int8 import __main__ as command
from speclab.extensions.int8 import rounded
from speclab.extensions.int8.kinds import Int8Drafter
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.cli.bad_inputs import Row, S
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture
from tests.contract import WAYS, check
from tests.decoding import speculative_rounds
from tests.tiny_models import tiny

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="needs the kernels for x86 processors"
)


def coarse(model, on_engine) -> Int8Drafter:
    """A tiny model that is rounded to 8 bits is always right, so its weights are rounded to fewer steps here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounded, "STEPS", 6)
        copied = rounded.rounded(model)
    return Int8Drafter(CachedModel(copied, fast=ExportedModel(copied, layers=()) if on_engine(model).fast else None))


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
def test_a_draft_keeps_the_contract(engine, sampling):
    check(coarse, engine, sampling)


def test_a_product_is_that_of_rounded_numbers():
    """Both factors are whole multiples of their row's step, and the sum is exact."""
    torch.manual_seed(0)
    linear, x = nn.Linear(40, 24, bias=True), torch.randn(3, 40)
    with torch.no_grad():
        linear.weight[5] = 0.0
        linear.weight *= torch.logspace(-3, 2, 24)[:, None]
    x[1] *= 1e4
    x[2] = 0.0
    found = rounded.Int8Linear(linear)(x).double()
    weight_steps = linear.weight.detach().double().abs().amax(1, keepdim=True) / 127
    input_steps = x.double().abs().amax(1, keepdim=True) / rounded.INPUT_STEPS
    weight = (linear.weight.detach() / weight_steps.clamp(min=1e-30)).round() * weight_steps
    right = ((x / input_steps.clamp(min=1e-30)).round() * input_steps) @ weight.T + linear.bias.detach()
    assert torch.allclose(found, right, rtol=1e-5, atol=1e-6)
    assert (found[2] == linear.bias).all()


def test_a_token_does_not_depend_on_the_others_of_its_pass():
    torch.manual_seed(1)
    layer, x = rounded.Int8Linear(nn.Linear(64, 48)), torch.randn(5, 64) * torch.logspace(-2, 3, 5)[:, None]
    together = layer(x)
    assert all(torch.equal(layer(x[i : i + 1])[0], together[i]) for i in range(5))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_window"])
def test_everything_but_the_matrices_is_the_targets(family):
    model = tiny(family, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = rounded.rounded(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    assert {id(tensor) for tensor in (*copied.parameters(), *copied.buffers())} <= own
    assert not any(type(module) is nn.Linear for module in copied.modules())
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
    with pytest.raises(EnvironmentProblem, match="x86"):
        rounded.rounded(tiny("llama").to("meta"))


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
