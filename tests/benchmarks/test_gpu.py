"""The one command for a GPU: its stages, its clock and its three files, and a rehearsal that is interrupted.

In the rehearsal a stage is a process forked from this one, which has loaded the libraries already. It is interrupted at
seeded moments. A moment is one of the events that all processes of a run count together: a turn that a decoding has
done, a file that is written.
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

from benchmarks import common, gpu, roofline
from benchmarks.gpu import TESTS, Stage
from benchmarks.peers import page as peers_page
from speclab.lab import decodings
from speclab.models import prompts, timing
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.system import files
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.grids import pairs_often

SAVES = """
import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("what was", "measured")
"""


def code_stage(name: str, seconds: float, code: str) -> Stage:
    return Stage(name, seconds, ("-c", code))


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """The command with other stages; where they may write is `work`."""
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    monkeypatch.setattr(gpu, "GRACE", 5.0)
    monkeypatch.setattr(gpu, "LOOK", 0.01)

    def call(make, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(gpu, "stages_of", lambda args, work: make(work))
        code = gpu.main(["--out", str(tmp_path), "--device", "cpu", *words])
        return (code, *capsys.readouterr())

    return call


def writes(work, name: str, then: str = "") -> str:
    """The code of a stage with one record and its page."""
    lines = [
        f"import pathlib; p = pathlib.Path({str(work / 'results')!r}); p.mkdir(exist_ok=True)",
        f"(p / '{name}.json').write_text('{{}}'); (p / '.{name}').write_text('a table of {name}')",
        f"(p / '.{name}').rename(p / '{name}.md')",  # whole or not at all, as the lab writes files
        f"(p / '.{name}.part').write_text('half of it')",
    ]
    return "\n".join([*lines, then])


def members(folder) -> set[str]:
    with tarfile.open(folder / "records.tar.gz") as archive:
        return set(archive.getnames())


def test_every_stage_is_accounted_for_and_a_failure_stops_nobody(run, tmp_path):
    code, out, _ = run(
        lambda work: [
            code_stage("breaks", 30, "import sys; print('its reason | in words'); sys.exit(3)"),
            code_stage("crashes", 30, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
            code_stage("hangs", 6.0, "import time; time.sleep(60)"),
            code_stage("saves", 6.0, SAVES),
            code_stage(TESTS, 30, "print('7 passed in 2.00s')"),
            code_stage("writes", 30, writes(work, "a")),
        ]
    )
    assert code == 1
    page = (tmp_path / "summary.md").read_text()
    for line in (
        "| breaks | FAILED, exit code 3: its reason / in words (",
        "| crashes | FAILED, ended by signal 9 (",
        "| hangs | stopped: out of time (",
        "| saves | stopped: out of time (",
        f"| {TESTS} | done: 7 passed in 2.00s (",
        "| writes | done (",
    ):
        assert line in out
        assert line in page
    assert "what was measured" in (tmp_path / "log.txt").read_text(), "a stage may still write its record"
    assert "# a\n\na table of a" in page
    assert members(tmp_path) == {"results/a.json", "results/a.md"}, "nothing that is half written"
    assert {path.name for path in tmp_path.iterdir()} == {"summary.md", "log.txt", "records.tar.gz"}


def test_records_are_kept_while_a_stage_still_runs(run, tmp_path, monkeypatch):
    """What is in the archive when the whole group is killed a moment later."""
    seen, write_new = [], gpu.Results.write_new

    def look(one):
        write_new(one)
        if (one.work / "results" / "a.md").exists() and not seen:
            write_new(one)
            seen.append((members(tmp_path), (tmp_path / "summary.md").read_text()))
            (one.work / "go").touch()

    monkeypatch.setattr(gpu.Results, "write_new", look)
    waits = "import time\nwhile not (p.parent / 'go').exists(): time.sleep(0.01)"
    code, _, _ = run(lambda work: [code_stage("long", 60, writes(work, "a", waits)), code_stage("last", 60, "pass")])
    assert code == 0
    (names, page), *_ = seen
    assert "results/a.json" in names
    for line in ("| long | running |", "| last | to come |", "a table of a"):
        assert line in page


@pytest.mark.parametrize("impatient", [False, True])
def test_a_stage_is_not_left_behind(tmp_path, monkeypatch, impatient):
    """Ctrl-C while a stage runs: it may write down what it has, and is gone. A second one takes that time away."""
    ready, log, stops = tmp_path / "ready", tmp_path / "log.txt", []
    monkeypatch.setattr(gpu, "GRACE", 60.0)
    monkeypatch.setattr(gpu, "LOOK", 0.01)

    def look():
        if ready.exists() and len(stops) <= impatient:
            stops.append(gpu.Stopped(signal.SIGINT))

    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * impatient
    code = deaf + SAVES.replace("    time.sleep(60)", f"    open({str(ready)!r}, 'w').close(); time.sleep(60)")
    returned, what = gpu.run(code_stage("x", 600, code), 600, log, look, stops)
    assert returned == (-signal.SIGKILL if impatient else 0)
    assert what == "stopped"
    assert ("what was measured" in log.read_text()) != impatient


def test_a_full_disk_stops_nothing(run, tmp_path, monkeypatch):
    """What cannot be written is said once and tried again."""
    honest, fails = gpu.write_whole, [True] * 6

    def write(path, content):
        if fails:
            fails.pop()
            raise EnvironmentProblem("no space left; free some")
        return honest(path, content)

    monkeypatch.setattr(gpu, "write_whole", write)
    code, _, err = run(lambda work: [code_stage(str(i), 30, "pass") for i in range(6)])
    assert code == 0
    assert err.count("no space left") == 1
    assert "| 5 | done (" in (tmp_path / "summary.md").read_text()


def test_what_does_not_fit_the_time_is_named(run, monkeypatch):
    monkeypatch.setattr(gpu, "LEAST", 20.0)
    code, out, _ = run(lambda work: [code_stage("late", 30, "pass")], "--minutes", "0.1")
    assert code == 0
    assert "| late | left out: no time |" in out


# --- the stages ---


def planned(folder, *words: str) -> list[Stage]:
    return gpu.stages_of(gpu.make_parser().parse_args(["--out", "x", *words]), folder)


def test_the_headline_comes_first(tmp_path):
    stages = planned(tmp_path)
    of_size = [[f"{name}: {what}" for what in ("compare", "roofline", "peers")] for name in gpu.SIZES.split(",")]
    assert [stage.name for stage in stages] == [*of_size[0], "float32 identity", TESTS, *of_size[1], *of_size[2]]
    for stage in stages:
        assert str(tmp_path) in stage.command or stage.name == TESTS
    assert "gpu-lab-8b-v128256" in stages[0].command
    assert "float32" in stages[3].command


def test_folders_are_named_in_full_and_apart(pair_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(pair_folder)
    first, *_ = planned(tmp_path, "--sizes", "target,lab", "--draft", "draft")
    assert str(pair_folder / "target") in first.command
    assert f"{pair_folder / 'draft'},ngram" in first.command
    assert "gpu-target" in first.command
    (tmp_path / "target").symlink_to(pair_folder / "target")
    with pytest.raises(UsageProblem, match="different names"):
        planned(tmp_path, "--sizes", f"target,{tmp_path / 'target'}")


# --- the rehearsal ---

KINDS = {"-roofline": roofline.RooflineRun, "-peers": peers_page.PeersRun, "": ComparisonRun}
RECORDS = {  # what a finished stage leaves
    "target: compare": "gpu-target",
    "target: roofline": "gpu-target-roofline",
    "target: peers": "gpu-target-peers",
    "float32 identity": "gpu-float32",
    TESTS: "",
    "draft: compare": "gpu-draft",
    "draft: roofline": "gpu-draft-roofline",
    "draft: peers": "gpu-draft-peers",
}


class Forked:
    """What `gpu.start` gives: a process, as subprocess.Popen is one."""

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

    def one_more(self) -> None:
        self._memory[:] = (self.n + 1).to_bytes(8, "little")
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
    identity = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},ngram"]

    def start(stage, log) -> Forked:
        def work() -> int:
            torch.set_num_threads(1)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            sys.stdout, sys.stderr = (open(n, "w", closefd=False, buffering=1) for n in (1, 2))  # noqa: SIM115
            if stage.name == TESTS:
                print("22 skipped in 0.10s")
                return 0
            common.write_whole = events.counted(files.write_whole)
            decodings.Decoding.advance = events.counted(decodings.Decoding.advance)
            module, *words = stage.command[stage.command[0] == "-m" :]
            words += identity if stage.name == "float32 identity" else []
            words += ["--no-llama-cpp"] if module == "benchmarks.peers" else []
            words += ["--context", "8"] if module == "benchmarks.roofline" else []
            module = module.removesuffix(".py")
            return importlib.import_module("benchmarks.peers.__main__" if "peers" in module else module).main(words)

        return Forked(work)

    monkeypatch.setattr(gpu, "start", start)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("work")))  # what is killed leaves its folder
    monkeypatch.setattr(gpu, "GRACE", 30.0)
    monkeypatch.setattr(gpu, "LOOK", 0.005)
    monkeypatch.setattr(gpu, "WIDTHS", "1,5")
    monkeypatch.setattr(timing, "LARGE", 2**16)
    monkeypatch.setattr(roofline, "matrix_rate", lambda *args: 1e9)
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):\n    return x + 1"), ("prose", "return x")])
    monkeypatch.setattr(importlib.import_module("speclab.present.pictures.plots"), "comparison", lambda *args: [])
    sizes = ",".join(str(pair_folder / role) for role in ("target", "draft"))
    words = ["--out", str(tmp_path), "--sizes", sizes, "--draft", str(pair_folder / "draft"), "--device", "cpu"]
    words += ["--dtype", "float32", "--engine", "eager", "--max-new-tokens", "6", "--limit", "1", "--minutes", "100"]

    def run(action: str = "", at: int = -1) -> Outcome:
        events.action, events.at = action, at

        def work() -> int:
            os.setsid()
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                return gpu.main(words)

        code = Forked(work).wait()
        return Outcome(code, told_stages(tmp_path), kept_records(tmp_path))

    return run, events


def told_stages(folder: Path) -> dict[str, str]:
    """What became of each stage, in order."""
    table = (folder / "summary.md").read_text().partition("|---|---|\n")[2].partition("\n\n")[0]
    return dict(tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table.splitlines())


def kept_records(folder: Path) -> dict[str, object]:
    """All records in the archive, read and checked; three files lie in the folder, and none is a part."""
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
    assert {name: what.partition(" (")[0] for name, what in told.items()} == dict.fromkeys(RECORDS, "done") | {
        TESTS: "done: 22 skipped in 0.10s"
    }
    assert set(records) == set(filter(None, RECORDS.values()))
    assert events.n > 100


@pytest.mark.parametrize(
    ("action", "seed"),
    pairs_often(
        ["Ctrl-C", "stage killed", "all killed"], [0, 1], lambda action, seed: seed == 0 and action != "stage killed"
    ),
)
def test_what_was_finished_is_kept(rehearse, tmp_path, action, seed):
    run, events = rehearse
    moment = random.Random(f"{action} {seed}").randrange(20, 100)
    code, told, records = run(action, moment)
    assert list(told) == list(RECORDS), "every stage is named"
    assert events.n >= moment, "the moment came"
    for stage, what in told.items():
        if what.startswith("done") and RECORDS[stage]:
            assert RECORDS[stage] in records, stage
    states = [what.partition(":")[0].partition(",")[0].partition(" (")[0] for what in told.values()]
    broken = {"Ctrl-C": "stopped", "stage killed": "FAILED", "all killed": "running"}[action]
    after = {"Ctrl-C": "left out", "stage killed": "done", "all killed": "to come"}[action]
    where = states.index(broken)
    assert states == ["done"] * where + [broken] + [after] * (len(states) - where - 1)
    assert code == {"Ctrl-C": 130, "stage killed": 1, "all killed": -signal.SIGKILL}[action]
    if action == "stage killed":
        assert "ended by signal 9" in list(told.values())[where]
    finished = {RECORDS[stage] for stage, what in told.items() if what.startswith("done")}
    assert set(records) - finished <= {list(RECORDS.values())[where]}, "of others only the interrupted stage's record"


@pytest.mark.full
def test_the_command_itself_on_the_labs_pair(tmp_path):
    """All stages in processes of their own, as a user starts them."""
    words = ["--device", "cpu", "--dtype", "float32", "--engine", "eager", "--sizes", "lab", "--limit", "1"]
    line = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), *words, "--max-new-tokens", "6"]
    done = subprocess.run([*line, "--minutes", "30"], capture_output=True, text=True)
    assert done.returncode == 0, (tmp_path / "log.txt").read_text()
    assert all(what.startswith("done") for what in told_stages(tmp_path).values())
    assert set(kept_records(tmp_path)) == {"gpu-lab", "gpu-lab-roofline", "gpu-lab-peers", "gpu-float32"}
