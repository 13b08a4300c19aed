"""The run record: what was measured, on what, with which settings. Every table and picture is a view of one.

A comparison keeps raw seconds and counts, and the rows that records/rows.py makes of them; sweeps and plans keep rows
and costs alone. The JSON names the machine by what it is,
never by its host or user name, and holds no absolute path.
"""

import contextlib
import datetime
import hashlib
import json
import math
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jsonschema
import torch
import transformers

from speclab.system.errors import EnvironmentProblem
from speclab.system.files import read_bytes, shown
from speclab.system.paths import ROOT

SCHEMA_VERSION = 2

LARGEST = 256 * 2**20  # bytes of a record; the longest run here has one of a few million


def machine(device: torch.device) -> dict:
    """What the numbers were taken on."""
    memory = None
    with contextlib.suppress(ValueError, OSError, AttributeError):  # no sysconf on Windows
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": memory,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": platform.system(),
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict:
    """Of everything that moves the numbers, and the commit of the lab itself."""
    commit, dirty = None, None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-C", str(ROOT)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        # Records and pictures of earlier runs are no part of what ran.
        code = [*git, "status", "--porcelain", "-uno", "--", ".", ":(exclude)results", ":(exclude)plots"]
        changes = subprocess.run(code, capture_output=True, text=True, check=True)
        dirty = bool(changes.stdout.strip())
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit,
        "uncommitted_changes": dirty,
    }


