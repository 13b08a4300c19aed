"""compare.py end to end on a tiny pair: the record, the tables, the pictures, the exit code, Ctrl-C, a busy machine."""

import os
import signal
from dataclasses import replace

import pytest
import torch

import baseline_autoregressive
import optimized_speculative
from speclab.cli import compare as command
from speclab.core.sampling import Sampling
from speclab.lab import comparison
from speclab.lab.bench import Bench
from speclab.present import pictures
from speclab.records import files
from speclab.records.files import SCHEMA_VERSION
from speclab.system import startup
from speclab.system.errors import EnvironmentProblem

GREEDY = ("--draft", "ngram", "-k", "2", "--temperature", "0")


def test_record_tables_and_pictures(whole):
    record = whole.record
    assert (whole.code, record.schema_version) == (0, SCHEMA_VERSION)
    for row in record.rows:
        if row.draft:
            assert row.n_emitted == row.n_accepted + row.n_rounds  # nothing is cut: EOS is ignored
            assert row.n_rejected <= row.n_rounds
            assert row.same_as_baseline is (True if row.temperature == 0 else None)
            assert row.draft_length or (row.tokens_per_round, row.acceptance_rate) == (1, None), "plain decoding"
    everything = [row for row in record.rows if row.prompt_kind == "all"]
    assert all(row.n_emitted == 2 * 3 * 15 for row in everything), "prefill's token was counted, or a budget was missed"
    assert {(row.method, row.draft_length) for row in everything if row.temperature == 0.8} >= {
        ("baseline", 0), ("model", 0), ("model", 3), ("ngram", 3), ("model auto", 8), ("hybrid:ngram+draft", 3),
    }  # fmt: skip
    assert "token for token: identical" in whole.out
    assert str(whole.folder) not in (whole.folder / "results" / "local.json").read_text()
    assert not any("/" in row.method for row in record.rows), "an absolute path got into the record"
    drawn = [f"local-{kind}.png" for kind in ("speedup", "why")]
    assert sorted(path.name for path in (whole.folder / "plots").iterdir()) == drawn
    assert not list(whole.folder.rglob("*.part"))


@pytest.mark.usefixtures("forgetful")
def test_a_wrong_token_fails_the_run(run):
    """The comparison is a check, not only a stopwatch: one flipped token means exit code 1."""
    ran = run("-k", "2", "--temperature", "0")
    assert ran.code == 1
    assert "BUG" in ran.out


def test_a_wrong_distribution_fails_the_run(run, pair_folder, monkeypatch):
    """Greedy tokens passed off as samples."""
    honest = command.SPECULATIVE.decode

    def hot(target, drafter, prompt, k, settings, **kwargs):
        return honest(target, drafter, prompt, k, replace(settings, sampling=Sampling()), **kwargs)

    monkeypatch.setattr(command, "SPECULATIVE", replace(command.SPECULATIVE, decode=hot))
    words = ("-k", "2", "--temperature", "0.8", "--max-new-tokens", "60", "--draft", str(pair_folder / "draft"))
    ran = run(*words)
    assert ran.code == 1
    assert "NOT the target's distribution" in " ".join(ran.out.split())


def test_a_draft_that_learns_is_replayed_in_the_order_of_the_run(run, pair_folder, monkeypatch):
    texts = [("code", "def f(x):"), ("code", "def g(y):"), ("prose", "return x"), ("prose", "x is")]
    order, right = [], comparison.rounds_along
    replayed = lambda bench, arm, prompt, text: order.append(prompt.text) or right(bench, arm, prompt, text)  # noqa: E731
    monkeypatch.setattr(comparison, "rounds_along", replayed)
    drafts = f"hybrid:suffix+{pair_folder / 'draft'}"
    assert run(*GREEDY, "--draft", drafts, "--limit", "2", "--max-new-tokens", "12", texts=texts).code == 0
    assert list(dict.fromkeys(order)) == [texts[i][1] for i in (0, 2, 1, 3)]


