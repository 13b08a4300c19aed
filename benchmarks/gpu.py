"""Everything that is worth knowing about a GPU, in one command and a fixed time.

    PYTHON=python3 OUT=folder make bench-gpu                # nothing is installed, nothing downloaded
    python -m benchmarks.gpu --out folder --minutes 9
    python -m benchmarks.gpu --out folder --device cpu --dtype float32 --sizes lab --minutes 5    # a rehearsal

The stages run one after another, each in a process of its own, the most important first: the CUDA tests, the roofline,
the comparison of every size, the library's decoders, two sweeps, scaling. A stage that fails or runs out of its time
is written down as that, and the next one begins; what does not fit the time is left out and named. Their limits add up
to more than the whole, since most need less than theirs.

What comes out, in the folder: `summary.md` (every table and what became of each stage), `log.txt`, `records.tar.gz`
(all run records and pictures). Exit code 1 if a stage failed.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import listed_sizes
from speclab.cli import parsing
from speclab.models import loading
from speclab.system import terminal
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import check_writable, do_all, prepare_folder, write_whole
from speclab.system.paths import ROOT
from speclab.system.terminal import note

LEAST = 20.0  # seconds below which a stage is not begun
GRACE = 8.0  # seconds to write down what was measured


class Stage(NamedTuple):
    """A command and its limit."""

    name: str
    seconds: float  # at most
    command: list[str]  # after `python`


def stages(sizes: list[str], device: str, dtype: str, folder: Path) -> list[Stage]:
    """What runs, in order of importance."""
    machine = ["--device", device, "--dtype", dtype, "--out-dir", str(folder)]

    def of_each_size(what: str, seconds: float, *command: str) -> list[Stage]:
        targets = {size: [] if size == "lab" else ["--target", size] for size in sizes}
        names = {size: ["--name", f"gpu-{size.replace(':', '-')}"] for size in sizes}
        return [Stage(f"{what} {n}", seconds, [*command, *targets[n], *names[n], *machine]) for n in sizes]

    roofline = ["-m", "benchmarks.roofline", "--sizes", ",".join(sizes), "--name", "gpu", *machine]
    exact = ["compare.py", "--quick", "--temperature", "0", "--name", "gpu-float32", *machine, "--dtype", "float32"]
    return [
        Stage("tests", 120, ["-m", "pytest", "-q", "-m", "cuda", "tests/test_cuda.py"]),
        Stage("roofline", 90, roofline),
        *of_each_size("compare", 90, "compare.py", "--limit", "2"),
        Stage("identity in float32", 60, exact),
        *of_each_size("peers", 60, "-m", "benchmarks.peers", "-k", "4", "--limit", "1"),
        *of_each_size("sweep draft-length", 60, "compare.py", "--sweep", "draft-length", "--limit", "1"),
        *of_each_size("sweep acceptance", 60, "compare.py", "--sweep", "acceptance", "--limit", "1"),
        Stage("scaling", 60, ["-m", "benchmarks.scaling", "--name", "gpu", *machine]),
    ]


def run(stage: Stage, limit: float, log: Path) -> str:
    """One stage, its output appended to the log.  -> what became of it

    Out of time it is asked to stop, as by Ctrl-C: what was measured by then is written. Ctrl-C here is passed on, too.
    """
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n=== {stage.name}: python {' '.join(stage.command)}\n")
        out.flush()
        process = subprocess.Popen([sys.executable, *stage.command], cwd=ROOT, stdout=out, stderr=out)
        try:
            code = process.wait(max(1.0, limit - GRACE))
        except subprocess.TimeoutExpired:
            _end(process)
            return "FAILED: out of time" if stage.name == "tests" else "stopped: out of time"
        except KeyboardInterrupt:
            _end(process)
            raise
    if stage.name == "tests" and code == 5:  # pytest found none: no GPU here
        return "no CUDA tests to run here"
    return "done" if code == 0 else f"FAILED, exit code {code}"


def _end(process: subprocess.Popen) -> None:
    """Give it time to write down what it has."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def summary(outcomes: list[tuple[str, str, float]], pages: list[Path]) -> str:
    """Every stage, then every page of tables."""
    lines = ["# One run on one machine", "", "| stage | what became of it | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {what} | {seconds:.0f} |" for name, what, seconds in outcomes]
    for page in pages:
        lines += ["", f"# {page.stem}", "", page.read_text("utf-8").strip()]
    return "\n".join(lines) + "\n"


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--out", type=parsing.some_path, required=True, metavar="FOLDER", help="gets three files")
    parser.add_argument("--minutes", type=parsing.positive, default=8.5, help="for everything (default: 8.5)")
    parser.add_argument("--device", choices=("cuda", "cpu", "mps"), default="cuda", help="(default: cuda)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    parser.add_argument("--sizes", default="lab,lab:1b,lab:8b", help="targets (default: %(default)s)")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    sizes = listed_sizes(args.sizes)
    try:
        device, _ = loading.choose_device(args.device)  # an error here costs nothing
    except EnvironmentProblem:
        raise EnvironmentProblem(
            "this needs an NVIDIA GPU and a CUDA build of PyTorch, and finds none; for a rehearsal without one type: "
            'make bench-gpu ARGS="--device cpu --dtype float32 --sizes lab"'
        ) from None
    log, page, archive = (args.out / name for name in ("log.txt", "summary.md", "records.tar.gz"))
    for path in (log, page, archive):
        check_writable(path, "--out")
    folder = (args.out / "work").resolve()  # stages run in the lab's own folder
    prepare_folder(folder, "--out")
    write_whole(log, "")

    outcomes, end = [], time.monotonic() + 60 * args.minutes
    stopped = None
    for stage in stages(sizes, device.type, args.dtype, folder):
        start = time.monotonic()
        if stopped or end - start < LEAST:
            outcomes.append((stage.name, "left out: stopped" if stopped else "left out: no time", 0.0))
            continue
        note(f"{stage.name} ({end - start:.0f} s left)")
        try:
            what = run(stage, min(stage.seconds, end - start), log)
        except OSError as error:  # the log cannot be written
            what = f"FAILED: {error.strerror}"
        except KeyboardInterrupt as stop:
            stopped, what = stop, "stopped"
        outcomes.append((stage.name, what, time.monotonic() - start))
    pages = sorted((folder / "results").glob("*.md"))
    code = do_all(
        [
            lambda: terminal.say(summary(outcomes, []), end=""),
            lambda: write_whole(page, summary(outcomes, pages)),
            lambda: Path(shutil.make_archive(str(args.out / "records"), "gztar", folder)),
        ]
    )
    if stopped:
        raise stopped
    return code or int(any("FAILED" in what for _, what, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main())
