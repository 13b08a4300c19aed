"""The run record: what was measured, on what, with which settings. Every table and picture is a view of one.

Raw seconds and counts go in, one `Sample` per arm, temperature and prompt; `rows` is the only place where they become
ratios. The JSON names the machine by what it is, never by its host or user name, and holds no absolute path.
"""

import contextlib
import datetime
import json
import os
import platform
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import torch
import transformers

from speclab.errors import EnvironmentProblem
from speclab.theory import Counts, book_formula, ratio_interval

SCHEMA_VERSION = 1
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Arm:
    """One way to decode. `method` is "baseline", "generate" or a draft kind."""

    method: str
    draft: str | None = None  # name of the draft, as the user may type it
    draft_length: int = 0

    @property
    def speculative(self) -> bool:
        return self.draft is not None

    @property
    def label(self) -> str:
        return f"{self.method} k={self.draft_length}" if self.speculative else self.method


@dataclass
class Sample:
    """Everything one arm did with one prompt at one temperature, repeats added up."""

    arm: Arm
    temperature: float
    prompt_index: int
    prompt_kind: str
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    tokens: list[int] = field(default_factory=list)  # new tokens of the last repeat


@dataclass
class Costs:
    """Seconds by phase from the instrumented runs of one arm at one temperature, next to the baseline's."""

    baseline_seconds_per_token: float
    phases: dict[str, float]  # "draft", "verify", "accept", "rollback" -> seconds
    n_rounds: int
    n_drafted: int

    @property
    def draft_cost(self) -> float | None:
        """c: seconds per drafted token / seconds per baseline token. None: nothing was drafted."""
        if not self.n_drafted:
            return None
        return self.phases["draft"] / self.n_drafted / self.baseline_seconds_per_token

    @property
    def verify_cost(self) -> float:
        """v: seconds per verification pass / seconds per baseline token, over the widths that occurred."""
        return self.phases["verify"] / self.n_rounds / self.baseline_seconds_per_token

    @property
    def overhead(self) -> float:
        """o: accepting and rolling back, per round, in baseline tokens."""
        return (self.phases["accept"] + self.phases["rollback"]) / self.n_rounds / self.baseline_seconds_per_token


def row(arm: Arm, samples: list[Sample], baseline: list[Sample], costs: Costs | None, common: dict, kind: str) -> dict:
    """One row of the record from one arm's samples and the baseline's on the same prompts."""
    by_prompt = {s.prompt_index: s for s in samples}
    pairs = [(b, by_prompt[b.prompt_index]) for b in baseline if b.prompt_index in by_prompt]
    counts = Counts()
    for _, sample in pairs:
        counts.merge(sample.counts)
    # model.generate cannot be split into prefill and decoding, so it is compared end to end.
    whole = arm.method == "generate"
    theirs = [b.decode_seconds + whole * b.prefill_seconds for b, _ in pairs]
    ours = [s.decode_seconds + whole * s.prefill_seconds for _, s in pairs]
    low, high = ratio_interval(theirs, ours) or (None, None)
    alpha, fraction = counts.acceptance_rate, counts.drafted_fraction
    greedy = samples[0].temperature == 0
    prefill = [sum(s.prefill_seconds for s in side) for side in zip(*pairs, strict=True)]
    return {
        "method": arm.method,
        "target": common["target"],
        "draft": arm.draft,
        "device": common["device"],
        "dtype": common["dtype"],
        "draft_length": arm.draft_length,
        "temperature": samples[0].temperature,
        "prompt_kind": kind,
        "n_prompts": len(pairs),
        "n_tokens": counts.n_emitted,
        "seconds": sum(ours),
        "prefill_seconds": prefill[1],
        "tokens_per_second": counts.n_emitted / sum(ours),
        "speedup": sum(theirs) / sum(ours),
        "speedup_low": low,
        "speedup_high": high,
        "speedup_with_prefill": (sum(theirs) + prefill[0] * (not whole)) / (sum(ours) + prefill[1] * (not whole)),
        "n_rounds": counts.n_rounds,
        "n_drafted": counts.n_drafted,
        "n_accepted": counts.n_accepted,
        "n_rejected": counts.n_rejected,
        "n_emitted": counts.n_emitted,
        "accepted_lengths": [counts.accepted_lengths[i] for i in range(arm.draft_length + 1)] if arm.draft else None,
        "acceptance_rate": alpha,
        "drafted_fraction": fraction,
        "tokens_per_round": counts.tokens_per_round if arm.speculative else None,
        "draft_cost": costs.draft_cost if costs else None,
        "verify_cost": costs.verify_cost if costs else None,
        "overhead": costs.overhead if costs else None,
        "book_formula": book_formula(alpha, arm.draft_length) if alpha is not None else None,
        "book_formula_drafted_fraction": book_formula(fraction, arm.draft_length) if fraction is not None else None,
        "same_as_baseline": all(b.tokens == s.tokens for b, s in pairs) if greedy else None,
    }


