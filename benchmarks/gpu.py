"""Everything that is worth knowing about a GPU, in one command and a fixed time, the headline first.

    PYTHON=python3 OUT=folder make bench-gpu                # nothing is installed, nothing downloaded
    python -m benchmarks.gpu --out folder --minutes 9
    python -m benchmarks.gpu --out folder --device cpu --dtype float32 --sizes lab:20m,lab    # a rehearsal

Stages run one after another, each in a process of its own: compare.py, benchmarks.roofline and benchmarks.peers for
the first size, the lab pair's texts in float32, the CUDA tests, and the three commands for the other sizes. A padded
target (lab:8b) gets the lab's draft padded to a tenth of it, the lab's own target the draft as it is. A stage that
fails or runs out of its time is written down as that, and the next one begins; what does not fit the time is left out
and named.

What comes out, in the folder: `summary.md` (what became of each stage, and the pages of all records), `log.txt` and
`results/`, where each stage puts its record as soon as it has one. The summary is written anew, whole or not at all,
whenever a stage begins or ends. Exit code 1 if a stage failed.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C and missing libraries are one line

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

from speclab.cli import parsing
from speclab.lab.comparison import padded_kinds
from speclab.models import loading, padding
from speclab.system import terminal
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import ROOT, check_writable, write_whole
from speclab.system.terminal import note

SIZES = "lab:8b:v128256,lab:1b,lab"
TESTS = "CUDA tests"
WIDTHS, LENGTHS = ",".join(map(str, range(1, 10))), "4,6"
LEAST = 20.0  # seconds below which a stage is not begun
GRACE = 8.0  # seconds to write down what was measured
REASON = 300  # characters of a failure in the summary


class Stage(NamedTuple):
    """A command and its limit."""

    name: str
    seconds: float  # at most
    command: tuple[str, ...]  # after `python`


# --- the stages -------------------------------------------------------------------------------------------------------


def stages_of(args: argparse.Namespace) -> list[Stage]:
    """The stages in order of importance. Their limits add up to more than the whole, since most need less than theirs.

    Raises UsageProblem for a target that cannot be.
    """
    names = [name for name in args.sizes.split(",") if name]
    records = ["gpu-" + re.sub(r"[^A-Za-z0-9.]+", "-", loading.short_name(name)).strip("-") for name in names]
    if not names or len(set(records)) < len(records):
        raise UsageProblem(f"--sizes {args.sizes}: give targets of different names, with commas between them")
    how = f"--device {args.device} --engine {args.engine} --limit {args.limit} --max-new-tokens {args.max_new_tokens}"

    def stage(name: str, seconds: float, command: str, *words: str, dtype: str = args.dtype) -> Stage:
        out = os.path.abspath(args.out)
        return Stage(name, seconds, (*f"{command} {how} --dtype {dtype} --out-dir".split(), out, *words))

    def size(name: str, record: str, seconds: float) -> list[Stage]:
        target, shown = loading.LAB_TARGET if name == "lab" else name, loading.short_name(name)
        loading.load_tokenizer(target)  # each is looked at before the first one is measured
        draft = padded_kinds(["model"], name)[0] if name.startswith(padding.PREFIX) else "model"
        words, peers = ("--target", target, "--name", record, "--draft"), f"-m benchmarks.peers -k {LENGTHS[0]}"
        return [
            stage(f"{shown}: compare", seconds, f"compare.py -k {LENGTHS} --alone", *words, f"{draft},ngram"),
            stage(f"{shown}: roofline", seconds / 2, f"-m benchmarks.roofline --widths {WIDTHS}", *words, draft),
            stage(f"{shown}: peers", seconds, f"{peers} --repeats 1", *words, draft),
        ]

    side_by_side = "-n 4 --dist worksteal" if find_spec("xdist") else ""
    pytest = f"-m pytest -q -o addopts= -p no:cacheprovider {side_by_side} -m cuda tests/test_cuda.py"
    tests = [Stage(TESTS, 120, tuple(pytest.split()))] if find_spec("pytest") else []
    exact = "compare.py --quick --alone --temperature 0 --name gpu-float32"
    first, *others = zip(names, records, strict=True)
    return [
        *size(*first, 150),
        stage("float32 identity", 60, exact, dtype="float32"),
        *tests,
        *(stage for other in others for stage in size(*other, 60)),
    ]


def start(stage: Stage, log: BinaryIO) -> subprocess.Popen:
    """Start the stage in this process's group, so that what ends the group ends it, too."""
    command = [sys.executable, *stage.command]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run(stage: Stage, seconds: float, log: Path) -> str:
    """Run one stage, with its output appended to the log.  -> what became of it

    Out of time, it is asked to stop: what was measured by then is written. So it is after Ctrl-C, which is raised then.
    """
    with log.open("ab") as out:
        out.write(f"\n=== {stage.name}: python {' '.join(stage.command)}\n".encode())
        out.flush()
        n_before, stopped, stop = out.tell(), "", None
        process = start(stage, out)
        try:
            code = process.wait(max(1.0, seconds - GRACE))
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as problem:
            stopped, stop = "stopped: out of time", problem
            try:
                if isinstance(problem, KeyboardInterrupt):  # a terminal has told the whole group
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(GRACE)
                process.send_signal(signal.SIGINT)  # to one that still runs
                code = process.wait(GRACE)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C ends it
                process.kill()
                code = process.wait()
    if isinstance(stop, KeyboardInterrupt):
        raise stop
    lines = log.read_bytes()[n_before:].decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    reason = f": {terminal.harmless(last.removeprefix('error: '))[:REASON]}" if last else ""
    if stopped or code == 0:
        return stopped or "done" + reason * (stage.name == TESTS)
    return f"FAILED, {f'exit code {code}' if code > 0 else f'ended by signal {-code}'}{reason}"


