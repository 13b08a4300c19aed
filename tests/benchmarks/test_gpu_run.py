"""The one command for a GPU: its stages, its clock and its three files, with stages that cost nothing."""

import os
import signal
import tarfile
import time

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import results, stages
from benchmarks.gpu.signals import Stopped
from benchmarks.gpu.stages import PREFLIGHT, TESTS, Stage
from speclab.system.errors import EnvironmentProblem

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
    monkeypatch.setattr(command, "LEAST", 0.0)
    monkeypatch.setattr(command, "GRACE", 5.0)
    monkeypatch.setattr(command, "LOOK", 0.01)

    def call(make, *words: str) -> tuple[int, str, str]:
        fine = code_stage(PREFLIGHT, 30, "pass")
        monkeypatch.setattr(stages, "of_run", lambda args, targets, work: [fine, *make(work)])
        code = command.main(["--out", str(tmp_path), "--device", "cpu", "--sizes", "lab", *words])
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
        "| breaks | FAILED, exit code 3: its reason / in words |",
        "| crashes | FAILED, ended by signal 9 |",
        "| hangs | stopped: out of time |",
        "| saves | stopped: out of time |",
        f"| {TESTS} | done: 7 passed in 2.00s |",
        "| writes | done |",
    ):
        assert line in out
        assert line in page
    assert "what was measured" in (tmp_path / "log.txt").read_text(), "a stage may still write its record"
    assert "# a\n\na table of a" in page
    assert members(tmp_path) == {"results/a.json", "results/a.md"}, "nothing that is half written"
    assert {path.name for path in tmp_path.iterdir()} == {"summary.md", "log.txt", "records.tar.gz"}


def test_records_are_kept_while_a_stage_still_runs(run, tmp_path, monkeypatch):
    """What is in the archive when the whole group is killed a moment later."""
    seen, write_new = [], results.Results.write_new

    def look(one):
        write_new(one)
        if (one.work / "results" / "a.md").exists() and not seen:
            write_new(one)
            seen.append((members(tmp_path), (tmp_path / "summary.md").read_text()))
            (one.work / "go").touch()

    monkeypatch.setattr(results.Results, "write_new", look)
    waits = "import time\nwhile not (p.parent / 'go').exists(): time.sleep(0.01)"
    code, _, _ = run(lambda work: [code_stage("long", 60, writes(work, "a", waits)), code_stage("last", 60, "pass")])
    assert code == 0
    (names, page), *_ = seen
    assert "results/a.json" in names
    for line in ("| preflight | done |", "| long | running |", "| last | to come |", "a table of a"):
        assert line in page


def test_ctrl_c_while_files_are_written_loses_none(run, tmp_path, monkeypatch):
    """The page of the last stage is written all the same."""
    honest, stops = results.write_whole, []

    def write(path, content):
        if "| first | done |" in str(content) and not stops:
            stops.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        honest(path, content)

    monkeypatch.setattr(results, "write_whole", write)
    code, _, _ = run(lambda work: [code_stage("first", 30, writes(work, "a")), code_stage("second", 30, "pass")])
    assert code == 130
    page = (tmp_path / "summary.md").read_text()
    assert "| first | done |" in page
    assert "| second | left out: stopped |" in page
    assert "results/a.json" in members(tmp_path)


@pytest.mark.parametrize("impatient", [False, True])
def test_a_stage_is_not_left_behind(tmp_path, monkeypatch, impatient):
    """Ctrl-C while a stage runs: it may write down what it has, and is gone. A second one takes that time away."""
    ready, log, stops = tmp_path / "ready", tmp_path / "log.txt", []
    monkeypatch.setattr(command, "GRACE", 60.0)
    monkeypatch.setattr(command, "LOOK", 0.01)

    def look():
        if ready.exists() and len(stops) <= impatient:
            stops.append(Stopped(signal.SIGINT))

    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * impatient
    code = deaf + SAVES.replace("    time.sleep(60)", f"    open({str(ready)!r}, 'w').close(); time.sleep(60)")
    begun = time.monotonic()
    returned, what = command.run(code_stage("x", 600, code), 600, log, look, stops)
    assert returned == (-signal.SIGKILL if impatient else 0)
    assert what == "stopped"
    assert time.monotonic() - begun < 30
    assert ("what was measured" in log.read_text()) != impatient


def test_a_full_disk_stops_nothing(run, tmp_path, monkeypatch):
    """What cannot be written is said once and tried again."""
    honest, fails = results.write_whole, [True] * 6

    def write(path, content):
        if fails:
            fails.pop()
            raise EnvironmentProblem("no space left; free some")
        return honest(path, content)

    monkeypatch.setattr(results, "write_whole", write)
    code, _, err = run(lambda work: [code_stage(str(i), 30, "pass") for i in range(6)])
    assert code == 0
    assert err.count("no space left") == 1
    assert "| 5 | done |" in (tmp_path / "summary.md").read_text()


def test_what_does_not_fit_the_time_is_named(run, monkeypatch):
    monkeypatch.setattr(command, "LEAST", 20.0)
    code, out, _ = run(lambda work: [code_stage("late", 30, "pass")], "--minutes", "0.1")
    assert code == 0
    assert "| late | left out: no time |" in out


# --- the preflight comes first ---


def preflight_that(monkeypatch, code: str):
    """The command with this preflight, and a stage after it."""
    after = code_stage("after", 30, "print('it ran')")

    def of_run(args, targets, work) -> list[Stage]:
        return [code_stage(PREFLIGHT, 30, code.format(work=work)), after]

    monkeypatch.setattr(stages, "of_run", of_run)


def test_a_gpu_that_cannot_be_used_ends_it_early(run, tmp_path, monkeypatch, capsys):
    begun = "import pathlib, sys; p = pathlib.Path('{work}', 'results'); p.mkdir(); (p / 'gpu-preflight.json').touch()"
    preflight_that(monkeypatch, begun + "; sys.stderr.write('error: no graph'); sys.exit(3)")
    assert command.main(["--out", str(tmp_path), "--device", "cpu", "--sizes", "lab"]) == 3
    page = (tmp_path / "summary.md").read_text()
    assert "| preflight | FAILED, exit code 3: no graph |" in page
    assert "| after | left out: the preflight failed |" in page
    assert page.startswith("# lab: not measured\n")
    assert "no graph" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("code", [2, 3])
def test_wrong_words_leave_no_file(run, tmp_path, monkeypatch, capsys, code):
    preflight_that(monkeypatch, f"import sys; sys.stderr.write('error: lab:x is no size; use lab'); sys.exit({code})")
    assert command.main(["--out", str(tmp_path), "--device", "cpu"]) == code
    assert capsys.readouterr().err.splitlines()[-1] == "error: lab:x is no size; use lab"
    assert not list(tmp_path.iterdir())
