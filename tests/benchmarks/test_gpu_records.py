"""What the stages of a GPU run measure and write, on tiny models in this process."""

import shutil
import subprocess
import sys

import pytest

from benchmarks import roofline
from benchmarks.gpu import one_size, plain, preflight
from benchmarks.gpu.findings import FindingsRun
from benchmarks.peers import page as peers_page
from speclab.models import prompts, timing
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.system.errors import EnvironmentProblem

TEXTS = [("code", "def f(x):\n    return x + 1"), ("prose", "return x")]


@pytest.fixture
def small(monkeypatch):
    """Ceilings of a small machine, and few prompts."""
    monkeypatch.setattr(timing, "LARGE", 2**16)
    monkeypatch.setattr(roofline, "matrix_rate", lambda *args: 1e9)
    monkeypatch.setattr(preflight, "SMALL_WEIGHT", (8, 8))
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr(one_size, "WIDTHS", [1, 2, 5])


@pytest.fixture
def size(small, pair_folder, tmp_path, capsys):
    """One size on the tiny pair -> exit code; its records."""

    def call(*words: str) -> tuple[int, str]:
        models = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft")]
        how = ["--device", "cpu", "--dtype", "float32", "--engine", "eager", "--threads", "1", "--max-new-tokens", "10"]
        code = one_size.main([*models, *how, "--name", "x", "--out-dir", str(tmp_path), *words])
        return code, capsys.readouterr().err

    return call


def records(folder) -> dict:
    """All records of a size that are there, checked."""
    kinds = {
        "x": ComparisonRun,
        "x-roofline": roofline.RooflineRun,
        "x-peers": peers_page.PeersRun,
        "x-profile": FindingsRun,
    }
    return {path.stem: read(path, kinds[path.stem]) for path in sorted((folder / "results").glob("*.json"))}


def test_a_size_is_loaded_once_and_measured_whole(size, tmp_path, monkeypatch):
    loads, load = [], one_size.flags.load
    monkeypatch.setattr(one_size.flags, "load", lambda *args, **more: loads.append(1) or load(*args, **more))
    code, _ = size()
    assert code == 0
    assert loads == [1]
    found = records(tmp_path)
    assert set(found) == {"x", "x-peers", "x-profile", "x-roofline"}
    assert {model.role: [p.width for p in model.passes] for model in found["x-roofline"].models} == {
        "target": [1, 2, 5], "draft": [1, 2, 5]
    }  # fmt: skip
    run = found["x"]
    whole = {(row.method, row.draft_length, row.temperature) for row in run.rows if row.prompt_kind == "all"}
    drafts = {(method, k, t) for method in ("model", "ngram") for k in (4, 6) for t in (0.0, 0.8)}
    assert whole == drafts | {("baseline", 0, 0.0), ("baseline", 0, 0.8), ("generate", 0, 0.0)}
    assert run.unchecked is None
    assert all(check["passed"] for check in run.correctness)
    assert len(run.correctness) == 8
    assert run.noise
    assert next(row for row in run.rows if row.method == "model").forecast
    peers = found["x-peers"]
    with_peers = {("baseline", 0), ("generate", 0), ("model", 4), ("assisted", 4)}
    assert {(t.method, t.draft_length) for t in peers.raw} == with_peers
    assert [check["arm"] for check in peers.correctness] == ["generate", "model k=4", "assisted k=4"]
    kernels = found["x-profile"].findings
    for arm in ("baseline", "model k=4"):
        times = [one.numbers["ms"] for one in kernels if one.name.startswith(f"{arm}: ")]
        assert 0 < len(times) <= 10
        assert times == sorted(times, reverse=True)
    for name, line in (("x-peers", "## How fast"), ("x", "same text? ")):
        assert line in (tmp_path / "results" / f"{name}.md").read_text()


def test_seconds_are_on_disk_before_texts_are_checked(size, tmp_path, monkeypatch):
    """A crash in the checks loses no measurement."""

    def crash(measured):
        found = records(tmp_path)
        assert "x" in found
        assert set(found["x"].unchecked) == {
            f"{draft} k={k} at temperature {t}" for draft in ("model", "ngram") for k in (4, 6) for t in ("0", "0.8")
        }
        assert found["x"].correctness == found["x-peers"].correctness == []
        assert len(found["x"].raw) == 2 * 13, "arms at their temperatures, the second baselines among them"
        assert not found["x"].interrupted
        raise EnvironmentProblem("the checks failed; try again")

    monkeypatch.setattr(one_size, "judge", crash)
    code, _ = size()
    assert code == 3
    assert records(tmp_path)["x"].raw


