"""The flags and stages of a GPU run, and its first page, from records by hand."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import stages, summary
from benchmarks.gpu.stages import PREFLIGHT, TESTS, Target
from benchmarks.gpu.summary import NOT_MEASURED, Outcome
from speclab.system.errors import UsageProblem

BIG = Target("x", "big", "x")


def test_goals_are_ratios_of_the_records(tmp_path):
    """By hand: 16 GB read for each of 100 tokens in 1 s, of 2000 GB/s; a round of 3 tokens at 2.7 times the speed."""
    folder = tmp_path / "results"
    folder.mkdir()
    arm = {"temperature": 0, "prompt_kind": "all", "speedup_low": 2.5, "speedup_high": 2.9}
    rows = [
        {"method": "baseline", "draft_length": 0, "n_tokens": 100, "seconds": 1.0, "speedup": 1.0, **arm},
        {"method": "model", "draft_length": 4, "speedup": 9.0, "tokens_per_round": 3.0, **arm, "temperature": 0.8},
        {"method": "model", "draft_length": 4, "speedup": 2.7, "tokens_per_round": 3.0, "draft": "d", **arm},
    ]
    raw = [("baseline", 0, 2.0), ("generate", 0, 3.2), ("model", 4, 1.0), ("assisted", 4, 1.8)]
    timings = [{"method": m, "draft_length": k, "seconds": [s, s, 9 * s]} for m, k, s in raw for _ in range(2)]
    checks = [{"passed": True, "differences": []}, {"passed": True, "z_residual": 1.0}]
    passes = {"ceilings": {"copy": 2e12}, "models": [{"role": "target", "weight_bytes": 16e9}]}
    graphs = {"before": 20, "in_turns": 0}
    for name, record in (
        ("x", {"rows": rows, "correctness": checks, "settings": {"graphs": graphs}}),
        ("x-roofline", passes),
        ("x-peers", {"raw": timings}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(record))
    one = summary.read(folder, "x")
    found = [measure(one) for _, _, measure in summary.GOALS]
    assert found == pytest.approx([0.8, 0.9, 2.7, 1.6, 1.8])
    text = summary.head(folder, [BIG, Target("y", "other", "y")], {"a": Outcome("done", 3.2)})
    assert text.startswith("# big: 2.70x (2.50 to 2.90) at k = 4, greedy, same texts\n")
    assert "| a | done | 3 |" in text
    assert [line.rsplit("|", 2)[1].strip() for line in text.splitlines() if ">=" in line] == ["met"] * 4 + ["MISSED"]
    assert "| other | not measured |" in text
    assert "20 recorded before the turns, 0 in them" in text


def test_what_no_record_holds_is_not_measured(tmp_path):
    (tmp_path / "x.json").write_text("{ half of it")
    text = summary.head(tmp_path, [BIG], {})
    assert text.startswith(f"# big: {NOT_MEASURED}\n")
    assert sum(NOT_MEASURED in line for line in text.splitlines() if ">=" in line) == len(summary.GOALS)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, NOT_MEASURED),
        ({"correctness": []}, "texts not checked"),
        ({"correctness": [{"passed": True}], "unchecked": ["model k=4"]}, "texts not checked"),
        ({"correctness": [{"passed": True, "differences": [1, 2]}]}, "2 texts differ at near-ties"),
        ({"correctness": [{"passed": True}, {"passed": False}]}, "WRONG TEXTS"),
    ],
)
def test_texts_are_judged_beside_the_speed(record, words):
    assert summary.texts(record) == words


# --- the stages ---


def plan(folder, *words: str) -> tuple[list[stages.Stage], dict[str, str]]:
    """The stages, and the records of the sizes."""
    args = command.make_parser().parse_args(["--out", "x", *words])
    targets = stages.targets_of(args.sizes)
    return stages.of_run(args, targets, folder), {target.name: target.record for target in targets}


def test_the_headline_comes_first_and_every_size_is_one_process(tmp_path):
    planned, records = plan(tmp_path)
    names = [stage.name for stage in planned]
    assert names == [PREFLIGHT, "lab:8b:v128256", "float32 identity", TESTS, "lab:1b", "lab", "experiments"]
    assert records == {"lab:8b:v128256": "gpu-lab-8b-v128256", "lab:1b": "gpu-lab-1b", "lab": "gpu-lab"}
    for stage in planned:
        assert str(tmp_path) in stage.command or stage.name == TESTS
    identity, last = planned[2].command, planned[-1].command
    assert "".join(identity).rpartition("--dtype")[2].startswith("float32")
    assert last[last.index("--target") + 1] == "lab:8b:v128256"
    assert planned[1].seconds == 200


def test_folders_are_named_in_full(tmp_path, monkeypatch):
    (tmp_path / "some" / "target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    planned, records = plan(tmp_path, "--sizes", "some/target,org/name,lab")
    assert [stage.name for stage in planned[4:-1]] == ["org/name", "lab"]
    assert str(tmp_path / "some" / "target") in planned[1].command
    assert records == {"target": "gpu-target", "org/name": "gpu-org-name", "lab": "gpu-lab"}


def test_folders_of_one_name_are_refused(tmp_path):
    names = [str(tmp_path / place / "target") for place in "ab"]
    for name in names:
        Path(name).mkdir(parents=True)
    with pytest.raises(UsageProblem, match="different names"):
        stages.targets_of(",".join(names))
