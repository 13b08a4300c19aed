"""Everything that is worth knowing about a GPU, in one command and a fixed time, the headline first.

    PYTHON=python3 OUT=folder make bench-gpu                # nothing is installed, nothing downloaded
    python -m benchmarks.gpu --out folder --minutes 9
    python -m benchmarks.gpu --out folder --sizes Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct
    python -m benchmarks.gpu --out folder --device cpu --dtype float32 --sizes lab:20m,lab    # a rehearsal

Stages run one after another, each in a process of its own: compare.py, benchmarks.roofline and benchmarks.peers for
the first size, the lab pair's texts in float32, the CUDA tests, and the three commands for the other sizes. A padded
target (lab:8b) gets the lab's draft padded to a tenth of it, the lab's own target the draft as it is. A stage that
fails or runs out of its time is written down as that, and the next one begins; what does not fit the time is left out
and named.

What comes out, in the folder: `summary.md` (what became of each stage, and the pages of all records), `log.txt`,
`records.tar.gz` (all run records). The stages write to the log themselves; the other two are written anew, whole or not
at all, whenever a stage begins or ends and as soon as there is a new record: whatever ends the run, what was finished
by then is in them. Exit code 1 if a stage failed.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C and missing libraries are one line

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import BinaryIO, NamedTuple

from benchmarks import common
from speclab.cli import parsing
from speclab.drafts import registry
from speclab.lab.padded_pair import padded_kinds
from speclab.models import loading
from speclab.models.padded.sizes import is_lab_size
from speclab.system import terminal
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable, write_whole
from speclab.system.paths import ROOT
from speclab.system.terminal import note

SIZES = "lab:8b:v128256,lab:1b,lab"
TESTS = "CUDA tests"
WIDTHS, LENGTHS = ",".join(map(str, range(1, 10))), "4,6"
LEAST = 20.0  # seconds below which a stage is not begun
GRACE = 8.0  # seconds to write down what was measured
LOOK = 0.1  # seconds between two looks for new records, and for Ctrl-C
REASON = 300  # characters of a failure in the summary
SAME_REQUEST_SECONDS = 1.0  # a second signal within them is the same request: some programs send it twice


class Stage(NamedTuple):
    """A command and its limit."""

    name: str
    seconds: float  # at most
    command: tuple[str, ...]  # after `python`


# --- the stages -------------------------------------------------------------------------------------------------------


def stages_of(args: argparse.Namespace, work: Path) -> list[Stage]:
    """The stages in order of importance. Their limits add up to more than the whole, since most need less than theirs.

    Raises UsageProblem for a target or a draft that cannot be.
    """
    names = [full_name(name) for name in common.listed_sizes(args.sizes)]
    records = ["gpu-" + re.sub(r"[^A-Za-z0-9.]+", "-", loading.short_name(name)).strip("-") for name in names]
    if len(set(records)) < len(records):
        raise UsageProblem(f"--sizes {args.sizes}: give targets of different names, with commas between them")
    how = f"--device {args.device} --engine {args.engine} --limit {args.limit} --max-new-tokens {args.max_new_tokens}"

    def stage(name: str, seconds: float, command: str, *words: str, dtype: str = args.dtype) -> Stage:
        return Stage(name, seconds, (*f"{command} {how} --dtype {dtype} --out-dir".split(), str(work), *words))

    def size(name: str, record: str, seconds: float) -> list[Stage]:
        draft = full_name(args.draft or (padded_kinds(["model"], name)[0] if is_lab_size(name) else "model"))
        registry.read(draft)
        words, shown = ("--target", common.target_name(name), "--name", record, "--draft"), loading.short_name(name)
        peers = f"-m benchmarks.peers -k {LENGTHS[0]} --repeats 1"
        return [
            stage(f"{shown}: compare", seconds, f"compare.py -k {LENGTHS} --no-padded", *words, f"{draft},ngram"),
            stage(f"{shown}: roofline", seconds / 2, f"-m benchmarks.roofline --widths {WIDTHS}", *words, draft),
            stage(f"{shown}: peers", seconds, peers, *words, draft),
        ]

    side_by_side = "-n 4 --dist worksteal" if find_spec("xdist") else ""
    pytest = f"-m pytest -q -o addopts= -p no:cacheprovider {side_by_side} -m cuda tests/test_cuda.py"
    exact = "compare.py --quick --no-padded --temperature 0 --name gpu-float32"
    first, *others = zip(names, records, strict=True)
    return [
        *size(*first, 150),
        stage("float32 identity", 60, exact, dtype="float32"),
        Stage(TESTS, 120, tuple(pytest.split())),
        *(stage for other in others for stage in size(*other, 60)),
    ]


def full_name(name: str) -> str:
    """A folder's full path, since stages run in the lab's own folder; any other name as it is."""
    return os.path.abspath(name) if name != "lab" and os.path.isdir(name) else name


class Stopped(KeyboardInterrupt):
    """The user pressed Ctrl-C, or a signal asked for the same."""

    def __init__(self, number: int):
        super().__init__()
        self.exit_code = 128 + number


@contextlib.contextmanager
def on_signals(act: Callable[[Stopped], object]) -> Iterator[None]:
    """Let SIGINT, SIGTERM and, where the system has it, SIGHUP call `act`; an ignored one stays ignored."""
    last = -SAME_REQUEST_SECONDS

    def receive(number: int, _frame: object) -> None:
        nonlocal last
        if time.monotonic() - last >= SAME_REQUEST_SECONDS:
            last = time.monotonic()
            act(Stopped(number))

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


# --- the folder -------------------------------------------------------------------------------------------------------


class Results:
    """The folder of a run: three files that always hold everything that is finished. Stages write to the log, and
    records and pages into `work`, which is elsewhere."""

    def __init__(self, out: Path, work: Path, stages: list[str]):
        self.work, self.log = work, out / "log.txt"
        self.outcomes = dict.fromkeys(stages, "to come")
        self._page, self._archive = out / "summary.md", out / "records.tar.gz"
        self._kept: dict[Path, int] = {}  # what the archive holds
        self._problem = ""
        for path in (self.log, self._page, self._archive):
            check_writable(path, "--out")

    def text(self) -> str:
        """The beginning of the summary."""
        rows = [f"| {name} | {what.replace('|', '/')} |" for name, what in self.outcomes.items()]
        return "\n".join(["# A GPU in one command", "", "| stage | what became of it |", "|---|---|", *rows, ""])

    def write(self) -> None:
        """Write both files. Where that fails the run goes on, because the disk may have room again."""
        packed, pages = io.BytesIO(), sorted((self.work / "results").glob("[!.]*.md"), key=lambda p: p.stat().st_ctime)
        try:
            files = self._files()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for path in files:
                    archive.add(path, path.relative_to(self.work))
            write_whole(self._archive, packed.getvalue())
            write_whole(self._page, "\n".join([self.text(), *map(with_title, pages)]))
            self._kept, self._problem = files, ""
        except Exception as problem:  # a full disk, or a record that is not as expected: neither may end the run
            if str(problem) != self._problem:
                note(f"not written, tried again later: {problem}")
            self._problem = str(problem)

    def write_new(self) -> None:
        """Write both files if there is a new record."""
        if self._files() != self._kept:
            self.write()

    def _files(self) -> dict[Path, int]:
        """The records and pages, with the times of their writing, without files that are being written."""
        return {path: path.stat().st_mtime_ns for path in sorted(self.work.glob("results/[!.]*"))}


def with_title(page: Path) -> str:
    """A record's page under its own name, without its pictures."""
    text = re.sub(r"^!\[.*\n+", "", page.read_text("utf-8"), flags=re.MULTILINE)
    return f"\n# {page.stem}\n\n{text.strip()}\n"