def test_ctrl_c_keeps_complete_prompts_and_checks_nothing(size, tmp_path, monkeypatch):
    honest = one_size.measure

    def interrupted(*args, **more):
        def schedule(decodings, turn):
            if turn == 1 and not decodings[0].tokens:
                raise KeyboardInterrupt
            one_size.peers.one_after_another(decodings, turn)

        return honest(*args, **more, schedule=schedule)

    monkeypatch.setattr(one_size, "measure", interrupted)
    monkeypatch.setattr(one_size, "judge", lambda measured: pytest.fail("a check after Ctrl-C"))
    monkeypatch.setattr(one_size, "judge_greedy", lambda *args: pytest.fail("a check after Ctrl-C"))
    code, err = size()
    assert code == 130
    assert "1 prompt is complete" in err
    found = records(tmp_path)
    assert set(found) == {"x", "x-peers", "x-roofline"}
    assert found["x"].interrupted
    assert found["x-peers"].interrupted
    assert {t.prompt_index for t in found["x"].raw} == {0}


# --- preflight and experiments ---


def look(tmp_path, *words: str) -> int:
    return preflight.main(["--sizes", "lab", "--dtype", "float32", "--out-dir", str(tmp_path), *words])


def test_the_preflight_looks_at_products_of_every_width(small, tmp_path):
    assert look(tmp_path, "--device", "cpu") == 0
    run = read(tmp_path / "results" / "local-preflight.json", FindingsRun)
    assert [one.name for one in run.findings[:3]] == ["imports", "device", "bandwidth"]
    assert [one.name for one in run.findings[3:12]] == [f"matrix x {width}" for width in range(1, 10)]
    assert all(one.numbers["ms"] > 0 for one in run.findings[3:12])
    assert [(one.name, one.numbers["us"] > 0) for one in run.findings[12:]] == [
        (f"attention x {width}, {way}", True) for way in ("fused", "two products") for width in (1, 5)
    ]
    assert not any(one.problem for one in run.findings)
    assert not run.interrupted


def test_the_preflight_says_why_a_device_cannot_be_used(small, tmp_path, capsys, monkeypatch):
    path = tmp_path / "results" / "local-preflight.json"

    def broken(*args):
        run = read(path, FindingsRun)
        assert run.interrupted
        assert run.findings[-1].name == "device", "what a crash would leave"
        raise RuntimeError("CUDA error: it is gone\nand more")

    monkeypatch.setattr(preflight, "bandwidth", broken)
    assert look(tmp_path, "--device", "cpu") == 3
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: this cpu device cannot be used: RuntimeError: CUDA error: it is gone; ")
    last = read(path, FindingsRun).findings[-1]
    assert (last.name, last.problem) == ("bandwidth", "RuntimeError: CUDA error: it is gone")


def test_an_experiment_may_fail(small, pair_folder, tmp_path, monkeypatch):
    """Its reason stands in the table, and the next one runs. Each is written before the next one begins."""
    interrupted = []

    def fails(*args):
        interrupted.append(read(tmp_path / "results" / "local-plain.json", FindingsRun).interrupted)
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(plain, "WAYS", {"eager": plain.eager, "x": fails, "static": plain.static_generate})
    words = ["--device", "cpu", "--dtype", "float32", "--threads", "1", "--max-new-tokens", "6"]
    assert plain.main(["--target", str(pair_folder / "target"), *words, "--out-dir", str(tmp_path)]) == 0
    run = read(tmp_path / "results" / "local-plain.json", FindingsRun)
    assert [(way.name, way.problem, way.numbers.get("same tokens")) for way in run.findings] == [
        ("eager", None, 6), ("x", "RuntimeError: no compiler here", None), ("static", None, 6)
    ]  # fmt: skip
    assert set(run.findings[0].numbers) == {"tokens", "first s", "best s", "same tokens"}
    assert interrupted == [True]
    assert not run.interrupted
    assert "no compiler here" in (tmp_path / "results" / "local-plain.md").read_text()


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_whole_step_compiles(pair_folder, tmp_path):
    """A minute, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.gpu.plain", "--target", str(pair_folder / "target"), "--device", "cpu"]
    words += ["--dtype", "float32", "--prompt", "def f(x):", "--max-new-tokens", "6", "--out-dir", str(tmp_path)]
    subprocess.run(words, check=True)
    ways = read(tmp_path / "results" / "local-plain.json", FindingsRun).findings
    assert [(way.problem, way.numbers["same tokens"]) for way in ways[1:]] == [(None, 6), (None, 6)]
