"""Run the checks of exercises: pytest (tests/exercises/) in a process of its own, which is ended with all it started.

Whatever a learner's code does, it does it in that process. pytest-timeout stops code that never ends, and this module
ends the process where that cannot: a long call into C, or code that catches whatever is raised in it. A check without
an outcome has failed, and the reason is read from the process's end. Imports nothing heavy: check.py answers at once.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from exercises.guard import has_alarm
from speclab.extensions.learner.checklist import Check, Exercise, restore
from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import install_advice
from speclab.system.terminal import note

SILENCE = 45  # seconds without the end of a check, after which the process is ended
STACK = 30  # seconds after which pytest logs where a check is; pytest-timeout has stopped before what it can stop
WORST_FIRST = ("none", "failed", "todo", "passed")


class Run(NamedTuple):
    """What became of a pytest process."""

    exit_code: int | None  # None where it had to be ended
    log: str  # what it printed
    outcomes: list[dict]  # the lines that tests/exercises/conftest.py wrote


def run_checks(package: str, chosen: list[Exercise]) -> None:
    """Run the checks of these exercises and fill in their outcomes.

    One process for all is quick, but there one exercise can spoil the next one, so what fails after another exercise is
    run once more without it. Raises EnvironmentProblem if a package is missing or if a test file itself cannot be run.
    """
    _fill_in(package, chosen)
    for exercise in chosen[1:]:
        if exercise.failed:
            _fill_in(package, [exercise])


def _fill_in(package: str, chosen: list[Exercise]) -> None:
    """One process for the checks of these exercises; a check that has no outcome has failed."""
    # At once: pytest, and the torch of some exercises, take seconds to load.
    what = package.removesuffix("s") if len(chosen) == 1 else package
    note(f"running the checks of {what} {', '.join(str(exercise.number) for exercise in chosen)} ...")
    run = _pytest(package, [exercise.test_file for exercise in chosen])
    if not run.outcomes:
        raise EnvironmentProblem(_why_nothing_ran(run.log))
    for exercise in chosen:
        exercise.checks = checks_of(run, exercise.test_file.name)


def _pytest(package: str, files: list[Path]) -> Run:
    """Run these test files in a process; whatever it has started is ended with it, also where this process stops."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes, log = Path(folder) / "outcomes", Path(folder) / "log"
        # Only the lab's own settings: no plugins and no options of whoever runs this.
        settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        outcomes.touch()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *pytest_words(package, outcomes, files)],
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
        return read_run(code, log, outcomes)


def pytest_words(package: str, outcomes: Path, files: list[Path]) -> list[str]:
    """What pytest is called with to run the checks in these files and to write their outcomes."""
    words = ["-p", "no:cacheprovider", "-c", str(paths.ROOT / "pyproject.toml")]
    words += ["--confcutdir", str(paths.ROOT / "tests" / "exercises")]
    words += ["-p", "pytest_timeout", "-o", f"faulthandler_timeout={STACK}"]
    return [*words, "--impl", package, "--outcomes", str(outcomes), *map(str, files)]


def read_run(exit_code: int | None, log: Path, outcomes: Path) -> Run:
    """What a process that has ended has left in its two files."""
    return Run(exit_code, log.read_text("utf-8", errors="replace"), list(_parsed(outcomes.read_bytes())))


def _wait(process: subprocess.Popen, outcomes: Path) -> int | None:
    """Wait while checks come to their ends.  -> exit code; None where none does any more"""
    n_bytes = -1
    while n_bytes != (n_bytes := outcomes.stat().st_size):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(SILENCE)
    return None


def _end(process: subprocess.Popen) -> None:
    """End the process and, where the system has process groups, whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _parsed(outcomes: bytes) -> Iterator[dict]:
    """The lines of a report; the last one may be torn where the process was ended."""
    for line in outcomes.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def checks_of(run: Run, test_file: str) -> list[Check]:
    """The checks of a file, each as good as its worst case; a case without an outcome has failed."""
    lines = [line for line in run.outcomes if line["file"] == test_file]
    cases = {line["case"]: Check(**line["check"]) for line in lines}  # what the last line of a case says
    worst: dict[str, Check] = {}
    for check in cases.values():
        other = worst.get(check.function, check)
        worst[check.function] = min(other, check, key=lambda check: WORST_FIRST.index(check.outcome))
    for check in worst.values():
        if check.outcome == "none":
            check.outcome, check.message = "failed", _why_it_ended(run)
    return list(worst.values())


def _why_it_ended(run: Run) -> str:
    """Why there are checks without an outcome, in the learner's words."""
    stack = re.search(r"(Fatal Python error|Timeout \(\d|\+ Timeout \+).*", run.log, re.DOTALL)
    lines = re.findall(r'File ".*?(\w+)[/\\](ex\d\d_\w+\.py)", line (\d+)', stack[0] if stack else "")
    place = " ({}/{}:{})".format(*lines[0]) if lines else ""
    if run.exit_code is None or (not has_alarm() and "+ Timeout +" in run.log):  # without alarms the plugin ends Python
        return f"still running, and nothing could interrupt it{place}: a loop without an end?"
    how = "MemoryError" if "MemoryError" in run.log else f"exit code {run.exit_code}"
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
    module = re.search(r"No module named '?(\w+)", error)
    own = module and [path for path in (paths.ROOT / module[1], paths.ROOT / f"{module[1]}.py") if path.exists()]
    advice = restore(paths.ROOT / "tests") if own or not module else install_advice()
    return f"the checks cannot be run ({', '.join(files) or 'pytest stopped'}): {error}; type: {advice}"