def raw(sample: Sample) -> dict:
    """A sample as plain JSON, without its text."""
    counts = sample.counts
    return {
        "method": sample.arm.method,
        "draft": sample.arm.draft,
        "draft_length": sample.arm.draft_length,
        "temperature": sample.temperature,
        "prompt_index": sample.prompt_index,
        "prompt_kind": sample.prompt_kind,
        "prefill_seconds": sample.prefill_seconds,
        "decode_seconds": sample.decode_seconds,
        "n_rounds": counts.n_rounds,
        "n_drafted": counts.n_drafted,
        "n_accepted": counts.n_accepted,
        "n_rejected": counts.n_rejected,
        "n_emitted": counts.n_emitted,
    }


def ends_in_loop(tokens: list[int], last: int = 32, longest_period: int = 8) -> bool:
    """True if the last `last` tokens repeat with some period up to `longest_period`."""
    tail = tokens[-last:]
    return len(tail) == last and any(tail[p:] == tail[:-p] for p in range(1, longest_period + 1))


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
        changes = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
        dirty = bool(changes.stdout.strip())
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit,
        "uncommitted_changes": dirty,
    }


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")


_number, _count, _text = {"type": "number"}, {"type": "integer", "minimum": 0}, {"type": "string"}
_maybe_number, _share = {"type": ["number", "null"]}, {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_seconds, _draft = {"type": "number", "minimum": 0}, {"type": ["string", "null"]}
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
        "book_formula": _maybe_number,
        "book_formula_drafted_fraction": _maybe_number,
        "same_as_baseline": {"type": ["boolean", "null"]},
    }
)
SCHEMA = _object(
    {
        "schema_version": {"const": SCHEMA_VERSION},
        "created": _text,
        "interrupted": {"type": "boolean"},
        "machine": {"type": "object"},
        "versions": {"type": "object"},
        "settings": {"type": "object"},
        "models": {"type": "object"},
        "prompts": {"type": "object"},
        "correctness": {"type": "array", "items": {"type": "object"}},
        "headline": {"type": ["object", "null"]},
        "rows": {"type": "array", "items": ROW},
        "raw": {
            "type": "array",
            "items": _object(
                {
                    **_shared,
                    "draft": _draft,
                    "prompt_index": _count,
                    "prefill_seconds": _seconds,
                    "decode_seconds": _seconds,
                }
            ),
        },
    }
)


def validate(record: dict) -> None:
    """Raise jsonschema.ValidationError where the record is not what `SCHEMA` says."""
    jsonschema.validate(record, SCHEMA)


def to_json(record: dict) -> str:
    """Compact enough to commit: one line per row and per sample."""
    validate(record)
    heads = {key: value for key, value in record.items() if key not in ("rows", "raw")}
    text = json.dumps(_rounded(heads), indent=1, allow_nan=False)[:-2]
    for key in ("rows", "raw"):
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


def load(path: Path) -> dict:
    """A record from disk, checked."""
    record = json.loads(path.read_text("utf-8"))
    validate(record)
    return record


def prepare_folder(path: Path) -> None:
    """Make the folder and see that it can be written, before anything is measured."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write to the folder {path}: {error.strerror}; choose another with --out-dir (or --json)"
        ) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: beside it first, then in its place."""
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror}; choose another place") from None


def lengths_histogram(rows: list[dict]) -> Counter:
    """accepted drafts in a round -> rounds, over rows"""
    total: Counter = Counter()
    for item in rows:
        total.update(dict(enumerate(item["accepted_lengths"] or [])))
    return total
