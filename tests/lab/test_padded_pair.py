"""The short comparisons after that of the lab's pair, eager and padded: sizes, drafts, and the run as a whole."""

import re
from types import SimpleNamespace

import pytest
import torch

from speclab.cli import compare as command
from speclab.lab import comparison
from speclab.lab.bench import Bench
from speclab.models import padding
from speclab.models.loading import LAB_TARGET
from speclab.system.errors import EnvironmentProblem

GB = 10**9
SMALL = ("--target", LAB_TARGET, "--prompt", "def f(x):", "--max-new-tokens", "4", "-k", "2", "--temperature", "0")
SMALL += ("--draft", "ngram")


@pytest.fixture
def size_of(monkeypatch):
    """The size that is chosen on a machine of this bandwidth and free memory."""

    def chosen(speed: float, free: int | None = None, dtype: torch.dtype = torch.float32, engine: str = "eager"):
        monkeypatch.setattr(comparison, "free_memory", lambda device: free)
        setup = SimpleNamespace(device=None, dtype=dtype, engine=engine)
        return comparison.padded_size(SimpleNamespace(setup=setup), speed)

    return chosen


def test_a_faster_machine_gets_a_larger_pair_that_keeps_to_the_time(size_of):
    speeds = [speed * GB for speed in (0, 1, 15, 30, 60, 3000)]
    none, slow, *chosen = map(size_of, speeds)
    numbers = [padding.millions_of(size) * 10**6 for size in chosen]
    assert none is slow is None
    assert numbers == sorted(set(numbers))
    for n, speed in zip(numbers, speeds[2:], strict=True):
        assert comparison.READINGS * n * 4 / speed <= comparison.SECONDS


def test_a_size_that_does_not_fit_is_not_chosen(size_of):
    assert [size_of(1e15, n) for n in (2 * GB, 1 * GB, 50 * 10**6)] == ["lab:200m", "lab:200m", None]
    assert size_of(1e15, 2 * GB, engine="c") == "lab:200m"
    assert size_of(1e15, 2 * GB, torch.bfloat16) == size_of(1e15, 4 * GB)


@pytest.mark.parametrize(
    ("words", "wanted"), [("-k 0", False), ("-k 0,2", True), ("-k auto", True), ("--quick", False), ("--alone", False)]
)
def test_a_run_that_is_short_or_asked_for_one_pair_has_no_second_one(words, wanted):
    args = command.make_parser("").parse_args(["--draft", "model", *words.split()])
    assert command.filled(args).others == wanted


@pytest.mark.parametrize(
    ("kinds", "size", "expected"),
    [
        (["model", "feature", "dial:0.8", "suffix"], "lab:200m", ["lab:20m", "feature", "suffix"]),
        (["model"], "lab:8b:v128256", ["lab:800m:v128256"]),
        (["dial:0.8", "some/draft"], "lab:200m", []),
    ],
)
def test_the_drafts_of_the_comparison(kinds, size, expected):
    assert comparison.padded_kinds(kinds, size) == expected


@pytest.fixture
def lab_run(run, monkeypatch):
    """compare.py with the lab's pair on a machine on which lab:20m is the largest size."""
    monkeypatch.setattr(comparison, "SIZES", ("lab:20m",))
    monkeypatch.setattr(comparison, "bandwidth", lambda *_, **__: {"copy": 1e15})
    return lambda *words: run(*SMALL, *words)


def test_both_sizes_stand_in_one_record_and_one_table(lab_run, monkeypatch):
    asked, honest = [], comparison.padded_size
    monkeypatch.setattr(comparison, "padded_size", lambda *given: asked.append(given[1]) or honest(*given))
    ran = lab_run()
    record = ran.record
    assert (ran.code, asked) == (0, [1e15]), "the size is chosen by what the machine reads"
    assert "lab:20m: llama" in ran.err
    assert record.settings["target"] == "models/lab-pair/target"
    assert record.padded.settings["target"] == "lab:20m"
    assert record.padded.weight_bytes > record.weight_bytes > 0
    assert record.bandwidth > 0
    assert record.padded.settings["draft_lengths"] == comparison.LENGTHS
    assert re.search(r"^(lab pair +)?ngram +2 ", ran.out, re.MULTILINE)
    assert re.search(r"^(lab:20m +)?ngram +4 ", ran.out, re.MULTILINE)
    assert sorted(path.name for path in (ran.folder / "plots").iterdir()) == ["local-speedup.png"]
    assert len(ran.out.splitlines()) <= 48


def test_the_pair_on_another_engine_is_measured_eagerly_as_well(lab_run):
    ran = lab_run("--engine", "c")
    record = ran.record
    assert (ran.code, record.eager.settings["engine"], record.settings["engine"]) == (0, "eager", "c")
    assert [row.draft for row in record.eager.rows if row.draft_length == 4 and row.prompt_kind == "all"] == ["ngram"]
    assert record.padded.settings["engine"] == "c"
    headings = [line for line in ran.out.splitlines() if line in ("lab pair, eager", "lab pair", "lab:20m")]
    assert headings == ["lab pair, eager", "lab pair", "lab:20m"]
    assert (ran.folder / "plots" / "local-limits.png").exists()


@pytest.mark.parametrize(("stop", "said"), [(KeyboardInterrupt(), "the padded pair is not"), (None, "it needs 99 GB")])
def test_a_stop_in_the_second_size_keeps_the_first(lab_run, monkeypatch, stop, said):
    """Ctrl-C in its turns, or models that cannot be loaded."""
    honest = comparison.short_config

    def fail(*_):
        raise stop or EnvironmentProblem("it needs 99 GB")

    def short_config(*given):
        config = honest(*given) if stop else fail()
        monkeypatch.setattr(Bench, "budget", fail)
        return config

    monkeypatch.setattr(comparison, "short_config", short_config)
    ran = lab_run()
    record = ran.record
    assert (ran.code, record.interrupted, record.padded) == (0, stop is not None, None)
    assert [row for row in record.rows if row.draft]
    assert said in ran.err
    assert ("Stopped before the end" in ran.out) == (stop is not None)
