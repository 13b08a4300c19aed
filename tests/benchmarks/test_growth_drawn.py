"""The growth of heads in training, as training.json tells it: read with suspicion, and shown as it is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import growth
from speclab.records.files import read
from speclab.system.paths import ROOT

TRAINED = ROOT / "models/smollm2/feature"


@given(st.floats(0, 1))
def test_alpha_is_the_one_that_makes_these_rounds(alpha):
    """Of rounds whose drafted tokens are each accepted by themselves: the expectation, by adding up its cases."""
    k = growth.K
    expected = sum((n + 1) * alpha**n * (1 - alpha) for n in range(k)) + (k + 1) * alpha**k
    score = growth.Score(training=0, tokens=1, minutes=1.0, tokens_per_round=expected)
    assert score.alpha == pytest.approx(alpha, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "feature"}',
        '{"growth": []}',
        (TRAINED / "training.json").read_text().replace('"growth": [', '"growth": [], "earlier": ['),
        (TRAINED / "training.json").read_text().replace('"minutes": 1.49', '"minutes": NaN'),
        "[" * 2**12,
        " " * (growth.MOST_BYTES + 1),
    ],
    ids=range(8),
)
def test_what_is_no_training_is_one_line(tmp_path, text, capsys):
    (tmp_path / "training.json").write_text(text)
    assert growth.main([str(TRAINED), str(tmp_path), "--out-dir", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "training.json" in said.err
    assert not list((tmp_path / "out").rglob("*.*"))


def test_the_record_has_every_score_of_every_training(tmp_path, capsys):
    shorter = json.loads((TRAINED / "training.json").read_text())
    shorter["growth"] = shorter["growth"][:2]
    shorter["kind"] = "block"
    (tmp_path / "training.json").write_text(json.dumps(shorter))
    assert growth.main([str(TRAINED), str(tmp_path), "--out-dir", str(tmp_path), "--name", "x"]) == 0
    run = read(tmp_path / "results" / "x-growth.json", growth.GrowthRun)
    assert [len(run.of(0)), len(run.of(1))] == [5, 2]
    assert [score.tokens_per_round for score in run.of(0)][:2] == [row["tokens_per_round"] for row in shorter["growth"]]
    page = (tmp_path / "results" / "x-growth.md").read_text("utf-8")
    assert all(f"## {training.label}" in page for training in run.trainings)
    assert "block" in run.trainings[1].label
    assert (tmp_path / "plots" / "x-growth.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
