"""compare.py end to end on a tiny pair: the record, the tables, the pictures, the exit code, Ctrl-C."""

import json
import os
import re
import signal
from dataclasses import replace

import pytest

import compare
from speclab.cli import compare as command
from speclab.core.sampling import Sampling
from speclab.lab import comparison, output_checks
from speclab.lab.bench import Bench
from speclab.models import prompts
from speclab.present.pictures import plots
from speclab.records.files import SCHEMA_VERSION, ComparisonRun, read
from speclab.system.errors import EnvironmentProblem


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    """compare.py on the tiny pair and three short prompts of three kinds; returns (exit code, stdout, stderr)."""
    texts = [("code", "def f(x):"), ("prose", "return x"), ("copy", "x + 1, x + 1,")]
    monkeypatch.setattr(prompts, "standard", lambda: texts)

    def call(*words):
        models = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},ngram"]
        size = ["--limit", "1", "--max-new-tokens", "16", "-k", "2,4", "--threads", "1", "--engine", "eager"]
        code = compare.main([*models, *size, "--out-dir", str(tmp_path), *words])
        return (code, *capsys.readouterr())

    return call


def test_a_draft_that_learns_is_replayed_in_the_order_of_the_run(run, pair_folder, monkeypatch):
    texts = [("code", "def f(x):"), ("code", "def g(y):"), ("prose", "return x"), ("prose", "x is")]
    monkeypatch.setattr(prompts, "standard", lambda: texts)
    order, right = [], comparison.rounds_of_texts

    def rounds_of_texts(measured):
        replayed = right(measured)
        return lambda arm, index, text: order.append(index) or replayed(arm, index, text)

    monkeypatch.setattr(comparison, "rounds_of_texts", rounds_of_texts)
    code, *_ = run(
        *GREEDY, "--draft", f"hybrid:suffix+{pair_folder / 'draft'}", "--limit", "2", "--max-new-tokens", "12"
    )
    assert code == 0
    assert list(dict.fromkeys(order)) == [0, 2, 1, 3]


GREEDY = ("--draft", "ngram", "-k", "2", "--temperature", "0")


def saved(folder) -> ComparisonRun:
    return read(folder / "results" / "local.json", ComparisonRun)


def test_record_tables_and_pictures(run, tmp_path):
    code, out, _ = run()
    assert code == 0
    text, markdown = ((tmp_path / "results" / name).read_text() for name in ("local.json", "local.md"))
    run_record = saved(tmp_path)
    for row in run_record.rows:
        if row.draft:
            assert row.n_emitted == row.n_accepted + row.n_rounds  # nothing is cut: EOS is ignored
            assert row.n_rejected <= row.n_rounds
            assert row.same_as_baseline is (True if row.temperature == 0 else None)
            assert re.search(rf"{row.method}.*\b{row.speedup:.2f}x", markdown)
    everything = [r for r in run_record.rows if r.prompt_kind == "all"]
    assert [(r.method, r.draft_length) for r in everything if r.temperature == 0.8] == [
        ("baseline", 0), ("model", 2), ("model", 4), ("ngram", 2), ("ngram", 4),
    ]  # fmt: skip
    assert all(r.n_tokens == 3 * 15 for r in everything), "prefill's token was counted, or a budget was missed"
    assert "token for token: identical" in out
    assert str(tmp_path) not in text, "an absolute path got into the record"
    drawn = [f"local-{kind}.png" for kind in ("speedup", "why")]
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == drawn
    assert not list(tmp_path.rglob("*.part"))


def test_k_zero_and_dial_rows(run, pair_folder, tmp_path):
    """k = 0 is plain decoding; the dial at 1 is always right and makes greedy rows."""
    dial = f"dial:1:{pair_folder / 'draft'}"
    code, *_ = run("--draft", dial, "-k", "0,3")
    record = json.loads((tmp_path / "results" / "local.json").read_text())
    rows = [r for r in record["rows"] if r["prompt_kind"] == "all" and r["draft"]]
    assert record["schema_version"] == SCHEMA_VERSION
    assert code == 0
    assert {r["temperature"] for r in rows} == {0.0}
    plain, dialled = rows
    assert dialled["method"].startswith("dial:1:")
    assert "/" not in dialled["method"], "an absolute path got into the record"
    assert plain["tokens_per_round"] == 1
    assert plain["acceptance_rate"] is None
    assert dialled["acceptance_rate"] == 1


@pytest.mark.usefixtures("forgetful")
def test_a_wrong_token_fails_the_run(run):
    """The comparison is a check, not only a stopwatch: one flipped token means exit code 1."""
    code, out, _ = run("-k", "2", "--temperature", "0")
    assert code == 1
    assert "BUG" in out


