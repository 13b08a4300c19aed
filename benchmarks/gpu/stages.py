"""The stages of `python -m benchmarks.gpu`: each has a command, a limit and a name for its records.

Nothing here imports a slow library: the command itself must not pay for what every stage pays for.
"""

import argparse
import os
import re
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


class Target(NamedTuple):
    """One of the targets of --sizes."""

    words: str  # after --target
    name: str  # of a folder its last part
    record: str  # what the names of its records begin with: lab:8b:v128256 -> gpu-lab-8b-v128256


def targets_of(text: str) -> list[Target]:
    """The targets that --sizes names, the headline's first."""
    targets = []
    for words in map(full_name, filter(None, text.split(","))):
        name = Path(words).name if os.path.isabs(words) else words
        targets.append(Target(words, name, "gpu-" + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")))
    if not targets or len({target.record for target in targets}) < len(targets):
        raise UsageProblem(f"--sizes {text}: give targets of different names, with commas between them")
    return targets


def full_name(name: str) -> str:
    """A folder's full path, since stages run in the lab's own folder; any other name as it is."""
    return os.path.abspath(name) if name != "lab" and os.path.isdir(name) else name


def of_run(args: argparse.Namespace, targets: list[Target], work: Path) -> list[Stage]:
    """The stages in order of importance. Their limits add up to more than the whole, since most need less than
    theirs."""
    how = f"--device {args.device} --dtype {args.dtype} --engine {args.engine} --limit {args.limit}"
    how += f" --max-new-tokens {args.max_new_tokens}"
    draft = ("--draft", full_name(args.draft)) if args.draft else ()

    def stage(name: str, seconds: float, command: str, *words: str) -> Stage:
        return Stage(name, seconds, (*command.split(), "--out-dir", str(work), *words))

    def size(target: Target, seconds: float) -> Stage:
        words = ("--target", target.words, "--name", target.record, *draft)
        return stage(target.name, seconds, f"-m benchmarks.gpu.one_size {how}", *words)

    sizes = ",".join(target.words for target in targets)
    first, *others = targets
    plain = f"-m benchmarks.gpu.plain {how} --engine eager --limit 1 --name gpu"
    exact = f"compare.py --quick --no-padded --temperature 0 {how} --dtype float32 --name gpu-float32"
    side_by_side = "-n 4 --dist worksteal" if find_spec("xdist") else ""
    pytest = f"-m pytest -q -o addopts= -p no:cacheprovider {side_by_side} -m cuda tests/test_cuda.py"
    return [
        stage(PREFLIGHT, 60, f"-m benchmarks.gpu.preflight {how} --name gpu", "--sizes", sizes, *draft),
        size(first, 200),
        stage("float32 identity", 60, exact),
        Stage(TESTS, 120, tuple(pytest.split())),
        *(size(target, 90) for target in others),
        stage("experiments", 120, plain, "--target", first.words),
    ]