# --- all of them ------------------------------------------------------------------------------------------------------


def run_all(stages: list[Stage], results: Results, end: float, stops: list[Stopped]) -> None:
    """Run the stages while there is time until `end`, on the monotonic clock, and nothing is in `stops`."""
    results.log.write_bytes(b"")
    for stage in stages:
        left = end - time.monotonic()
        why = "stopped" if stops else "no time" if left < LEAST else ""
        if stage.name == TESTS and find_spec("pytest") is None:
            why = why or "pytest is not installed"
        if why:
            results.outcomes[stage.name] = f"left out: {why}"
            continue
        note(f"{stage.name} ({left:.0f} s left)")
        results.outcomes[stage.name] = "running"
        results.write()
        try:
            _, what = run(stage, min(stage.seconds, left), results.log, results.write_new, stops)
        except OSError as error:  # no process can be started, or the log cannot be written
            what = f"FAILED: {error.strerror}"
        results.outcomes[stage.name] = f"{what} ({left - (end - time.monotonic()):.0f} s)"
        results.write()
    results.write()


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--out", type=parsing.some_path, required=True, metavar="FOLDER", help="gets three files")
    parser.add_argument("--minutes", type=parsing.positive, default=8.5, help="for everything (default: 8.5)")
    parser.add_argument("--device", choices=("cuda", "cpu", "mps"), default="cuda", help="(default: cuda)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    parser.add_argument("--engine", choices=("auto", "graphs", "eager"), default="auto", help="(default: auto)")
    parser.add_argument("--sizes", default=SIZES, help="targets, the headline's first (default: %(default)s)")
    parser.add_argument("--draft", metavar="KIND", help="of every size (default: the lab's, as above)")
    parser.add_argument("--limit", type=parsing.at_least(1), default=2, help="prompts of each kind (default: 2)")
    parser.add_argument("--max-new-tokens", type=parsing.at_least(2), default=64, help="of a text (default: 64)")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    loading.choose_device(args.device)
    stops: list[Stopped] = []  # while stages run a signal is noted here, and interrupts no writing
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        stages = stages_of(args, Path(folder))
        results = Results(args.out, Path(folder), [stage.name for stage in stages])
        with on_signals(stops.append):
            run_all(stages, results, end, stops)
        terminal.say(results.text(), end="")
    if stops:
        raise stops[0]
    return int(any(what.startswith("FAILED") for what in results.outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
