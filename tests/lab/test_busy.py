"""A busy machine, end to end on a tiny pair: what compare.py and the scripts say, show and write down."""

import os

import pytest
import torch

import baseline_autoregressive
import optimized_speculative
from speclab.records import files
from speclab.system import cores
from speclab.theory import attribution
from tests.lab.test_compare import GREEDY, run, saved  # noqa: F401 - a fixture


@pytest.fixture
def busy(monkeypatch) -> None:
    """Other work was on all cores when the program began."""
    monkeypatch.setattr(cores, "AT_START", 2.0 * (os.cpu_count() or 1))


@pytest.mark.usefixtures("busy")
def test_a_busy_machine_is_said_before_and_after_and_marked(run, tmp_path, monkeypatch):  # noqa: F811
    _, out, err = run(*GREEDY)
    (line,) = [line for line in err.splitlines() if line.startswith("busy")]
    words = f"load average {cores.AT_START:.1f}"
    assert words in line
    assert saved(tmp_path).machine["probe"] == {"free": False, "load": cores.AT_START}
    for text in (out, (tmp_path / "results" / "local.md").read_text("utf-8")):
        assert "BUSY" in text
        assert words in text
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert "probe" not in files.machine(torch.device("cuda")), "a GPU has cores of its own"


@pytest.mark.parametrize("script", [baseline_autoregressive, optimized_speculative])
@pytest.mark.usefixtures("busy")
def test_a_script_on_busy_cores_says_so(script, pair_folder, capsys):
    draft = ["--draft", str(pair_folder / "draft")] * (script is optimized_speculative)
    words = ["--target", str(pair_folder / "target"), *draft, "--prompt", "def f(x):", "--max-new-tokens", "4"]
    assert script.main([*words, "--engine", "eager"]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("busy")]


def test_rough_speeds_hide_nothing(run, tmp_path, monkeypatch):  # noqa: F811
    """Every run has a noise floor above a bound of 1.00; it is said once, and shows all that another shows."""
    found = []
    for furthest in (1e9, 1.0):
        monkeypatch.setattr(attribution, "FURTHEST", furthest)
        _, out, err = run(*GREEDY)
        assert out.count("ROUGH: the baseline, timed twice") == (furthest == 1.0)
        assert ("--name NAME" in err) == (furthest == 1.0), "the second run replaces files"
        words = ("speedup  ", "forecast", "noise floor", "tok/rnd", "token for token: identical")
        counts = [(row.n_rounds, row.n_accepted, row.n_tokens) for row in saved(tmp_path).rows]
        found.append(([out.count(word) for word in words], counts))
    assert found[0] == found[1]
    assert min(found[0][0]) > 0
    page = (tmp_path / "results" / "local.md").read_text("utf-8")
    assert page.index("ROUGH") < page.index("| speedup |")
