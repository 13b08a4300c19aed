"""What `python -m benchmarks.gpu` runs: a command, a limit and a name for the records of every stage.

Nothing here imports a slow library: the command itself must not pay for what every stage pays for.
"""

import argparse
import os
import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from speclab.system.errors import UsageProblem

SIZES = "lab:8b:v128256,lab:1b,lab"
PREFLIGHT = "preflight"
TESTS = "CUDA tests"


class Stage(NamedTuple):
    """A command and its limit."""

    name: str
    seconds: float  # at most
    command: tuple[str, ...]  # after `python`
    record: str = ""  # what the names of its records begin with
    needs: str = ""  # a package without which it is left out

    def words(self) -> list[str]:
        """The command as it is started now."""
        return [*self.command, *(["--started", f"{time.time():.3f}"] if self.name == PREFLIGHT else [])]

    def missing(self) -> str:
        """Why it is left out."""
        return f"{self.needs} is not installed" if self.needs and find_spec(self.needs) is None else ""


def targets_of(text: str) -> list[str]:
    """The names in --sizes. A folder becomes its full path, since stages run in the lab's own folder."""
    names = [name for name in text.split(",") if name]
    if not names or len(set(names)) < len(names):
        raise UsageProblem(f"--sizes {text}: give different targets with commas between them, for example lab")
    targets = [full_name(name) for name in names]
    if len(set(map(record_name, targets))) < len(targets):
        raise UsageProblem(f"--sizes {text}: two targets would have records of one name; rename a folder")
    return targets


def full_name(name: str) -> str:
    """A folder's full path; any other name as it is."""
    return os.path.abspath(name) if name != "lab" and ":" not in name and os.path.isdir(name) else name


def record_name(target: str) -> str:
    """What the names of a size's records begin with: lab:8b:v128256 -> gpu-lab-8b-v128256."""
    return "gpu-" + re.sub(r"[^A-Za-z0-9.]+", "-", Path(target).name if os.path.isabs(target) else target).strip("-")


def of_run(args: argparse.Namespace, work: Path) -> list[Stage]:
    """In order of importance. Their limits add up to more than the whole, since most need less than theirs."""
    targets = targets_of(args.sizes)
    machine = ("--device", args.device, "--out-dir", str(work))
    how = (*machine, "--dtype", args.dtype, "--engine", args.engine, "--max-new-tokens", str(args.max_new_tokens))

    draft = ("--draft", full_name(args.draft)) if args.draft else ()

    def of_size(target: str, seconds: float) -> Stage:
        name = record_name(target)
        words = ("--target", target, *draft, "--name", name, "--limit", str(args.limit), *how)
        return Stage(Path(target).name if os.path.isabs(target) else target, seconds, _module("one_size", *words), name)

    first, *others = targets
    look = ("--sizes", ",".join(targets), *draft, *machine, "--dtype", args.dtype, "--name", "gpu")
    exact = ("compare.py", "--quick", "--padded", "none", "--temperature", "0", "--limit", str(args.limit), *how)
    pytest = ("-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-m", "cuda", "tests/test_cuda.py")
    last = ("--target", first, *machine, "--dtype", args.dtype, "--max-new-tokens", str(args.max_new_tokens))
    return [
        Stage(PREFLIGHT, 60, _module("preflight", *look), "gpu"),
        of_size(first, 200),
        Stage("float32 identity", 60, (*exact, "--dtype", "float32", "--name", "gpu-float32")),
        Stage(TESTS, 120, pytest, needs="pytest"),
        *(of_size(target, 90) for target in others),
        Stage("experiments", 120, _module("plain", *last, "--name", "gpu"), "gpu"),
    ]


def names_of(all_stages: Sequence[Stage]) -> dict[str, str]:
    """Sizes and the names of their records, the headline's first."""
    return {stage.name: stage.record for stage in all_stages if "benchmarks.gpu.one_size" in stage.command}


def _module(name: str, *words: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.gpu.{name}", *words)
