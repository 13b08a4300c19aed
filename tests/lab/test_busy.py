"""A busy machine, end to end on a tiny pair: what compare.py says, shows and writes down."""

import json
import os

import pytest
import torch

import baseline_autoregressive
import compare
import optimized_speculative
from speclab.models import prompts
from speclab.records import files
from speclab.system import cores
from speclab.theory import attribution

TEXTS = [("code", "def f(x):"), ("prose", "return x"), ("copy", "x + 1, x + 1,")]


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    """compare.py on the tiny pair and three short prompts; returns (stdout, stderr)."""
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)

    def call(*words):
        models = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'}", "-k", "2"]
        size = ["--max-new-tokens", "12", "--threads", "1", "--engine", "eager", "--temperature", "0"]
        assert compare.main([*models, *size, "--out-dir", str(tmp_path), *words]) == 0
        return capsys.readouterr()

    return call


@pytest.fixture
def busy(monkeypatch) -> None:
    """Other work was on all cores when the program began."""
    monkeypatch.setattr(cores, "AT_START", 2.0 * (os.cpu_count() or 1))


def saved(folder, name="local"):
    return json.loads((folder / "results" / f"{name}.json").read_text("utf-8"))


@pytest.mark.usefixtures("busy")
def test_a_busy_machine_is_said_before_and_after_and_marked(run, tmp_path):
    out, err = run()
    (line,) = [line for line in err.splitlines() if line.startswith("busy")]
    words = f"load average {cores.AT_START:.1f}"
    assert words in line
    (path,) = (tmp_path / "results").glob("*.json")
    probe = json.loads(path.read_text("utf-8"))["machine"]["probe"]
    assert (probe["free"], probe["load"]) == (False, cores.AT_START)
    for text in (out, path.with_suffix(".md").read_text("utf-8")):
        assert "BUSY" in text
        assert words in text


@pytest.mark.parametrize("script", [baseline_autoregressive, optimized_speculative])
@pytest.mark.usefixtures("busy")
def test_a_script_on_busy_cores_says_so(script, pair_folder, capsys):
    draft = ["--draft", str(pair_folder / "draft")] * (script is optimized_speculative)
    words = ["--target", str(pair_folder / "target"), *draft, "--prompt", "def f(x):", "--max-new-tokens", "4"]
    assert script.main([*words, "--engine", "eager"]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("busy")]


@pytest.mark.usefixtures("busy")
def test_a_gpu_has_cores_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert "probe" not in files.machine(torch.device("cuda"))


# --- a run whose noise is too large -----------------------------------------------------------------------------------


def test_rough_speeds_hide_nothing(run, tmp_path, monkeypatch):
    """Every run has a noise floor above a bound of 1.00; it shows all that another shows."""
    quiet, first = run()
    counted = [[row[name] for name in ("n_rounds", "n_accepted", "n_tokens")] for row in saved(tmp_path)["rows"]]
    monkeypatch.setattr(attribution, "FURTHEST", 1.0)
    out, err = run()
    assert out.count("ROUGH: the baseline, timed twice") == 1
    assert "token for token: identical" in out
    assert ["--name NAME" in text for text in (first, err)] == [False, True], "the second run replaces files"
    for word in ("speedup  ", "forecast", "noise floor", "tok/rnd"):
        assert out.count(word) == quiet.count(word) > 0
    assert [
        [row[name] for name in ("n_rounds", "n_accepted", "n_tokens")] for row in saved(tmp_path)["rows"]
    ] == counted
    page = (tmp_path / "results" / "local.md").read_text("utf-8")
    assert page.index("ROUGH") < page.index("| speedup |")
