"""A busy machine, end to end on a tiny pair: what compare.py says, shows and writes down."""

import json
from types import SimpleNamespace

import pytest
import torch

import baseline_autoregressive
import compare
import optimized_speculative
from speclab.drafts.block import BlockDrafter
from speclab.lab.run_config import RunConfig
from speclab.models import engine_choice, prompts
from speclab.system import cores
from speclab.theory import noise
from tests.heads import tiny_block_head
from tests.tiny_models import tiny

TEXTS = [("code", "def f(x):"), ("prose", "return x"), ("copy", "x + 1, x + 1,")]
HALF = cores.Work(blocks=50.0, got=0.5, wanted=1.0)


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
def threads(monkeypatch) -> list[int]:
    """The numbers of threads that PyTorch was told, the last of which it names; it starts none of them."""
    told = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1])
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    return told


def saved(folder, name="local"):
    return json.loads((folder / "results" / f"{name}.json").read_text("utf-8"))


def test_a_busy_machine_is_said_before_and_after_and_marked(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "together", lambda threads: HALF)
    out, err = run()
    (line,) = [line for line in err.splitlines() if line.startswith("busy")]
    assert "one thread got 50% of the processor time" in line
    assert "BUSY: when the run began, one thread got 50%" in out
    (path,) = (tmp_path / "results").glob("*.json")
    probe = json.loads(path.read_text("utf-8"))["machine"]["probe"]
    assert (probe["free"], probe["threads"], probe["together"]) == (False, 1, 0.5)
    assert "BUSY: when the run began, one thread got 50%" in path.with_suffix(".md").read_text("utf-8")


@pytest.mark.parametrize(("asked", "expected"), [("one per core", 1), ("asked for", 4)])
def test_a_run_on_busy_cores_takes_one_thread_unless_told_otherwise(monkeypatch, threads, asked, expected):
    """Several wait for each other; what the user typed stands."""
    monkeypatch.setattr(cores, "together", lambda threads: HALF)
    threads.append(4)
    target = SimpleNamespace(fast=SimpleNamespace())
    chosen: list = []
    monkeypatch.setattr(engine_choice, "choose_kernels", chosen.append)
    setup = SimpleNamespace(device=torch.device("cpu"), reasons={"threads": asked}, target=target, wish="auto")
    head = BlockDrafter(tiny_block_head(tiny("llama")))
    monkeypatch.setattr(head, "choose_packing", lambda: chosen.append(head))
    config = RunConfig(setup, {"block": head}, [], [4], [0.0], 8, 1, 0)
    complaint = config.look_at_cores()
    assert threads[-1] == expected
    assert chosen == [target.fast, head] * (expected == 1), "kernels are chosen for the threads that run them"
    assert ("this run takes one thread" in complaint) == (expected == 1)
    assert config.probe.threads == 4, "the probe says what it looked at"
    assert setup.reasons["threads"] == ("the cores are not free" if expected == 1 else asked)


@pytest.mark.parametrize("typed", [[], ["--threads", "2"]])
@pytest.mark.parametrize("script", [baseline_autoregressive, optimized_speculative])
def test_a_script_on_busy_cores_takes_one_thread_and_says_so(script, typed, pair_folder, monkeypatch, capsys, threads):
    """It decodes once and measures nothing, but several threads would wait for each other all the same."""
    monkeypatch.setattr(cores, "together", lambda threads: HALF)
    draft = ["--draft", str(pair_folder / "draft")] * (script is optimized_speculative)
    threads.append(2)
    words = ["--target", str(pair_folder / "target"), *draft, "--prompt", "def f(x):", "--max-new-tokens", "4"]
    assert script.main([*words, "--engine", "eager", *typed]) == 0
    assert threads[-1] == (2 if typed else 1)
    err = capsys.readouterr().err
    assert [("takes one thread" in line) for line in err.splitlines() if line.startswith("busy")] == [not typed]
    assert ("1 thread (the cores are not free)" in err) == (not typed), "the head says what runs"


def test_a_gpu_has_cores_of_its_own(monkeypatch):
    monkeypatch.setattr(cores, "probe", lambda threads: pytest.fail("looked"))
    setup = SimpleNamespace(device=torch.device("cuda"))
    config = RunConfig(setup, {}, [], [4], [0.0], 64, 1, 0)
    assert config.look_at_cores() is None
    assert config.probe is None


# --- a run whose noise is too large -----------------------------------------------------------------------------------


def test_rough_speeds_hide_nothing(run, tmp_path, monkeypatch):
    """Every run has a noise floor above a bound of 1.00: it takes its turns twice, and shows all that another shows."""
    quiet, first = run("--verbose")
    counted = [[row[name] for name in ("n_rounds", "n_accepted", "n_tokens")] for row in saved(tmp_path)["rows"]]
    monkeypatch.setattr(noise, "FURTHEST", 1.0)
    out, err = run("--verbose")
    assert out.count("ROUGH: the baseline, timed twice") == 2, "the screen, and the report"
    assert "token for token: identical" in out
    assert "3 turns are taken once more" in err
    assert ["--name NAME" in text for text in (first, err)] == [False, True], "the second run replaces files"
    for word in ("speedup  ", "forecast", "verdict", "accept µs", "noise floor", "tok/rnd"):
        assert out.count(word) == quiet.count(word) > 0
    assert "after 3 more turns than planned" in " ".join(out.split())
    assert [
        [row[name] for name in ("n_rounds", "n_accepted", "n_tokens")] for row in saved(tmp_path)["rows"]
    ] == counted
    page = (tmp_path / "results" / "local.md").read_text("utf-8")
    assert page.index("ROUGH") < page.index("| speedup |")


@pytest.mark.parametrize("busy", [False, True])
def test_threads_are_advised_about_once(run, monkeypatch, threads, busy):
    """Before the run where the probe finds work on the cores, else where the speeds turn out to be rough."""
    monkeypatch.setattr(noise, "FURTHEST", 1.0)
    monkeypatch.setattr(cores, "together", lambda threads: HALF._replace(got=0.5 if busy else 1.0))
    out, err = run("--threads", "2")
    assert threads[-1] == 2
    assert "ROUGH" in out
    assert " ".join(err.split()).count("use --threads 1") == busy
    assert " ".join(out.split()).count("use --threads 1") == (not busy)
