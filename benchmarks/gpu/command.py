"""Everything that is worth knowing about a GPU, in one command and a fixed time, the headline first.

    PYTHON=python3 OUT=folder make bench-gpu                # nothing is installed, nothing downloaded
    python -m benchmarks.gpu --out folder --minutes 9
    python -m benchmarks.gpu --out folder --sizes Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct
    python -m benchmarks.gpu --out folder --device cpu --dtype float32 --sizes lab:20m,lab    # a rehearsal

Stages run one after another, each in a process of its own: the preflight, the first size, the lab pair's texts in
float32, the CUDA tests, the other sizes, experiments at the first size. A padded target (lab:8b) gets the lab's draft
padded to a tenth of it, the lab's own target the draft as it is. A stage that fails or runs out of its time is written
down as that, and the next one begins; what does not fit the time is left out and named. If the preflight fails nothing
else is begun.

What comes out, in the folder: `summary.md` (the headline, every goal beside what was measured, what became of each
stage, all tables), `log.txt`, `records.tar.gz` (all run records). They are written anew, whole or not at all, whenever
a stage begins or ends and within a second of every record: whatever ends the run, what was finished by then is in them.
Exit code 1 if a stage failed, 3 if the preflight did.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from benchmarks.gpu import stages
from benchmarks.gpu.results import Results
from benchmarks.gpu.stages import PREFLIGHT, TESTS, Stage
from speclab.cli import parsing
from speclab.system import terminal
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.paths import ROOT
from speclab.system.terminal import note

LEAST = 20.0  # seconds below which a stage is not begun
GRACE = 8.0  # seconds to write down what was measured
LOOK = 1.0  # seconds between two looks for new records
REASON = 300  # characters of a failure in the summary


# --- one stage --------------------------------------------------------------------------------------------------------


def start(stage: Stage, log: BinaryIO) -> subprocess.Popen:
    """Its process, in this process's group, so that what ends the group ends it, too."""
    return subprocess.Popen(
        [sys.executable, *stage.words()], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def run(stage: Stage, limit: float, log: Path, look: Callable[[], None]) -> tuple[int | None, str]:
    """One stage, its output appended to the log.  -> its exit code, None if time ran out; what became of it

    Out of time it is asked to stop, as by Ctrl-C: what was measured by then is written. Ctrl-C here is passed on, too.
    """
    with log.open("ab") as out:
        out.write(f"\n=== {stage.name}: python {' '.join(stage.words())}\n".encode())
        out.flush()
        n_before = out.tell()
        process = start(stage, out)
        end = time.monotonic() + max(1.0, limit - GRACE)
        try:
            while (code := _wait(process, min(LOOK, max(0.0, end - time.monotonic())))) is None:
                if time.monotonic() >= end:
                    _end(process)
                    return None, "stopped: out of time"
                look()
        except BaseException:
            _end(process)
            raise
    if code == 0:
        return code, "done" + (_reason(log, n_before) if stage.name == TESTS else "")
    how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return code, f"FAILED, {how}{_reason(log, n_before)}"


def _wait(process: subprocess.Popen, seconds: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _end(process: subprocess.Popen) -> None:
    """Give it time to write down what it has. A second Ctrl-C takes that time away."""
    try:
        process.send_signal(signal.SIGINT)
        process.wait(GRACE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _reason(log: Path, n_before: int) -> str:
    """The last line that a stage has written."""
    lines = log.read_bytes()[n_before:].decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {terminal.harmless(last.removeprefix('error: '))[:REASON]}" if last else ""


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(all_stages: list[Stage], results: Results, end: float) -> BaseException | None:
    """Every stage while there is time until `end`, on the monotonic clock.  -> Ctrl-C, if that stopped it

    UsageProblem or EnvironmentProblem: the preflight has found the words of the command wrong; nothing is written.
    """
    stopped: BaseException | None = None
    failed = False
    for stage in all_stages:
        begun = time.monotonic()
        why = "stopped" if stopped else "the preflight failed" if failed else stage.missing()
        if not why and end - begun < LEAST:
            why = "no time"
        if why:
            results.set(stage.name, f"left out: {why}")
            continue
        first = stage.name == PREFLIGHT  # it has to see whether the command makes sense before anything is written
        code: int | None = None
        try:
            results.set(stage.name, "running")
            if not first:
                note(f"{stage.name} ({end - begun:.0f} s left)")
                results.write()
            code, what = run(stage, min(stage.seconds, end - begun), results.log, results.write_new)
        except OSError as error:  # no process can be started, or the log cannot be written
            what = f"FAILED: {error.strerror}"
        except KeyboardInterrupt as stop:
            stopped, what = stop, "stopped"
        if first and code in (2, 3) and not list(results.work.glob("*/*")):
            raise (UsageProblem if code == 2 else EnvironmentProblem)(what.partition(": ")[2])
        failed = failed or (first and code != 0)
        results.set(stage.name, what, time.monotonic() - begun)
        stopped = results.write_surely() or stopped
    return results.write_surely() or stopped


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--out", type=parsing.some_path, required=True, metavar="FOLDER", help="gets three files")
    parser.add_argument("--minutes", type=parsing.positive, default=8.5, help="for everything (default: 8.5)")
    parser.add_argument("--device", choices=("cuda", "cpu", "mps"), default="cuda", help="(default: cuda)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    parser.add_argument("--engine", choices=("auto", "fast", "eager"), default="auto", help="(default: auto)")
    parser.add_argument(
        "--sizes", default=stages.SIZES, help="targets, the headline's first (default: %(default)s); folders, too"
    )
    parser.add_argument(
        "--draft", metavar="KIND", help="of every size (default: the lab's, a tenth of a padded target)"
    )
    parser.add_argument("--limit", type=parsing.at_least(1), default=2, help="prompts of each kind (default: 2)")
    parser.add_argument("--max-new-tokens", type=parsing.at_least(2), default=64, help="of a text (default: 64)")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        work = Path(folder)
        all_stages = stages.of_run(args, work)
        results = Results(args.out, work, all_stages)
        results.check()
        stopped = run_all(all_stages, results, end)
        terminal.say(results.text(), end="")
    if stopped:
        raise stopped
    if results.outcomes[PREFLIGHT].failed:
        raise EnvironmentProblem(
            f"{results.outcomes[PREFLIGHT].what}; use a machine with an NVIDIA GPU and a CUDA build of PyTorch, or "
            '--device cpu: make bench-gpu ARGS="--device cpu --dtype float32 --sizes lab"'
        )
    return int(any(outcome.failed for outcome in results.outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
