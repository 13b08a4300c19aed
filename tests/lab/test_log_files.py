"""A run that is killed keeps what it measured: every turn is in its log when the next one begins."""

import os
import signal
from pathlib import Path

import pytest

import compare
from speclab.cli import unfinished
from speclab.lab import harness
from speclab.models import prompts
from speclab.records import files, log_files
from speclab.records.arms import BASELINE
from speclab.records.runs import ComparisonRun

N_NEW, KINDS = 12, ("code", "prose")


@pytest.fixture
def run(pair_folder, tmp_path, monkeypatch):
    """compare.py on a tiny pair and two prompts, which have one turn each at two temperatures."""
    monkeypatch.setattr(prompts, "standard", lambda: [(kind, f"{kind} x + 1, x") for kind in KINDS])

    def call(*words: str) -> int:
        models = ["--target", str(pair_folder / "target"), "--draft", "ngram", "-k", "2"]
        size = ["--limit", "1", "--max-new-tokens", str(N_NEW), "--threads", "1", "--engine", "eager"]
        return compare.main([*models, *size, "--out-dir", str(tmp_path), *words])

    return call


def killed_in_turn(monkeypatch, n: int) -> None:
    """SIGKILL in the middle of turn number n, from 1 on: nothing can be done about it any more."""
    turns, right = iter(range(1, 100)), harness.interleaved

    def schedule(decodings: list, turn: int) -> None:
        if next(turns) == n:
            decodings[0].advance()
            os.kill(os.getpid(), signal.SIGKILL)
        right(decodings, turn)

    monkeypatch.setattr(harness.measure, "__defaults__", (*harness.measure.__defaults__[:-1], schedule))


def in_a_child(action) -> int:
    """-> the signal that ended it"""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def test_a_killed_run_loses_only_its_turn(run, tmp_path, monkeypatch, capsys):
    killed_in_turn(monkeypatch, 4)
    assert in_a_child(run) == signal.SIGKILL
    monkeypatch.undo()
    path = tmp_path / "results" / "local.log.jsonl"
    [(head, lines)] = log_files.read(path)
    assert head["settings"]["max_new_tokens"] == N_NEW
    done = {(line.prompt_index, line.temperature) for line in lines}
    assert len(done) == 3
    for place in done:
        of_turn = [line for line in lines if (line.prompt_index, line.temperature) == place]
        assert BASELINE in [line.arm for line in of_turn]
        assert all(len(line.texts[0]) == N_NEW and line.decode_seconds[0] > 0 for line in of_turn)
    assert unfinished.main([str(path)]) == 0
    assert "speedup" in capsys.readouterr().out


def test_a_finished_run_leaves_no_log_and_one_says_where_an_older_log_is(run, tmp_path, monkeypatch, capsys):
    written, right = [], log_files.LogFile.write

    def write(log: log_files.LogFile, lines) -> None:
        right(log, lines)
        written.append(log.path.read_text())

    monkeypatch.setattr(log_files.LogFile, "write", write)
    assert run() == 0
    path = tmp_path / "results" / "local.log.jsonl"
    assert len(written) == 2 * len(KINDS)
    assert not path.exists()
    older = written[-1]
    path.write_text(older)
    assert run("--temperature", "0") == 0
    killed = tmp_path / "results" / "local.killed.jsonl"
    assert killed.name in capsys.readouterr().err
    assert killed.read_text() == older, "what an earlier run measured is lost"
    assert not path.exists()


def test_the_tables_of_a_log_are_those_of_the_record(run, tmp_path, monkeypatch):
    monkeypatch.setattr(log_files.LogFile, "discard", lambda log: None)
    assert run("--repeats", "2", "--temperature", "0") == 0
    record = files.read(tmp_path / "results" / "local.json", ComparisonRun)
    [measured] = log_files.read(tmp_path / "results" / "local.log.jsonl")
    again = unfinished.record_of(measured)
    names = ("method", "prompt_kind", "n_rounds", "n_accepted", "seconds", "speedup", "same_as_baseline")
    rows = [[tuple(getattr(row, name) for name in names) for row in one.rows] for one in (record, again)]
    assert [files._rounded(row, "") for row in rows[0]] == [files._rounded(row, "") for row in rows[1]]
    assert again.prompts == record.prompts
    path: Path = tmp_path / "results" / "local.log.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    [cut] = log_files.read(path)
    n_texts, n_cut = (sum(len(line.texts) for line in one.lines) for one in (measured, cut))
    assert n_cut == n_texts - 1, "a line that was cut is left out"


def test_a_log_that_cannot_be_written_stops_nothing(run, tmp_path, capsys):
    (tmp_path / "results" / "local.log.jsonl").mkdir(parents=True)
    assert run("--temperature", "0") == 0
    assert (tmp_path / "results" / "local.json").exists()
    assert capsys.readouterr().err.count("cannot be written") == 1
