"""The whole command on tiny models, interrupted at seeded moments: what was finished is kept, readable, and named.

A stage is a process of its own here, too, forked from this one, which has loaded the libraries already. A moment is one
of the events that all processes of a run count together: a round that a decoding has done, a file that is written.
"""

import contextlib
import importlib
import mmap
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from benchmarks import roofline
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import one_size, plain, preflight
from benchmarks.gpu.findings import FindingsRun
from benchmarks.gpu.stages import PREFLIGHT, TESTS
from benchmarks.peers import page as peers_page
from speclab.lab import decodings
from speclab.models import prompts, timing
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.system import files
from tests.grids import pairs_often

KINDS = {
    "-preflight": FindingsRun,
    "-roofline": roofline.RooflineRun,
    "-peers": peers_page.PeersRun,
    "-profile": FindingsRun,
    "-plain": FindingsRun,
    "": ComparisonRun,
}
FIRST, IDENTITY, SECOND, LAST = "target", "float32 identity", "draft", "experiments"
RECORDS = {  # what a finished stage leaves
    PREFLIGHT: {"gpu-preflight"},
    FIRST: {f"gpu-target{ending}" for ending in ("", "-roofline", "-peers", "-profile")},
    IDENTITY: {"gpu-float32"},
    TESTS: set(),
    SECOND: {f"gpu-draft{ending}" for ending in ("", "-roofline", "-peers", "-profile")},
    LAST: {"gpu-plain"},
}


