"""The one command for a GPU: its stages, its clock and its three files, rehearsed with stages that cost nothing."""

import tarfile

import pytest

from benchmarks import gpu
from benchmarks.gpu import Stage

SAVES = """
import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("what was measured")
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    def call(stages: list[Stage], *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(gpu, "stages", lambda *args: stages)
        code = gpu.main(["--out", str(tmp_path), "--device", "cpu", *words])
        return (code, *capsys.readouterr())

    return call


def test_every_stage_is_accounted_for_and_a_failure_stops_nobody(run, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    monkeypatch.setattr(gpu, "GRACE", 5.0)
    page = tmp_path / "work" / "results"
    write = (
        f"import pathlib; p = pathlib.Path({str(page)!r}); p.mkdir(exist_ok=True); (p / 'a.md').write_text('a table')"
    )
    code, out, _ = run(
        [
            Stage("breaks", 30, ["-c", "import sys; print('words of it'); sys.exit(3)"]),
            Stage("hangs", 6.0, ["-c", "import time; time.sleep(60)"]),
            Stage("tests", 6.0, ["-c", SAVES]),
            Stage("writes", 30, ["-c", write]),
        ]
    )
    assert code == 1
    assert "| breaks | FAILED, exit code 3 |" in out
    assert "| hangs | stopped: out of time |" in out
    assert "| tests | FAILED: out of time |" in out, "tests that did not end have not passed"
    assert "what was measured" in (tmp_path / "log.txt").read_text(), "a stage may still write its record"
    assert "| writes | done |" in out
    assert "words of it" in (tmp_path / "log.txt").read_text()
    assert "a table" in (tmp_path / "summary.md").read_text()
    with tarfile.open(tmp_path / "records.tar.gz") as archive:
        assert "./results/a.md" in archive.getnames()


def test_ctrl_c_ends_the_stage_and_keeps_the_rest(run, tmp_path, monkeypatch):
    honest = gpu.run

    def interrupted(stage, limit, log):
        if stage.name == "second":
            raise KeyboardInterrupt
        return honest(stage, limit, log)

    monkeypatch.setattr(gpu, "run", interrupted)
    code, out, err = run([Stage(name, 30, ["-c", "print('x')"]) for name in ("first", "second", "third")])
    assert code == 130
    for line in ("| first | done |", "| second | stopped |", "| third | left out: stopped |"):
        assert line in out
        assert line in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "records.tar.gz").exists()
    assert err.splitlines()[-1] == "stopped"


def test_a_stage_is_not_left_behind(tmp_path, monkeypatch):
    """Ctrl-C while a stage runs: it may write down what it has, and is gone."""
    monkeypatch.setattr(gpu, "GRACE", 60.0)
    waits = gpu.subprocess.Popen.wait
    ready, started = tmp_path / "ready", []

    def wait(process, timeout=None):
        if process not in started:
            started.append(process)
            while not ready.exists():
                pass
            raise KeyboardInterrupt
        return waits(process, timeout)

    monkeypatch.setattr(gpu.subprocess.Popen, "wait", wait)
    code = SAVES.replace("    time.sleep(60)", f"    open({str(ready)!r}, 'w').close(); time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        gpu.run(Stage("x", 600, ["-c", code]), 600, tmp_path / "log.txt")
    assert started[0].returncode == 0
    assert "what was measured" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["--device", "tpu"],
        ["--dtype", "int8"],
        ["--minutes", "nan"],
        ["--minutes", "0"],
        ["--sizes", "lab,lab:1x"],
        ["--sizes", ","],
    ],
)
def test_bad_flags_are_one_line(tmp_path, capsys, words):
    assert gpu.main(["--out", str(tmp_path / "x"), *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words[1].rpartition(",")[2] in lines[0]
    assert not (tmp_path / "x").exists()


def test_what_does_not_fit_the_time_is_named(run):
    code, out, _ = run([Stage("late", 30, ["-c", "pass"])], "--minutes", "0.1")
    assert code == 0
    assert "| late | left out: no time |" in out


def test_no_cuda_tests_is_no_failure(run):
    code, out, _ = run([Stage("tests", 60, ["-c", "import sys; sys.exit(5)"])])
    assert code == 0
    assert "no CUDA tests to run here" in out


def test_stages_cover_every_size():
    stages = gpu.stages(["lab", "lab:8b"], "cuda", "bfloat16", "folder")
    names = [stage.name for stage in stages]
    assert names[0] == "tests"
    for what in ("compare", "peers", "sweep draft-length", "sweep acceptance"):
        assert {f"{what} lab", f"{what} lab:8b"} <= set(names)
    for stage in stages[1:]:
        assert "folder" in stage.command
    assert stages[names.index("identity in float32")].command[-2:] == ["--dtype", "float32"]
    assert len({" ".join(stage.command) for stage in stages}) == len(stages)