# --- all of them ------------------------------------------------------------------------------------------------------


def summary(outcomes: dict[str, str]) -> str:
    rows = [f"| {name} | {what.replace('|', '/')} |" for name, what in outcomes.items()]
    return "\n".join(["# A GPU in one command", "", "| stage | what became of it |", "|---|---|", *rows, ""])


def run_all(stages: list[Stage], out: Path, end: float) -> dict[str, str]:
    """Run the stages while there is time until `end`, on the monotonic clock, and write the summary.  -> what became of
    each. After Ctrl-C the others are left out."""
    log, page, outcomes = out / "log.txt", out / "summary.md", dict.fromkeys([one.name for one in stages], "to come")

    def write() -> None:
        found = sorted((out / "results").glob("[!.]*.md"), key=lambda path: path.stat().st_mtime)
        pages = [path for path in found if path.stat().st_mtime >= begin]  # others are of an earlier run
        bare = [re.sub(r"^!\[.*\n+", "", one.read_text("utf-8"), flags=re.MULTILINE).strip() for one in pages]
        texts = [f"\n# {one.stem}\n\n{text}\n" for one, text in zip(pages, bare, strict=True)]
        write_whole(page, "\n".join([summary(outcomes), *texts]))

    log.write_bytes(b"")
    begin = log.stat().st_mtime
    for stage in stages:
        left = end - time.monotonic()
        if left < LEAST:
            outcomes[stage.name] = "left out: no time"
            continue
        note(f"{stage.name} ({left:.0f} s left)")
        outcomes[stage.name] = "running"
        write()
        try:
            what = run(stage, min(stage.seconds, left), log)
        except OSError as error:  # no process can be started, or the log cannot be written
            what = f"FAILED: {error.strerror}"
        except KeyboardInterrupt:
            outcomes[stage.name] = "stopped"
            write()
            raise
        outcomes[stage.name] = f"{what} ({left - (end - time.monotonic()):.0f} s)"
    write()
    return outcomes


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--out", type=parsing.some_path, required=True, metavar="FOLDER", help="gets all files")
    parser.add_argument("--minutes", type=parsing.positive, default=8.5, help="for everything (default: 8.5)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default: cuda)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    parser.add_argument("--engine", choices=("auto", "graphs", "eager"), default="auto", help="(default: auto)")
    parser.add_argument("--sizes", default=SIZES, help="of the lab's target, the headline first (default: %(default)s)")
    parser.add_argument("--limit", type=parsing.at_least(1), default=2, help="prompts of each kind (default: 2)")
    parser.add_argument("--max-new-tokens", type=parsing.at_least(2), default=64, help="of a text (default: 64)")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    loading.choose_device(args.device)
    stages = stages_of(args)
    for name in ("log.txt", "summary.md"):
        check_writable(args.out / name, "--out")
    outcomes = run_all(stages, args.out, end)
    terminal.say(summary(outcomes), end="")
    return int(any(what.startswith("FAILED") for what in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
