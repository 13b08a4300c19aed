"""Records: what is written is what the schema says, and what is read back is what was written."""

import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError

from speclab.records import files
from speclab.records.runs import ComparisonRun
from speclab.system.errors import EnvironmentProblem
from speclab.system.paths import ROOT

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def run() -> ComparisonRun:
    return files.read(RESULTS / "cpu-2-cores.json", ComparisonRun)


@pytest.mark.parametrize(("name", "kind"), [("cpu-2-cores", ComparisonRun)])
def test_what_is_read_and_written_again_is_the_same(name, kind):
    path = RESULTS / f"{name}.json"
    run = files.read(path, kind)
    text = files.to_json(run)
    assert json.loads(text) == files.as_dict(run) == json.loads(path.read_text())
    assert TypeAdapter(kind).validate_json(text) == run


def test_numbers_have_seven_digits(run):
    assert "1.234568e-05" in files.to_json(replace(run, phases={"seconds": 1.23456789e-5, "share": 1.0}))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_number_is_written_that_is_not_finite(run, number):
    with pytest.raises(ValueError, match=r"rows\.speedup"):
        files.to_json(replace(run, rows=[replace(run.rows[0], speedup=number)]))


def test_optional_fields_are_absent_where_nothing_is_to_be_said(run):
    assert {"unchecked"}.isdisjoint(files.as_dict(run))
    assert files.as_dict(replace(run, unchecked=["model k=2"]))["unchecked"] == ["model k=2"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("speedup", "fast"), ("acceptance_rate", 1.2), ("n_rounds", -1), ("n_rounds", 1.5), ("verdict", "good"),
     ("surprise", 1), ("method", None), ("seconds", True)],
)  # fmt: skip
def test_a_broken_row_is_refused_and_named(run, tmp_path, field, value):
    broken = files.as_dict(run)
    broken["rows"][0][field] = value
    (tmp_path / "run.json").write_text(json.dumps(broken))
    with pytest.raises(EnvironmentProblem, match=rf"no record that can be read here: rows\.0\.{field}"):
        files.read(tmp_path / "run.json", ComparisonRun)


@pytest.mark.parametrize("name", ["machine", "rows", "schema_version", "interrupted"])
def test_a_record_without_a_field_is_refused(run, name):
    with pytest.raises(ValidationError):
        TypeAdapter(ComparisonRun).validate_json(json.dumps({k: v for k, v in files.as_dict(run).items() if k != name}))


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "null", "[]", "NaN", "1e999", "9" * 400, '{"a": Infinity}'])
def test_what_is_no_record_is_one_problem(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EnvironmentProblem, match="a record that a command of the lab wrote"):
        files.read(tmp_path / "run.json", ComparisonRun)


def test_infinity_is_refused_where_the_classes_leave_the_content_open(run, tmp_path):
    text = files.to_json(run).replace('"seed": 0', '"seed": 1e999')
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EnvironmentProblem, match="no finite number"):
        files.read(tmp_path / "run.json", ComparisonRun)
