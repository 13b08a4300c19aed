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

import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

from speclab import loading, options, record
from speclab.errors import EnvironmentProblem, UsageProblem, reports_problems

LEAST = 20.0  # seconds below which a stage is not begun
GRACE = 8.0  # seconds to write down what was measured


class Stage(NamedTuple):
    name: str
    seconds: float  # at most
    words: list[str]  # after `python`


def stages(sizes: list[str], device: str, dtype: str, folder: Path) -> list[Stage]:
    """What runs, in order of importance."""
    machine = ["--device", device, "--dtype", dtype, "--out-dir", str(folder)]
    targets = {size: [] if size == "lab" else ["--target", size] for size in sizes}

    def short(size: str) -> str:
        return size.replace(":", "-")

    found = [Stage("tests", 120, ["-m", "pytest", "-q", "-m", "cuda", "tests/test_cuda.py"])]
    found.append(
        Stage("roofline", 90, ["-m", "benchmarks.roofline", "--sizes", ",".join(sizes), "--name", "gpu", *machine])
    )
    for size, target in targets.items():
        words = ["compare.py", *target, "--limit", "2", "--name", f"gpu-{short(size)}", *machine]
        found.append(Stage(f"compare {size}", 90, words))
    exact = ["compare.py", "--quick", "--temperature", "0", "--name", "gpu-float32", *machine, "--dtype", "float32"]
    found.append(Stage("identity in float32", 60, exact))
    for size, target in targets.items():
        words = ["-m", "benchmarks.peers", *target, "-k", "4", "--limit", "1", "--name", f"gpu-{short(size)}", *machine]
        found.append(Stage(f"peers {size}", 60, words))
    for sweep in ("draft-length", "acceptance"):
        for size, target in targets.items():
            words = ["compare.py", "--sweep", sweep, *target, "--limit", "1", "--name", f"gpu-{short(size)}", *machine]
            found.append(Stage(f"sweep {sweep} {size}", 60, words))
    found.append(Stage("scaling", 60, ["-m", "benchmarks.scaling", "--name", "gpu", *machine]))
    return found


def run(stage: Stage, limit: float, log: Path) -> tuple[str, float]:
    """One stage, its words appended to the log.  -> what became of it, seconds

    Out of time it is asked to stop, as by Ctrl-C: what was measured by then is written.
    """
    start = time.monotonic()
    with log.open("a", encoding="utf-8") as out:
        out.write(f"\n=== {stage.name}: python {' '.join(stage.words)}\n")
        out.flush()
        process = subprocess.Popen([sys.executable, *stage.words], cwd=record.ROOT, stdout=out, stderr=out)
        try:
            code = process.wait(max(1.0, limit - GRACE))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            what = "FAILED: " if stage.name == "tests" else ""
            return f"{what}stopped after {time.monotonic() - start:.0f} s", time.monotonic() - start
    if stage.name == "tests" and code == 5:  # pytest found none: no GPU here
        return "no CUDA tests to run here", time.monotonic() - start
    return "done" if code == 0 else f"FAILED, exit code {code}", time.monotonic() - start


def summary(outcomes: list[tuple[str, str, float]], pages: list[Path]) -> str:
    """Every stage, then every page of tables."""
    lines = ["# One run on one machine", "", "| stage | what became of it | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {what} | {seconds:.0f} |" for name, what, seconds in outcomes]
    for page in pages:
        lines += ["", f"# {page.stem}", "", page.read_text("utf-8").strip()]
    return "\n".join(lines) + "\n"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = options.make_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="gets three files")
    parser.add_argument("--minutes", type=float, default=8.5, help="for everything (default: 8.5)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sizes", default="lab,lab:1b,lab:8b", help="targets (default: %(default)s)")
    args = parser.parse_args(argv)
    if not args.minutes > 0:
        raise UsageProblem(f"--minutes {args.minutes:g}: give a number above 0, for example --minutes 9")
    try:
        device, _ = loading.choose_device(args.device)  # an error here costs nothing
    except EnvironmentProblem:
        raise EnvironmentProblem(
            "this needs an NVIDIA GPU and a CUDA build of PyTorch, and finds none; for a rehearsal without one: "
            'make bench-gpu ARGS="--device cpu --dtype float32 --sizes lab"'
        ) from None
    folder = (args.out / "work").resolve()  # stages run in the lab's own folder
    for room in (args.out, folder):
        record.prepare_folder(room)
    log = args.out / "log.txt"
    log.write_text("", "utf-8")

    outcomes, end = [], time.monotonic() + 60 * args.minutes
    for stage in stages(args.sizes.split(","), device.type, args.dtype, folder):
        left = end - time.monotonic()
        if left < LEAST:
            outcomes.append((stage.name, "left out: no time", 0.0))
            continue
        options.note(f"{stage.name} ({left:.0f} s left)")
        outcomes.append((stage.name, *run(stage, min(stage.seconds, left), log)))
    pages = sorted((folder / "results").glob("*.md"))
    record.write_whole(args.out / "summary.md", summary(outcomes, pages))
    with tarfile.open(args.out / "records.tar.gz", "w:gz") as archive:
        for room in ("results", "plots"):
            if (folder / room).exists():
                archive.add(folder / room, room)
    print(summary(outcomes, []), end="")
    options.note(f"wrote {options.shown_path(args.out)}: summary.md, log.txt, records.tar.gz")
    return 1 if any("FAILED" in what for _, what, _ in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