@pytest.mark.parametrize(
    ("stop", "code", "said"),
    [
        (KeyboardInterrupt(), 0, "stopped; 1 prompt is complete"),
        (EnvironmentProblem("the logits are not finite"), 3, "error: the logits are not finite"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 3, "error: out of memory"),
    ],
)
def test_a_stop_keeps_the_turns_that_are_finished(run, monkeypatch, stop, code, said):
    honest = Bench.budget

    def budget(bench, prompt, *rest):
        if prompt.kind == "prose":
            raise stop
        return honest(bench, prompt, *rest)

    monkeypatch.setattr(Bench, "budget", budget)
    ran = run("-k", "2", "--temperature", "0")
    assert ran.code == code
    assert any(line.startswith(said) for line in ran.err.splitlines())
    assert ran.record.interrupted
    assert "Stopped before the end" in ran.out
    assert {line.prompt_index for line in ran.record.raw} == {0}
    assert {row.method for row in ran.record.rows} == {"baseline", "generate", "model", "ngram"}
    assert [entry["arm"] for entry in ran.record.correctness] == ["model k=2", "ngram k=2"]


@pytest.mark.parametrize("place", ["judge", "build_rows", "bandwidth"])
def test_a_stop_behind_the_turns_keeps_texts_that_are_checked(run, monkeypatch, place):

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, place, stop)
    ran = run(*GREEDY)
    assert (ran.code, "speedup" in ran.out) == ((130, False) if place == "judge" else (0, True))
    if place == "judge":
        assert not list((ran.folder / "results").iterdir())
    else:
        assert ran.record.interrupted
        assert ran.record.correctness
        assert {row.forecast is None for row in ran.record.rows if row.draft} == {place == "build_rows"}


def test_a_signal_before_anything_is_measured(run, monkeypatch):

    monkeypatch.setattr(Bench, "budget", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    ran = run(*GREEDY)
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "stopped"
    assert not list((ran.folder / "results").iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError()])
def test_an_output_that_is_full_or_gone_loses_no_file(run, monkeypatch, error):
    def fail(text, end=""):
        if "speedup" in text:  # the tables, after the measurement
            raise error

    monkeypatch.setattr(command, "say", fail)
    ran = run(*GREEDY)
    assert ran.code == (0 if isinstance(error, BrokenPipeError) else 3)
    assert ("No space left" in ran.err) == (ran.code == 3)
    assert ran.record.rows


def test_a_fault_in_what_a_picture_shows_loses_no_table_and_no_record(run, monkeypatch, tmp_path):
    monkeypatch.setattr(pictures, "_why", lambda rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(*GREEDY)
    assert "speedup" in (tmp_path / "results" / "local.md").read_text()
    assert (tmp_path / "results" / "local.json").exists()


@pytest.fixture
def busy(monkeypatch) -> str:
    """Other work was on all cores when the program began.  -> what is said of it"""
    monkeypatch.setattr(startup, "LOAD", 2.0 * (os.cpu_count() or 1))
    return f"load average {startup.LOAD:.1f}"


def test_a_busy_machine_is_said_before_and_after_and_marked(run, busy, monkeypatch):
    ran = run(*GREEDY)
    (line,) = [line for line in ran.err.splitlines() if line.startswith("busy")]
    assert busy in line
    assert ran.record.machine["probe"] == {"free": False, "load": startup.LOAD}
    for text in (ran.out, ran.page):
        assert "BUSY" in text
        assert busy in text
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert "probe" not in files.machine(torch.device("cuda")), "a GPU has cores of its own"


@pytest.mark.parametrize("script", [baseline_autoregressive, optimized_speculative])
@pytest.mark.usefixtures("busy")
def test_a_script_on_busy_cores_says_so(script, pair_folder, capsys):
    draft = ["--draft", str(pair_folder / "draft")] * (script is optimized_speculative)
    words = ["--target", str(pair_folder / "target"), *draft, "--prompt", "def f(x):", "--max-new-tokens", "4"]
    assert script.main([*words, "--engine", "eager"]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("busy")]
