"""Records: every committed one is read as it was written, and what is written is read back."""

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from speclab.records import files
from speclab.records.files import ComparisonRun, Head
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import ROOT

RESULTS = ROOT / "results"
COMMITTED = sorted(set(RESULTS.glob("*.json")) - {RESULTS / "batch-scale.json"})  # what others have published


@pytest.fixture(scope="module")
def run() -> ComparisonRun:
    return files.read(RESULTS / "cpu-2-cores-c.json", ComparisonRun)


def assert_read(part: Any, written: Any) -> None:
    """Every field holds what the file says, and a field that the file lacks holds its default."""
    if not is_dataclass(part):
        assert files.as_dict(part) == written if not isinstance(part, list) else len(part) == len(written)
        for one, other in zip(part, written, strict=True) if isinstance(part, list) else ():
            assert_read(one, other)
        return
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name in written:
            assert_read(value, written[field.name])
        else:
            assert value in (field.default, []), field.name


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_record_is_read_with_its_numbers(path, tmp_path):
    """Entries that its class does not have are ignored; all others are those of the file, and are written again."""
    written = json.loads(path.read_text("utf-8"))
    kind = ComparisonRun if {"correctness", "costs"} <= written.keys() else Head
    read = files.read(path, kind)
    assert_read(read, written)
    (tmp_path / "again.json").write_text(files.to_json(read))
    assert files.read(tmp_path / "again.json", kind) == read


def test_numbers_are_finite_with_seven_digits_and_what_is_not_there_is_left_out(run):
    assert "1.234568e-05" in files.to_json(replace(run, bandwidth=1.23456789e-5))
    assert "eager" not in files.as_dict(replace(run, eager=None))
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            files.to_json(replace(run, rows=[replace(run.rows[0], speedup=number)]))


def test_a_record_whose_entry_is_broken_or_missing_is_refused_and_the_entry_named(run, tmp_path):
    wrong = {"speedup": "fast", "n_rounds": 1.5, "verdict": "good", "method": None, "seconds": True}
    for field, value in wrong.items():
        broken = files.as_dict(run)
        broken["rows"][0][field] = value
        refused(tmp_path, json.dumps(broken), rf"no record that can be read here: .*rows\.0\.{field}")
    broken["rows"][0] |= {"seconds": 1.0, "speedup": 4711.0}
    refused(tmp_path, json.dumps(broken).replace("4711.0", "1e999"), r"rows\.0\.speedup")
    for name in ("machine", "rows", "schema_version", "interrupted"):
        refused(tmp_path, json.dumps({k: v for k, v in files.as_dict(run).items() if k != name}), name)
    for text in ("", "[", "[" * 100_000, "null", "[]", "NaN", "1e999", "9" * 400, '{"a": Infinity}'):
        refused(tmp_path, text, "a record that a command of the lab wrote")


def refused(folder: Path, text: str, said: str) -> None:
    (folder / "run.json").write_text(text)
    with pytest.raises(EnvironmentProblem, match=said):
        files.read(folder / "run.json", ComparisonRun)
