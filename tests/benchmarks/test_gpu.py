"""The one command for a GPU: its stages, its clock and its files."""

import os
import signal

import pytest

import compare as compare_script
from benchmarks import gpu, roofline
from benchmarks.gpu import TESTS, Stage
from benchmarks.peers import __main__ as peers
from benchmarks.peers import page as peers_page
from speclab.cli import compare
from speclab.models import prompts
from speclab.records.files import ComparisonRun, read
from tests.benchmarks.test_benchmarks import TEXTS

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
    """The command with other stages."""
    monkeypatch.setattr(gpu, "LEAST", 0.0)
    monkeypatch.setattr(gpu, "GRACE", 5.0)

    def call(stages, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(gpu, "stages_of", lambda args: stages)
        code = gpu.main(["--out", str(tmp_path), "--device", "cpu", *words])
        return (code, *capsys.readouterr())

    return call


def test_every_stage_is_accounted_for_and_a_failure_stops_nobody(run, tmp_path):
    (old := tmp_path / "results" / "old.md").parent.mkdir()
    old.touch()
    os.utime(old, (0, 0))
    writes = f"open({str(tmp_path / 'results' / 'a.md')!r}, 'w').write('![x](y)\\n\\na table of a')"
    code, out, _ = run(
        [
            code_stage("breaks", 30, "import sys; print('its reason | in words'); sys.exit(3)"),
            code_stage("crashes", 30, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
            code_stage("saves", 6.0, SAVES),
            code_stage(TESTS, 30, "print('7 passed in 2.00s')"),
            code_stage("writes", 30, writes),
        ]
    )
    assert code == 1
    page = (tmp_path / "summary.md").read_text()
    for line in (
        "| breaks | FAILED, exit code 3: its reason / in words (",
        "| crashes | FAILED, ended by signal 9 (",
        "| saves | stopped: out of time (",
        f"| {TESTS} | done: 7 passed in 2.00s (",
        "| writes | done (",
    ):
        assert out.count(line) == page.count(line) == 1
    assert "what was measured" in (tmp_path / "log.txt").read_text(), "a stage may still write its record"
    assert ("# a\n\na table of a" in page, "# old" in page) == (True, False), "the pages of its own records, bare"


@pytest.mark.parametrize("impatient", [False, True])
def test_a_stage_is_not_left_behind(tmp_path, monkeypatch, impatient):
    """Ctrl-C while a stage runs: it may write down what it has, and is gone. A second one takes that time away."""
    log, ready, made, start = tmp_path / "log.txt", tmp_path / "ready", [], gpu.start
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * impatient
    code = deaf + SAVES.replace("    time.sleep(60)", f"    open({str(ready)!r}, 'w').close(); time.sleep(60)")
    log.touch()

    def started(stage, out):
        made.append(start(stage, out))
        honest, stops = made[0].wait, [KeyboardInterrupt()] * (1 + impatient)

        def wait(timeout=None):
            while not ready.exists():
                pass
            if stops:
                raise stops.pop()
            return honest(timeout)

        made[0].wait = wait
        return made[0]

    monkeypatch.setattr(gpu, "start", started)
    with pytest.raises(KeyboardInterrupt):
        gpu.run(code_stage("x", 600, code), 600, log)
    assert made[0].returncode == (-signal.SIGKILL if impatient else 0)
    assert ("what was measured" in log.read_text()) != impatient


def test_the_summary_says_what_runs_and_what_does_not_fit(run, tmp_path, monkeypatch):
    stopped = iter([None, KeyboardInterrupt()])
    honest = gpu.run

    def one(*given):
        if stop := next(stopped):
            raise stop
        assert "| first | running |" in (tmp_path / "summary.md").read_text()
        return honest(*given)

    monkeypatch.setattr(gpu, "run", one)
    assert run([code_stage(name, 30, "pass") for name in ("first", "second", "third")])[0] == 130
    for line in ("| first | done (", "| second | stopped |", "| third | to come |"):
        assert line in (tmp_path / "summary.md").read_text()
    monkeypatch.setattr(gpu, "LEAST", 20.0)
    code, out, _ = run([code_stage("late", 30, "pass")], "--minutes", "0.1")
    assert (code, "| late | left out: no time |" in out) == (0, True)


def planned(folder, *words: str) -> list[Stage]:
    return gpu.stages_of(gpu.make_parser().parse_args(["--out", str(folder), *words]))


def test_the_headline_comes_first(tmp_path):
    stages = planned(tmp_path)
    of_size = [[f"{name}: {what}" for what in ("compare", "roofline", "peers")] for name in gpu.SIZES.split(",")]
    assert [stage.name for stage in stages] == [*of_size[0], "float32 identity", TESTS, *of_size[1], *of_size[2]]
    for stage in stages:
        assert str(tmp_path) in stage.command or stage.name == TESTS
    assert "gpu-lab-8b-v128256" in stages[0].command
    assert "float32" in stages[3].command


KINDS = {"-roofline": roofline.RooflineRun, "-peers": peers_page.PeersRun, "": ComparisonRun}
PARSERS = {"compare.py": lambda: compare.make_parser(""), "benchmarks.roofline": roofline.make_parser}
PARSERS["benchmarks.peers"] = peers.make_parser
MAINS = {"compare.py": compare_script.main, "benchmarks.roofline": roofline.main, "benchmarks.peers": peers.main}


def test_every_stage_can_be_typed(tmp_path):
    """Its script knows the flags; the target and the draft are there, and the record goes into the folder."""
    for stage in planned(tmp_path, "--engine", "eager", "--limit", "1", "--max-new-tokens", "6"):
        name, *words = stage.command[stage.command[0] == "-m" :]
        if stage.name != TESTS:
            args = PARSERS[name]().parse_args(words)
            assert (args.out_dir, args.limit, args.max_new_tokens, args.engine) == (tmp_path, 1, 6, "eager")


@pytest.mark.full
def test_every_stage_on_the_labs_pair(tmp_path, monkeypatch):
    """Its command leaves its record, here of short prompts; the tests are collected, in a process of their own."""
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    words = ["--device", "cpu", "--dtype", "float32", "--engine", "eager", "--sizes", "lab", "--limit", "1"]
    for stage in planned(tmp_path, *words, "--max-new-tokens", "6"):
        name, *words = stage.command[stage.command[0] == "-m" :]
        if stage.name == TESTS:
            what = gpu.run(stage._replace(command=(*stage.command, "--collect-only")), 120, tmp_path / "log.txt")
            assert what.startswith("done"), what
        else:
            assert MAINS[name]([*words, "-k", "4"] if name == "compare.py" else words) == 0, stage.name
    found = {path.stem: path for path in tmp_path.glob("results/*.json")}
    assert found.keys() == {"gpu-lab", "gpu-lab-roofline", "gpu-lab-peers", "gpu-float32"}
    for name, path in found.items():
        read(path, next(kind for ending, kind in KINDS.items() if name.endswith(ending)))