def test_a_wrong_distribution_fails_the_run(run, pair_folder, monkeypatch):
    """Greedy tokens passed off as samples."""
    honest = command.speculative_decode

    def hot(target, drafter, prompt, k, settings, **kwargs):
        return honest(target, drafter, prompt, k, replace(settings, sampling=Sampling()), **kwargs)

    monkeypatch.setattr(command, "speculative_decode", hot)
    code, out, _ = run(
        "-k", "2", "--temperature", "0.8", "--max-new-tokens", "60", "--draft", f"{pair_folder / 'draft'}"
    )
    assert code == 1
    assert "NOT the target's distribution" in " ".join(out.split())


@pytest.mark.parametrize(
    ("stop", "expected"), [(KeyboardInterrupt(), 0), (EnvironmentProblem("the logits are not finite"), 3)]
)
def test_a_stop_in_the_middle_keeps_what_is_measured(run, monkeypatch, tmp_path, stop, expected):
    honest = Bench.budget

    def stopped(bench, prompt, sampling):
        if prompt.kind == "prose":
            raise stop
        return honest(bench, prompt, sampling)

    monkeypatch.setattr(Bench, "budget", stopped)
    code, out, err = run(*GREEDY)
    kept = saved(tmp_path)
    assert code == expected
    assert {s.prompt_index for s in kept.raw} == {0}
    if code == 0:
        assert kept.interrupted
        assert "Stopped before the end" in out
        assert "stopped; 1 prompt is complete" in err
    else:
        assert err.splitlines()[-1] == "error: the logits are not finite"
        assert "NOT CHECKED" not in out


def stops(monkeypatch, module, name: str, *errors: BaseException) -> None:
    """The first calls of a function end in these errors; the later ones are as they were."""
    honest, left = getattr(module, name), list(errors)

    def call(*args, **kwargs):
        if left:
            raise left.pop(0)
        return honest(*args, **kwargs)

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize(
    ("stop", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 3, "error: out of memory"),
    ],
)
def test_texts_that_nobody_has_judged_are_named_and_the_exit_code_says_so(run, monkeypatch, tmp_path, stop, code, said):
    """The second arm's check is stopped: every row is there, the first arm is judged, the second is not."""
    honest = output_checks.judge_greedy

    def greedy(measured, arm, *rest):
        if arm.draft == "ngram":
            raise stop
        return honest(measured, arm, *rest)

    monkeypatch.setattr(output_checks, "judge_greedy", greedy)
    found, out, err = run("-k", "2", "--temperature", "0")
    kept = saved(tmp_path)
    assert found == code
    assert err.splitlines()[-1].startswith(said)
    assert kept.interrupted
    assert kept.unchecked == ["ngram k=2 at temperature 0"]
    assert [entry["arm"] for entry in kept.correctness] == ["model k=2"]
    assert {row.method for row in kept.rows} >= {"baseline", "model", "ngram"}
    for text in (out, (tmp_path / "results" / "local.md").read_text()):
        assert "NOT CHECKED: ngram k=2 at temperature 0" in text


@pytest.mark.parametrize("place", ["calibrated", "build_rows"])
def test_two_stops_while_the_record_is_made_lose_no_row(run, monkeypatch, tmp_path, place):
    stops(monkeypatch, comparison, place, KeyboardInterrupt(), KeyboardInterrupt())
    code, out, _ = run(*GREEDY)
    kept = saved(tmp_path)
    assert code == 0, "every text is judged"
    assert kept.interrupted
    assert len({row.method for row in kept.rows}) == 3
    assert "token for token: identical" in out


def test_a_signal_before_anything_is_measured(run, monkeypatch, tmp_path):
    monkeypatch.setattr(Bench, "budget", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, _, err = run(*GREEDY)
    assert code == 130
    assert err.splitlines()[-1] == "stopped"
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError()])
def test_an_output_that_is_full_or_gone_loses_no_file(run, monkeypatch, tmp_path, error):
    def fail(text, end=""):
        if "speedup" in text:  # the tables, after the measurement
            raise error

    monkeypatch.setattr(command, "say", fail)
    code, _, err = run(*GREEDY)
    assert code == (0 if isinstance(error, BrokenPipeError) else 3)
    assert ("standard output: No space left" in err) == (code == 3)
    assert saved(tmp_path).rows


def test_a_fault_in_what_a_picture_shows_loses_no_table_and_no_record(run, monkeypatch, tmp_path):
    stops(monkeypatch, plots, "_why", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(*GREEDY)
    assert [row for row in saved(tmp_path).rows if row.draft]
    assert "speedup" in (tmp_path / "results" / "local.md").read_text()
