"""The second, short comparison at the price of a larger model: its size, its drafts, and the run as a whole."""

import re

import pytest

import compare
from speclab.cli import compare as command
from speclab.lab import comparison, padded_pair
from speclab.lab.bench import Bench
from speclab.models.padded import sizes
from speclab.records.files import ComparisonRun, read
from speclab.system.errors import EnvironmentProblem

GB = 10**9
SMALL = ["--prompt", "def f(x):", "--max-new-tokens", "4", "-k", "2", "--temperature", "0", "--threads", "1"]


def test_a_faster_machine_gets_a_larger_pair():
    chosen = [padded_pair.choose_size(speed * GB, None, 4) for speed in (1, 15, 30, 60, 3000)]
    assert chosen[0] is None
    numbers = [sizes.parse_name(size).n_parameters for size in chosen[1:]]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("speed", [15 * GB, 40 * GB, 400 * GB])
def test_the_chosen_size_keeps_to_the_time(speed):
    size = padded_pair.choose_size(speed, None, 4)
    assert padded_pair.READINGS * sizes.parse_name(size).n_parameters * 4 / speed <= padded_pair.SECONDS


def test_a_size_that_does_not_fit_is_not_chosen():
    free = [2 * GB, 1 * GB, 50 * 10**6]
    assert [padded_pair.choose_size(1e15, n, 4) for n in free] == ["lab:200m", "lab:200m", None]
    assert padded_pair.choose_size(1e15, 2 * GB, 4, copies=2) == "lab:200m"
    assert padded_pair.choose_size(1e15, 2 * GB, 2) == padded_pair.choose_size(1e15, 4 * GB, 4)


@pytest.mark.parametrize(("lengths", "wanted"), [("0", False), ("0,2", True), ("auto", True)])
def test_a_run_that_drafts_nothing_has_no_second_size(lengths, wanted):
    args = command.make_parser("").parse_args(["--draft", "model", "-k", lengths])
    assert command.filled(args).padded == wanted


def test_the_drafts_of_the_padded_pair():
    assert padded_pair.padded_kinds(["model", "feature", "dial:0.8", "suffix"], "lab:200m") == [
        "lab:20m",
        "feature",
        "suffix",
    ]
    assert padded_pair.padded_kinds(["model"], "lab:8b:v128256") == ["lab:800m:v128256"]
    assert padded_pair.padded_kinds(["dial:0.8", "some/draft"], "lab:200m") == []


@pytest.fixture
def run(tmp_path, capsys):
    def call(*words: str) -> tuple[int, str, str]:
        code = compare.main([*SMALL, "--engine", "eager", "--out-dir", str(tmp_path), *words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def larger(monkeypatch) -> list[float]:
    """A machine on which lab:20m is the largest size. Returns what was read each time a size was chosen, in bytes/s."""
    asked: list[float] = []
    monkeypatch.setattr(padded_pair, "SIZES", ("lab:20m",))
    monkeypatch.setattr(comparison, "bandwidth", lambda *_, **__: {"copy": 1e15})
    honest = padded_pair.choose_size
    monkeypatch.setattr(padded_pair, "choose_size", lambda *given: asked.append(given[0]) or honest(*given))
    return asked


def test_both_sizes_stand_in_one_record_and_one_table(run, larger, tmp_path):
    code, out, err = run("--draft", "ngram")
    assert larger == [1e15], "the size is chosen by what the machine reads"
    assert code == 0
    assert "lab:20m: llama" in err
    record = read(tmp_path / "results" / "local.json", ComparisonRun)
    assert record.settings["target"] == "models/lab-pair/target"
    assert record.padded.settings["target"] == "lab:20m"
    assert record.padded.weight_bytes > record.weight_bytes > 0
    assert record.bandwidth > 0
    assert record.padded.settings["draft_lengths"] == padded_pair.LENGTHS
    assert re.search(r"^(lab pair +)?ngram +2 ", out, re.MULTILINE)
    assert re.search(r"^(lab:20m +)?ngram +4 ", out, re.MULTILINE)
    assert (tmp_path / "plots" / "local-padded-speedup.png").exists()
    assert len(out.splitlines()) <= 40


@pytest.mark.usefixtures("larger")
@pytest.mark.parametrize("words", [["--quick"], ["--no-padded"]])
def test_where_no_second_size_is_measured(run, monkeypatch, words):
    monkeypatch.setattr(padded_pair, "second_config", lambda *_: pytest.fail("measured a second size"))
    code, *_ = run("--draft", "ngram", *words)
    assert code == 0


@pytest.mark.usefixtures("larger")
def test_ctrl_c_in_the_second_size_keeps_the_first(run, monkeypatch, tmp_path):
    honest = padded_pair.second_config

    def stopped(*given):
        config = honest(*given)
        monkeypatch.setattr(Bench, "budget", stop)
        return config

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(padded_pair, "second_config", stopped)
    code, out, err = run("--draft", "ngram")
    record = read(tmp_path / "results" / "local.json", ComparisonRun)
    assert code == 0
    assert record.interrupted
    assert record.padded is None
    assert [row for row in record.rows if row.draft]
    assert "the padded pair is not" in err
    assert "Stopped before the end" in out


@pytest.mark.usefixtures("larger")
def test_models_that_cannot_be_loaded_leave_the_first_size(run, monkeypatch, tmp_path):
    def no_memory(*args):
        raise EnvironmentProblem("it needs 99 GB")

    monkeypatch.setattr(padded_pair, "second_config", no_memory)
    code, _, err = run("--draft", "ngram")
    record = read(tmp_path / "results" / "local.json", ComparisonRun)
    assert code == 0
    assert "it needs 99 GB" in err
    assert record.rows
    assert not record.interrupted