def fingerprint(texts: list[str]) -> str:
    """Short hash of the prompts: two runs with the same one decoded the same texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")


_number, _count, _text = {"type": "number"}, {"type": "integer", "minimum": 0}, {"type": "string"}
_maybe_number, _share = {"type": ["number", "null"]}, {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_seconds, _draft = {"type": "number", "minimum": 0}, {"type": ["string", "null"]}
_objects, _any = {"type": "array", "items": {"type": "object"}}, {"type": "object"}
_counts = dict.fromkeys(("n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted"), _count)


def _object(properties: dict, optional: tuple[str, ...] = ()) -> dict:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_shared = {"method": _text, "draft_length": _count, "temperature": _seconds, "prompt_kind": _text, **_counts}
ROW = _object(
    {
        **_shared,
        "target": _text,
        "draft": _draft,
        "device": _text,
        "dtype": _text,
        "n_prompts": _count,
        "n_tokens": _count,
        "seconds": _seconds,
        "prefill_seconds": _seconds,
        "tokens_per_second": _seconds,
        "speedup": _seconds,
        "speedup_low": _maybe_number,
        "speedup_high": _maybe_number,
        "speedup_with_prefill": _seconds,
        "accepted_lengths": {"type": ["array", "null"], "items": _count},
        "acceptance_rate": _share,
        "drafted_fraction": _share,
        "tokens_per_round": _maybe_number,
        "draft_cost": _maybe_number,
        "verify_cost": _maybe_number,
        "overhead": _maybe_number,
        "leviathan": _maybe_number,
        "cost_model": _maybe_number,
        "accounting": _maybe_number,
        "forecast": _maybe_number,
        "forecast_tokens_per_round": _maybe_number,
        "ladder": {
            "type": ["array", "null"],
            "items": {"type": "object", "properties": {"name": _text, "speedup": _seconds}},
        },
        "verdict": {"enum": ["faster", "unclear", "slower", None]},
        "repeat_noise": _maybe_number,
        "book_formula": _maybe_number,
        "book_formula_drafted_fraction": _maybe_number,
        "same_as_baseline": {"type": ["boolean", "null"]},
    }
)
# Whose functions decided in the speculative rows; absent where they are all the lab's own.
IMPL = _object({"package": {"enum": ["exercises", "solutions"]}, "exercises": {"type": "array", "items": _count}})
HEAD = {
    "schema_version": {"const": SCHEMA_VERSION},
    "created": _text,
    "interrupted": {"type": "boolean"},
    "unchecked": {"type": "array", "items": _text},  # arms whose texts nobody has judged; absent where all are
    "machine": _any,
    "versions": _any,
    "settings": {**_any, "properties": {"impl": IMPL}},
    "models": _any,
}
SCHEMA = _object(
    {
        **HEAD,
        "prompts": _any,
        "correctness": _objects,
        "noise": _objects,
        "costs": _objects,
        "phases": _any,
        "headline": {"type": ["object", "null"]},
        # What exercise 5's functions say of the rows, where a run was asked for them.
        "yours": {
            "type": "array",
            "items": _object(
                {
                    "method": _text,
                    "draft_length": _count,
                    "temperature": _seconds,
                    "acceptance_rate": _maybe_number,
                    "speedup": _maybe_number,
                }
            ),
        },
        "rows": {"type": "array", "items": ROW},
        "raw": {
            "type": "array",
            "items": _object(
                {
                    **_shared,
                    "draft": _draft,
                    "prompt_index": _count,
                    "n_prompt": _count,
                    "prefill_seconds": {"type": "array", "items": _seconds},
                    "decode_seconds": {"type": "array", "items": _seconds},
                }
            ),
        },
    },
    optional=("unchecked", "yours"),
)
POINT = _object({**ROW["properties"], "x": {"type": ["number", "string"]}, "series": _text})
SWEEP_SCHEMA = _object(
    {
        **HEAD,
        "sweep": _text,
        "facts": _any,
        "correctness": _objects,
        "noise": _objects,
        "points": {"type": "array", "items": POINT},
    },
    optional=("unchecked",),
)
PLAN_SCHEMA = _object(
    {**HEAD, "plan": _objects, "verified": {"type": ["object", "null"]}, "facts": _any}, optional=("unchecked",)
)


def validate(record: dict) -> None:
    """Raise jsonschema.ValidationError where the record is not what its schema says."""
    schema = SWEEP_SCHEMA if "sweep" in record else PLAN_SCHEMA if "plan" in record else SCHEMA
    jsonschema.validate(record, schema)


def to_json(record: dict) -> str:
    """Checked, and compact enough to commit: one line per row, point and sample."""
    validate(record)
    return compact(record, [key for key in ("points", "plan", "rows", "raw") if key in record])


def compact(record: dict, long: list[str]) -> str:
    """JSON with one line for every item of the lists named in `long`, which come last."""
    heads = {key: value for key, value in record.items() if key not in long}
    text = json.dumps(_rounded(heads), indent=1, allow_nan=False)[:-2]
    for key in long:
        lines = ",\n  ".join(json.dumps(_rounded(item), allow_nan=False) for item in record[key])
        text += f',\n "{key}": [\n  {lines}\n ]'
    return text + "\n}\n"


def _rounded(value):
    """Seven digits are more than any clock here knows."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def load(path: Path, check: Callable[[dict], None] = validate) -> dict:
    """A record from disk, checked. EnvironmentProblem where it is none."""
    try:
        record = json.loads(
            read_bytes(path, LARGEST).decode("utf-8"), parse_constant=_number, parse_float=_number, parse_int=_whole
        )
        check(record)
    except (OSError, ValueError, TypeError, RecursionError, jsonschema.ValidationError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "message", None) or error
        raise EnvironmentProblem(
            f"{shown(path)} is no record that can be read here: {str(why)[:200]}; run the command that made it again"
        ) from None
    return record


def _number(text: str) -> float:
    """A finite number; Python reads NaN and Infinity, too."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _whole(text: str) -> int:
    """A whole number that a float can hold."""
    _number(text)
    return int(text)


def lengths_histogram(rows: list[dict]) -> Counter:
    """accepted drafts in a round -> rounds, over rows"""
    total: Counter = Counter()
    for item in rows:
        total.update(dict(enumerate(item["accepted_lengths"] or [])))
    return total
