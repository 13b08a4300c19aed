"""Records on disk, of which every table and picture is a view, and the circumstances of a run.

A record names the machine by what it is, never by its host or user name, and holds no absolute path.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import TypeAdapter

from speclab.core.clock import busy
from speclab.records.rows import Amount, Count, Decoded, Facts, Noise, RecordPart, Row, as_written
from speclab.system import startup
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import IS_CLONE, ROOT, read_bytes, shown

SCHEMA_VERSION = 2
LARGEST = 16 * 2**20  # bytes of a record; the longest of all runs here has half a million


@dataclass(kw_only=True)
class Head(RecordPart):
    """The part of every record that says what ran, where and how: `when_and_where`, and settings."""

    schema_version: int
    created: str
    interrupted: bool
    machine: Facts
    versions: Facts
    settings: Facts


@dataclass(kw_only=True)
class LabRun(Head):
    """All records of compare.py have these entries. settings: those of speclab/lab/comparison.py."""

    schema_version: Literal[2]
    models: dict[str, str]


@dataclass(kw_only=True)
class ComparisonRun(LabRun):
    """The record of `python compare.py`."""

    prompts: Facts  # n, kinds, n_cut: greedy texts that are cut where they begin to repeat
    correctness: list[Facts]  # of speclab/lab/comparison.py
    noise: list[Noise]
    costs: list[Facts]  # of each draft and temperature, as speclab/theory/costs.py writes them
    rows: list[Row]
    raw: list[Decoded]
    weight_bytes: Count | None = None  # that each target pass reads; absent with experts and in older records
    bandwidth: Amount | None = None  # bytes a second that the machine reads; absent in older records
    eager: "ComparisonRun | None" = None  # a short run of the same pair as the library runs it
    padded: "ComparisonRun | None" = None  # and one at the price of a larger pair

    @property
    def parts(self) -> list["ComparisonRun"]:
        """Return this run and the short ones, those that there are, as they are shown."""
        return [one for one in (self.eager, self, self.padded) if one]


Record = TypeVar("Record")


def when_and_where(device: torch.device) -> Facts:
    created = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    return {"created": created, "machine": machine(device), "versions": versions()}


def machine(device: torch.device) -> Facts:
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    probe = {"probe": {"free": busy() is None, "load": startup.LOAD}} if device.type == "cpu" else {}
    return {
        "cpu": named[1] if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": platform.system(),
        **probe,
    }


def versions() -> Facts:
    commit, dirty = None, None
    if IS_CLONE:  # an installed package may lie inside somebody else's repository
        # Records and pictures of earlier runs are no part of what ran.
        asked = ("rev-parse HEAD", "status --porcelain -uno -- . :(exclude)results :(exclude)plots")
        run = functools.partial(subprocess.check_output, cwd=ROOT, stderr=subprocess.DEVNULL, text=True)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            commit, changes = (run(["git", *words.split()]).strip() for words in asked)
            dirty = bool(changes)
    libraries = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"python": platform.python_version()} | libraries | {"commit": commit, "uncommitted_changes": dirty}


def prompt_settings(prompts: list[str]) -> Facts:
    """Return the settings that say which prompts were decoded: runs with the same short hash decoded the same texts."""
    sha256 = hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16]
    return {"n_prompts": len(prompts), "prompts_sha256": sha256}


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def as_dict(part: RecordPart) -> Facts:
    """Return a record, or a part, as plain JSON with seven digits, without defaults. Infinities raise ValueError."""
    plain = _adapter(type(part)).dump_python(part, mode="json", exclude_defaults=True)
    return json.loads(json.dumps(plain, allow_nan=False), parse_float=as_written)


def to_json(record: Head) -> str:
    """Return a record's file, compact enough to commit: one line for every field, and for every item of its lists."""
    lines = []
    for name, value in as_dict(record).items():
        items = [json.dumps(item) for item in value] if isinstance(value, list) else []
        lines.append(f' "{name}": ' + ("[\n  " + ",\n  ".join(items) + "\n ]" if items else json.dumps(value)))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path, kind: type[Record]) -> Record:
    """Return a record from disk, checked. kind: its class, or dict. Raises EnvironmentProblem where it is none."""
    try:
        return _adapter(kind).validate_json(read_bytes(path, LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join((getattr(error, "strerror", None) or str(error)).split())
        advice = "give a record that a command of the lab wrote, or run that command again"
        raise EnvironmentProblem(f"{shown(path)} is no record that can be read here: {why[:200]}; {advice}") from None
