"""Records as plain dicts, for the views that do not read the dataclasses yet."""

import json
from collections.abc import Callable
from pathlib import Path

from speclab.records.files import as_dict, read, read_json
from speclab.records.runs import SCHEMA_VERSION, ComparisonRun, LabRun, PlanRun, SweepRun
from speclab.system.paths import ROOT

__all__ = ["ROOT", "SCHEMA_VERSION", "load", "validate"]


def kind_of(record: dict) -> type[LabRun]:
    """Which record a dict is."""
    return SweepRun if "sweep" in record else PlanRun if "plan" in record else ComparisonRun


def validate(record: dict) -> None:
    """Raise ValueError where the dict is no record."""
    from pydantic import TypeAdapter

    TypeAdapter(kind_of(record)).validate_json(json.dumps(record))


def load(path: Path, check: Callable[[dict], None] | None = None) -> dict:
    """A record from disk as a dict, or any JSON file with a `check` of its own."""
    record = read_json(path)
    if check is None:
        return as_dict(read(path, kind_of(record if isinstance(record, dict) else {})))
    check(record)
    return record
