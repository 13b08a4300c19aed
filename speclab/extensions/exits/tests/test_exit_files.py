"""The lab's adapter by name and in the scripts, the targets that it reads, and what rounds with it cost."""

import pytest
import torch

import optimized_speculative
from speclab import load
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.extensions.exits import register
from speclab.extensions.exits.register import read_adapter
from speclab.extensions.exits.tests.adapters import tiny_adapter, write_adapter
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.cli.bad_inputs import KINDS, Row, S
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def target():
    return tiny("llama", num_hidden_layers=3)


@pytest.fixture
def place(target, tmp_path, monkeypatch):
    """A folder with a random adapter for the tiny target, in the place of the lab's."""
    monkeypatch.setattr(register, "PLACE", str(tmp_path / "adapter"))
    write_adapter(tmp_path / "adapter", tiny_adapter(target, 2))
    return tmp_path / "adapter"


def test_what_is_written_comes_back(target, place):
    """All but the output layer, which is the target's. Other targets and damaged files are one line."""
    found, right = read_adapter(target), tiny_adapter(target, 2).state_dict()
    assert found.config.layers == (1,)
    assert found.output.data_ptr() == target.lm_head.weight.data_ptr()
    assert {name: weight.tolist() for name, weight in found.state_dict().items()} == {
        name: weight.tolist() for name, weight in right.items()
    }
    for other in (tiny("llama"), tiny("llama", num_hidden_layers=3, hidden_size=64)):
        with pytest.raises(UsageProblem, match="reads the lab's own target"):
            read_adapter(other)
    (place / "model.safetensors").write_bytes(b"half")
    with pytest.raises(EnvironmentProblem, match=r"its config\.json and weights cannot be used"):
        read_adapter(target)


def test_names():
    choice = registry.read("exit")
    assert choice.name == registry.read("exit:2").name == "exit:2"
    assert (choice.in_hybrid, choice.any_family, choice.can_branch) == (False, False, False)


ROWS = [
    Row(f"{S} --draft exit:5", 2, ("the lab's adapter is exit:2",)),
    Row(f"{S} --draft exit:", 2, ("'exit:'", KINDS)),
    Row(f"{S} --draft exit:2", 2, ("the lab's own target",)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command[-20:])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row):  # noqa: F811
    check_row(folder, capfd, monkeypatch, row)


def test_an_engine_that_cannot_split_is_refused(target, place):
    setup = Setup(CachedModel(target), None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    with pytest.raises(UsageProblem, match="the engine c alone"):
        registry.make("exit", setup)


def test_the_scripts_decode_with_it(pair_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(register, "PLACE", str(tmp_path / "adapter"))
    model = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    write_adapter(tmp_path / "adapter", tiny_adapter(model, 1))
    words = ["--target", str(pair_folder / "target"), "--threads", "1", "--prompt", "def f(x):"]
    for draft in ("exit", str(pair_folder / "draft")):
        assert optimized_speculative.main([*words, "--draft", draft, "--max-new-tokens", "12", "--ignore-eos"]) == 0
    out, err = capsys.readouterr()
    assert "exit:1: the target's first 1 of 2 layers, and an adapter" in err
    first, second = (text.splitlines()[0] for text in out.split("def f(x):")[1:])
    assert first == second
