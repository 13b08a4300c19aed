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
# Only the lab's own settings: no plugins and no options of whoever runs this.
SETTINGS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}


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
    # At once: pytest, and the torch of some exercises, take seconds to load.
    what = package.removesuffix("s") if len(chosen) == 1 else package
    note(f"running the checks of {what} {', '.join(str(exercise.number) for exercise in chosen)} ...")
    run = _pytest(package, [exercise.test_file for exercise in chosen])
    if not run.outcomes:
        raise EnvironmentProblem(_why_nothing_ran(run.log))
    for exercise in chosen:
        lines = [line for line in run.outcomes if line["file"] == exercise.test_file.name]
        cases = {line["case"]: Check(**line["check"]) for line in lines}  # what the last line of a case says
        worst: dict[str, Check] = {}
        for check in cases.values():
            others = (worst.get(check.function, check), check)
            worst[check.function] = min(others, key=lambda one: WORST_FIRST.index(one.outcome))
            if worst[check.function].outcome == "none":
                check.outcome, check.message = "failed", _why_it_ended(run)
        exercise.checks = list(worst.values())


def _pytest(package: str, files: list[Path]) -> Run:
    """Run these test files in a process; whatever it has started is ended with it, also where this process stops."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes, log = Path(folder) / "outcomes", Path(folder) / "log"
        words = ["-p", "no:cacheprovider", "-c", str(paths.ROOT / "pyproject.toml")]
        words += ["--confcutdir", str(paths.ROOT / "tests" / "exercises")]
        words += ["-p", "pytest_timeout", "-o", f"faulthandler_timeout={STACK}"]
        words += ["--impl", package, "--outcomes", str(outcomes), *map(str, files)]
        outcomes.touch()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words],
                cwd=paths.ROOT,
                env={**os.environ, **SETTINGS},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = _wait(process, outcomes)
            finally:
                _end(process)
        return Run(code, log.read_text("utf-8", errors="replace"), _parsed(outcomes.read_bytes()))


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


def _parsed(outcomes: bytes) -> list[dict]:
    """The lines of a report; the last one may be torn where the process was ended."""
    found = []
    for line in outcomes.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


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
    module = re.search(r"No module named '?(\w+)", error)
    is_own = module and any((paths.ROOT / name).exists() for name in (module[1], f"{module[1]}.py"))
    advice = install_advice() if module and not is_own else restore(paths.ROOT / "tests")
    return f"the checks cannot be run (pytest stopped): {error}; type: {advice}"
