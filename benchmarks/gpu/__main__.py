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
stage, all tables), `log.txt`, `records.tar.gz` (all run records). The stages write to the log themselves; the other two
are written anew, whole or not at all, whenever a stage begins or ends and as soon as there is a new record: whatever
ends the run, what was finished by then is in them. Exit code 1 if a stage failed, 3 if the preflight did.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C and missing libraries are one line

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import BinaryIO

from benchmarks.gpu import stages
from benchmarks.gpu.results import Results
from benchmarks.gpu.signals import Stopped, on_signals
from benchmarks.gpu.stages import PREFLIGHT, TESTS, Stage
from benchmarks.gpu.summary import Outcome
from speclab.cli import parsing
from speclab.system import terminal
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.paths import ROOT
from speclab.system.terminal import note

LEAST = 20.0  # seconds below which a stage is not begun
GRACE = 8.0  # seconds to write down what was measured
LOOK = 0.1  # seconds between two looks for new records, and for Ctrl-C
REASON = 300  # characters of a failure in the summary


# --- one stage --------------------------------------------------------------------------------------------------------


def start(stage: Stage, log: BinaryIO) -> Popen:
    """Start the stage in this process's group, so that what ends the group ends it, too."""
    return Popen([sys.executable, *stage.command], cwd=ROOT, stdin=DEVNULL, stdout=log, stderr=log)


def run(stage: Stage, seconds: float, log: Path, look: Callable[[], None], stops: list[Stopped]) -> tuple[int, str]:
    """Run one stage, with its output appended to the log.  -> its exit code, and what became of it

    After Ctrl-C, or out of time, it is asked to stop: what was measured by then is written. A second Ctrl-C ends it.
    """
    end, asked = time.monotonic() + max(1.0, seconds - GRACE), ""
    with log.open("ab") as out:
        out.write(f"\n=== {stage.name}: python {' '.join(stage.command)}\n".encode())
        out.flush()
        n_before = out.tell()
        process = start(stage, out)
        while (code := process.poll()) is None:
            look()
            late = time.monotonic() >= end
            if asked and (late or len(stops) > 1):
                process.kill()
            elif not asked and (late or stops):
                asked, end = "stopped" if stops else "stopped: out of time", time.monotonic() + GRACE
                process.send_signal(signal.SIGINT)
            time.sleep(LOOK)
    lines = log.read_bytes()[n_before:].decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    reason = f": {terminal.harmless(last.removeprefix('error: '))[:REASON]}" if last else ""
    if asked or code == 0:
        return code, asked or "done" + reason * (stage.name == TESTS)
    return code, f"FAILED, {f'exit code {code}' if code > 0 else f'ended by signal {-code}'}{reason}"


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(all_stages: list[Stage], results: Results, end: float, stops: list[Stopped]) -> None:
    """Run the stages while there is time until `end`, on the monotonic clock, and nothing is in `stops`.

    UsageProblem or EnvironmentProblem: the preflight has found an error in the command's words; nothing is written.
    """
    results.log.write_bytes(b"")
    unusable = False
    for stage in all_stages:
        left, why, first = end - time.monotonic(), "", stage.name == PREFLIGHT
        if stops or unusable:
            why = "stopped" if stops else "the preflight failed"
        elif stage.name == TESTS and find_spec("pytest") is None:
            why = "pytest is not installed"
        elif left < LEAST:
            why = "no time"
        if why:
            results.outcomes[stage.name] = Outcome(f"left out: {why}")
            continue
        results.outcomes[stage.name] = Outcome("running")
        if not first:  # the preflight has to see whether the command makes sense before anything is written
            note(f"{stage.name} ({left:.0f} s left)")
            results.write()
        try:
            code, what = run(stage, min(stage.seconds, left), results.log, results.write_new, stops)
        except OSError as error:  # no process can be started, or the log cannot be written
            code, what = 1, f"FAILED: {error.strerror}"
        if first and code in (2, 3) and not list(results.work.glob("*/*")):
            results.log.unlink()
            raise (UsageProblem if code == 2 else EnvironmentProblem)(what.partition(": ")[2])
        unusable = unusable or (first and code != 0)
        results.outcomes[stage.name] = Outcome(what, left - (end - time.monotonic()))
        results.write()
    results.write()


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--out", type=parsing.some_path, required=True, metavar="FOLDER", help="gets three files")
    parser.add_argument("--minutes", type=parsing.positive, default=8.5, help="for everything (default: 8.5)")
    parser.add_argument("--device", choices=("cuda", "cpu", "mps"), default="cuda", help="(default: cuda)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    parser.add_argument("--engine", choices=("auto", "graphs", "eager"), default="auto", help="(default: auto)")
    parser.add_argument("--sizes", default=stages.SIZES, help="targets, the headline's first (default: %(default)s)")
    parser.add_argument("--draft", metavar="KIND", help="of every size (default: the lab's, as above)")
    parser.add_argument("--limit", type=parsing.at_least(1), default=2, help="prompts of each kind (default: 2)")
    parser.add_argument("--max-new-tokens", type=parsing.at_least(2), default=64, help="of a text (default: 64)")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    targets = stages.targets_of(args.sizes)
    stops: list[Stopped] = []  # while stages run a signal is noted here, and interrupts no writing
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        all_stages = stages.of_run(args, targets, Path(folder))
        results = Results(args.out, Path(folder), [stage.name for stage in all_stages], targets)
        with on_signals(stops.append):
            run_all(all_stages, results, end, stops)
        terminal.say(results.text(), end="")
    if stops:
        raise stops[0]
    if (preflight := results.outcomes[PREFLIGHT].what).startswith(("FAILED", "stopped")):
        raise EnvironmentProblem(f"{preflight}; without an NVIDIA GPU: --device cpu --dtype float32 --sizes lab")
    return int(any(outcome.what.startswith("FAILED") for outcome in results.outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