class Forked:
    """What `command.start` gives: a process, as subprocess.Popen is one."""

    def __init__(self, work: Callable[[], int]):
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with contextlib.suppress(BaseException):
                try:
                    code = work()
                except KeyboardInterrupt:
                    code = 130
            os._exit(code)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """-> exit code, None while it runs"""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """-> exit code"""
        while (code := self.poll()) is None:
            time.sleep(0.002)
        return code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Events:
    """A number that all processes count up, and what happens at one of them."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)
        self.action, self.at = "", -1

    @property
    def n(self) -> int:
        return int.from_bytes(self._memory[:], "little")

    @n.setter
    def n(self, value: int) -> None:
        self._memory[:] = value.to_bytes(8, "little")

    def one_more(self) -> None:
        self.n += 1
        if self.n != self.at:
            return
        pid, number = {
            "Ctrl-C": (os.getppid(), signal.SIGINT),
            "stage killed": (os.getpid(), signal.SIGKILL),
            "all killed": (0, signal.SIGKILL),  # this process's group
        }[self.action]
        os.kill(pid, number)
        if self.action == "Ctrl-C":
            time.sleep(60)  # until it is passed on to this process

    def counted(self, function: Callable) -> Callable:
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            self.one_more()
            return result

        return call


class Outcome(NamedTuple):
    code: int
    stages: dict[str, str]  # what the summary says
    records: dict[str, object]


@pytest.fixture
def rehearse(pair_folder, tmp_path, tmp_path_factory, monkeypatch):
    """The command in a process group of its own, until something happens at an event."""
    events = Events()
    identity = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},ngram", "--verbose"]

    def start(stage, log) -> Forked:
        def work() -> int:
            torch.set_num_threads(1)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            sys.stdout, sys.stderr = (open(n, "w", closefd=False, buffering=1) for n in (1, 2))  # noqa: SIM115
            if stage.name == TESTS:
                print("22 skipped in 0.10s")
                return 0
            for owner in (one_size.common, one_size):
                owner.write_whole = events.counted(files.write_whole)
            decodings.Decoding.advance = events.counted(decodings.Decoding.advance)
            module, *words = stage.command[stage.command[0] == "-m" :]
            words += identity if module == "compare.py" else []
            return importlib.import_module(module.removesuffix(".py")).main(words)

        return Forked(work)

    monkeypatch.setattr(command, "start", start)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("work")))  # what is killed leaves its folder
    monkeypatch.setattr(command, "GRACE", 30.0)
    monkeypatch.setattr(command, "LOOK", 0.005)
    monkeypatch.setattr(timing, "LARGE", 2**16)
    monkeypatch.setattr(roofline, "matrix_rate", lambda *args: 1e9)
    monkeypatch.setattr(preflight, "SMALL_WEIGHT", (8, 8))
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):\n    return x + 1"), ("prose", "return x")])
    monkeypatch.setattr(one_size, "WIDTHS", [1, 5])
    monkeypatch.setattr(importlib.import_module("speclab.present.pictures.plots"), "comparison", lambda *args: [])
    monkeypatch.setattr(plain, "WAYS", {"eager": plain.eager, "static generate": plain.static_generate})
    sizes = ",".join(str(pair_folder / role) for role in ("target", "draft"))
    words = ["--out", str(tmp_path), "--sizes", sizes, "--draft", str(pair_folder / "draft"), "--device", "cpu"]
    words += ["--dtype", "float32", "--engine", "eager", "--max-new-tokens", "6", "--limit", "1", "--minutes", "100"]

    def run(action: str = "", at: int = -1) -> Outcome:
        events.action, events.at, events.n = action, at, 0

        def work() -> int:
            os.setsid()
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                return command.main(words)

        code = Forked(work).wait()
        return Outcome(code, told_stages(tmp_path), kept_records(tmp_path))

    return run, events


def told_stages(folder: Path) -> dict[str, str]:
    """What became of each stage, in order."""
    table = (folder / "summary.md").read_text().partition("## Stages\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {name: what for name, what, _ in rows}


def kept_records(folder: Path) -> dict[str, object]:
    """All records in the archive, read and checked; at most three files lie in the folder, and none is a part."""
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"summary.md", "log.txt", "records.tar.gz"}
    found = {}
    unpacked = folder / "unpacked"
    with tarfile.open(folder / "records.tar.gz") as archive:
        archive.extractall(unpacked, filter="data")
    for path in sorted(unpacked.glob("results/*.json")):
        ending = next(ending for ending in KINDS if path.stem.endswith(ending))
        found[path.stem] = read(path, KINDS[ending])
    return found


@pytest.mark.full
def test_undisturbed(rehearse, tmp_path):
    run, events = rehearse
    code, told, records = run()
    assert code == 0, (tmp_path / "log.txt").read_text()
    assert told == dict.fromkeys(RECORDS, "done") | {TESTS: "done: 22 skipped in 0.10s"}
    assert set(records) == set().union(*RECORDS.values())
    assert events.n > 100
    page = (tmp_path / "summary.md").read_text()
    assert page.startswith("# target: ")
    assert " at k = 4, greedy, same texts" in page.splitlines()[0]


@pytest.mark.parametrize(
    ("action", "seed"),
    pairs_often(
        ["Ctrl-C", "stage killed", "all killed"], [0, 1], lambda action, seed: seed == 0 and action != "stage killed"
    ),
)
def test_what_was_finished_is_kept(rehearse, tmp_path, action, seed):
    run, events = rehearse
    moment = random.Random(f"{action} {seed}").randrange(5, 250)  # after the preflight
    code, told, records = run(action, moment)
    assert list(told) == list(RECORDS), "every stage is named"
    assert events.n >= moment, "the moment came"
    for stage, what in told.items():
        if what.startswith("done"):
            assert RECORDS[stage] <= set(records), stage
    states = [what.partition(":")[0].partition(",")[0] for what in told.values()]
    broken = {"Ctrl-C": "stopped", "stage killed": "FAILED", "all killed": "running"}[action]
    after = {"Ctrl-C": "left out", "stage killed": "done", "all killed": "to come"}[action]
    where = states.index(broken)
    assert states == ["done"] * where + [broken] + [after] * (len(states) - where - 1)
    assert code == {"Ctrl-C": 130, "stage killed": 1, "all killed": -signal.SIGKILL}[action]
    if action == "stage killed":
        assert "ended by signal 9" in list(told.values())[where]
    finished = {"gpu-preflight"}.union(*(RECORDS[stage] for stage, what in told.items() if what.startswith("done")))
    assert set(records) - finished <= list(RECORDS.values())[where], "of others only the interrupted stage's records"


@pytest.mark.full
def test_the_command_itself_on_the_labs_pair(tmp_path):
    """Some minutes: all stages in processes of their own, as a user starts them."""
    words = ["--device", "cpu", "--dtype", "float32", "--engine", "eager", "--sizes", "lab:20m,lab", "--limit", "1"]
    line = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), *words, "--max-new-tokens", "6"]
    done = subprocess.run([*line, "--minutes", "30"], capture_output=True, text=True)
    assert done.returncode == 0, (tmp_path / "log.txt").read_text()
    told = told_stages(tmp_path)
    assert list(told) == [PREFLIGHT, "lab:20m", IDENTITY, TESTS, "lab", LAST]
    assert all(what.startswith("done") for what in told.values())
    assert set(kept_records(tmp_path)) >= {"gpu-preflight", "gpu-lab-20m", "gpu-float32", "gpu-lab", "gpu-plain"}


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_summary_says_so(tmp_path, capsys):
    assert command.main(["--out", str(tmp_path), "--sizes", "lab"]) == 3
    told = told_stages(tmp_path)
    assert "finds no such device" in told[PREFLIGHT]
    assert set(list(told.values())[1:]) == {"left out: the preflight failed"}
    assert "an NVIDIA GPU" in capsys.readouterr().err.splitlines()[-1]
    (record,) = kept_records(tmp_path).values()
    assert "finds no such device" in record.findings[-1].problem
