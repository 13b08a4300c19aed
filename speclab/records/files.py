"""Records on disk, and the circumstances of a run. Writing needs the standard library only, reading needs pydantic."""

import contextlib
import datetime
import functools
import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers

from speclab.records.rows import RecordPart, as_written
from speclab.records.runs import Head, Machine, Versions
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import read_bytes, shown
from speclab.system.paths import IS_CLONE, ROOT

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LARGEST = 16 * 2**20  # bytes of a record; the longest of all runs here has half a million

Record = TypeVar("Record", bound=Head)
Parsed = TypeVar("Parsed", bound=RecordPart)


COMMIT = "SPECLAB_COMMIT"  # names the commit where there is no git
GPU_STATE = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


def machine(device: torch.device) -> Machine:
    memory = None
    with contextlib.suppress(ValueError, OSError, AttributeError):  # no sysconf on Windows
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        memory_gib=memory,
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        system=platform.system(),
        gpu_state=_gpu_state() if device.type == "cuda" else None,
    )


def _gpu_state() -> dict[str, str | bool]:
    """Return the state of the GPU at this moment; entries that nvidia-smi does not tell are left out."""
    answer: list[str] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["nvidia-smi", f"--query-gpu={GPU_STATE}", "--format=csv,noheader"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
        answer = done.stdout.splitlines()[0].split(", ")
    found: dict[str, str | bool] = dict(zip(GPU_STATE.split(","), answer, strict=False))
    return found | {"cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled()}


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> Versions:
    commit, dirty = None, None
    if IS_CLONE:  # an installed package may lie inside somebody else's repository
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            commit = _git("rev-parse", "HEAD")
            # Records and pictures of earlier runs are no part of what ran.
            dirty = bool(_git("status", "--porcelain", "-uno", "--", ".", ":(exclude)results", ":(exclude)plots"))
    commit = commit or os.environ.get(COMMIT)  # a copy without its history
    return Versions(
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        commit=commit,
        uncommitted_changes=dirty,
    )


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def fingerprint(texts: list[str]) -> str:
    """Return a short hash of the prompts: two runs with the same one decoded the same texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def prompt_settings(prompts: list[str]) -> dict[str, Any]:
    """Return the settings of every record that say which prompts were decoded."""
    return {"n_prompts": len(prompts), "prompts_sha256": fingerprint(prompts)}


def when_and_where(device: torch.device) -> dict[str, Any]:
    """Return the fields of every record that say when, on which machine and with which libraries it was made."""
    return {"created": today(), "machine": machine(device), "versions": versions()}


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")


# --- writing ----------------------------------------------------------------------------------------------------------


def as_dict(value: Any) -> Any:
    """Return a record, or a part of one, as plain JSON with seven digits, which are more than any clock here can
    measure. A field that is None or empty where that is its default is left out."""
    if is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        defaults = {field.name for field in fields(value) if field.default is None or field.default_factory is list}
        return {k: as_dict(v) for k, v in found.items() if k not in defaults or not _is_nothing(v)}
    if isinstance(value, dict):
        return {key: as_dict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_dict(item) for item in value]
    return as_written(value) if isinstance(value, float) else value


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, list) and not value)


def to_json(record: Head) -> str:
    """Return a record's file, compact enough to commit: one line for every item of its lists, which come last.

    Raises ValueError where a number is not finite.
    """
    return _text(as_dict(record)) + "\n"


def _text(values: dict[str, Any]) -> str:
    """Write the fields, the lists, and then a record within this one."""
    lists = {name: value for name, value in values.items() if isinstance(value, list)}
    plain = {name: value for name, value in values.items() if name not in lists and name != "padded"}
    text = json.dumps(plain, indent=1, allow_nan=False)[:-2]
    for name, items in lists.items():
        lines = ",\n  ".join(json.dumps(item, allow_nan=False) for item in items)
        text += f',\n "{name}": [\n  {lines}\n ]'
    if inner := values.get("padded"):
        text += f',\n "padded": {_text(inner)}'
    return text + "\n}"


# --- reading ----------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file, whose numbers are all finite.

    Raises EnvironmentProblem where it cannot be read.
    """
    with _one_line(path):
        return json.loads(read_bytes(path, LARGEST).decode("utf-8"), parse_constant=_finite, parse_float=_finite)


def read(path: Path, kind: type[Record]) -> Record:
    """Return a record from disk, checked: `kind` is ComparisonRun, or the class of an extension or a benchmark.

    Raises EnvironmentProblem where it is no such record.
    """
    content = read_json(path)
    with _one_line(path):
        return parsed(kind, json.dumps(content))


@functools.cache
def _adapter(kind: type[Parsed]) -> "TypeAdapter[Parsed]":
    from pydantic import TypeAdapter  # here: a run writes records where pydantic is not installed

    return TypeAdapter(kind)


def parsed(kind: type[Parsed], text: str) -> Parsed:
    """Read JSON as a record, or as a part of one.

    Raises ValueError, with the place, where it is not what `kind` says.
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits[:20]} is no finite number")
    return value


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn an error in reading this file into one line."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise EnvironmentProblem(
            f"{shown(path)} is no record that can be read here: {why[:200]}; give a record that a command of the lab "
            "wrote, or run that command again"
        ) from None
