"""Run the checks of exercises: pytest (tests/exercises/) in a process of its own, which is ended with all it started.

Whatever a learner's code does, it does it in that process. A check without an outcome has failed, and the reason is
read from the process's end. Imports nothing heavy: check.py answers at once.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

from speclab.learner.checklist import Check, Exercise, checks_folder, restore, used_functions
from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import shown
from speclab.system.terminal import note

NEEDED = ("pytest", "torch", "transformers")
SILENCE = 75  # seconds without an outcome after which a run is ended; the code's own alarms ring before (guard.py)
LOG_BYTES = 1 << 16  # of what pytest says, its end
WORST_FIRST = ("started", "failed", "todo", "passed")


class Run(NamedTuple):
    """What became of a pytest process."""

    exit_code: int | None  # None: it had to be ended
    log: str  # the end of what it printed
    outcomes: list[dict]  # the lines that tests/exercises/conftest.py wrote


def run_checks(package: str, chosen: list[Exercise]) -> None:
    """Run the checks of these exercises and fill in their outcomes.

    One process for all is quick, but there one exercise can spoil the next one, so what fails after another exercise is
    run once more without it. Raises EnvironmentProblem if a package is missing or if a test file itself cannot be run.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise EnvironmentProblem(f"the checks need {names}, which this Python lacks; type: {install()}")
    for exercise in chosen:
        path = exercise.path(package)
        if not path.is_file():  # a pipe would never end to be read
            what = f"{shown(path)} cannot be imported: there is no such file"
            message = f"{what}; type: {restore(path)}, or unpack the lab's archive once more and copy from it"
            exercise.checks = [Check(name, "failed", message) for name in used_functions(exercise)]
    ready = [exercise for exercise in chosen if not exercise.checks]
    _fill_in(package, ready)
    for exercise in ready[1:]:
        if exercise.failed:
            _fill_in(package, [exercise])


def install() -> str:
    """What to type where a package is missing: the same words to the lab's own Python, or pip's."""
    own = paths.ROOT / ".venv" / "bin" / "python"
    if own.exists() and Path(sys.prefix).resolve() != (paths.ROOT / ".venv").resolve():
        return shlex.join([shown(own), *sys.argv])
    return shlex.join(["pip", "install", "-r", shown(paths.ROOT / "requirements.txt")])


def _fill_in(package: str, chosen: list[Exercise]) -> None:
    """One process for the checks of these exercises; a check that has no outcome has failed."""
    if not chosen:
        return
    # At once: pytest, and the torch of some exercises, take seconds to load.
    note(f"running the checks of {package} {', '.join(str(exercise.number) for exercise in chosen)} ...")
    run = _pytest(package, [exercise.test_file for exercise in chosen])
    if not run.outcomes:
        raise EnvironmentProblem(_why_nothing_ran(run.log))
    for exercise in chosen:
        exercise.checks = _checks([line for line in run.outcomes if line["file"] == exercise.test_file.name])
        ended = [check.function for check in exercise.checks]
        left = [name for name in used_functions(exercise) if name not in ended]
        exercise.checks += [Check(name, "failed", _why_it_ended(run)) for name in left]


def _pytest(package: str, files: list[Path]) -> Run:
    """Run these test files in a process; whatever it has started is ended with it, also where this process stops."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report, log = Path(folder) / "outcomes", Path(folder) / "log"
        words = ["--impl", package, "--outcomes", str(report), "--confcutdir", str(checks_folder())]
        # Python writes where a crash, or a call that nothing can interrupt, was.
        words += ["-c", str(paths.ROOT / "pyproject.toml"), "-o", f"faulthandler_timeout={SILENCE / 2}"]
        # Only the lab's own settings: no plugins and no options of whoever runs this.
        settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        with report.open("w+b") as outcomes, log.open("w+b") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *map(str, files)],
                cwd=paths.ROOT,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = _wait(process, outcomes)
            finally:
                _end(process)
            output.seek(max(0, os.fstat(output.fileno()).st_size - LOG_BYTES))
            outcomes.seek(0)
            return Run(code, output.read().decode(errors="replace"), list(_parsed(outcomes)))


def _wait(process: subprocess.Popen, outcomes: BinaryIO) -> int | None:
    """Wait for the process to end.  -> its exit code; None when it wrote no outcome for too long"""
    size, since = 0, time.monotonic()
    while (code := process.poll()) is None:
        now, length = time.monotonic(), os.fstat(outcomes.fileno()).st_size
        if length != size:
            size, since = length, now
        if now - since > (SILENCE if size else 10 * SILENCE):  # before the first outcome pytest and torch are loaded
            return None
        time.sleep(0.02)
    return code


def _end(process: subprocess.Popen) -> None:
    """End the process and, where the system has process groups, whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _parsed(outcomes: BinaryIO) -> Iterator[dict]:
    """The lines of a report; the last one may be torn where the process was ended."""
    for line in outcomes:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _checks(lines: list[dict]) -> list[Check]:
    """A check with several cases is as good as its worst one; one with a case that never ended has no outcome."""
    last = {line["case"]: Check(**line["check"]) for line in lines}
    worst: dict[str, Check] = {}
    for check in last.values():
        other = worst.setdefault(check.function, check)
        if WORST_FIRST.index(check.outcome) < WORST_FIRST.index(other.outcome):
            worst[check.function] = check
    return [check for check in worst.values() if check.outcome != "started"]


def _why_it_ended(run: Run) -> str:
    """Why there are checks without an outcome, in the learner's words."""
    stack = re.split(r"Fatal Python error|Timeout \(", run.log)
    lines = re.findall(r'File ".*?(\w+)[/\\](ex\d\d_\w+\.py)", line (\d+)', stack[-1]) if len(stack) > 1 else []
    place = " ({}/{}:{})".format(*lines[0]) if lines else ""
    if run.exit_code is None:
        return f"still running after {SILENCE:g} s, and nothing could interrupt it{place}: a loop without an end?"
    how = f"exit code {run.exit_code}"
    if run.exit_code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-run.exit_code).name
    return f"did not run: your code ended Python, with {how}{place}"


def _why_nothing_ran(log: str) -> str:
    """Not one check began, so it is not the learner's code that is wrong."""
    lines = [line for line in log.splitlines() if line.strip()] or ["pytest said nothing"]
    errors = [line for line in lines if line.startswith("E  ")] or lines
    error = errors[-1].removeprefix("E  ").strip()[:300]
    files = re.findall(r"^_* ?ERROR collecting (\S+)", log, re.MULTILINE)
    module = re.search(r"No module named '(\w+)", error)
    own = [paths.ROOT / module[1], paths.ROOT / f"{module[1]}.py"] if module else []
    advice = install() if own and not any(path.exists() for path in own) else restore(paths.ROOT / "tests")
    return f"the checks cannot be run ({', '.join(files) or 'pytest stopped'}): {error}; type: {advice}"
