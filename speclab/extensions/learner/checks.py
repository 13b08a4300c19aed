"""What exercises there are, how their checks are run, what became of them, and what to do next.

A chapter (docs/chapters/), a file with open functions (exercises/), its solution, its checks (tests/exercises/) and
hints (exercises/hints.toml) make an exercise. Imports nothing heavy: check.py answers at once.

The checks are run by pytest in a process of its own, which is ended with all it started. pytest-timeout stops code that
never ends, and this module ends the process where that cannot. A check without an outcome has failed.
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
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from speclab.system import files
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

MARKS = {"passed": "ok", "todo": "todo", "failed": "FAILS"}
SILENCE = 45  # seconds without the end of a check, after which the process is ended
STACK = 30  # seconds after which pytest logs where a check is; pytest-timeout has stopped before what it can stop
# Only the lab's own settings: no plugins and no options of whoever runs this.
SETTINGS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Check:
    """One check of an exercise. tests/exercises/conftest.py writes the fields as JSON."""

    function: str  # its name in the test file
    uses: list[str]  # the learner's functions that it is about
    outcome: str  # passed, todo or failed
    message: str = ""
    printed: list[str] = field(default_factory=list)  # the last lines that the learner's code printed

    @property
    def name(self) -> str:
        return re.sub(r"\bthe targets\b", "the target's", self.function.removeprefix("test_").replace("_", " "))


@dataclass
class Exercise:
    """An exercise and, once they have run, its checks."""

    chapter: Path  # docs/chapters/03-rollback.md
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self):
        self.number = int(self.chapter.stem[:2])
        self.title = self.chapter.read_text("utf-8").partition("\n")[0].partition(". ")[2]
        self.stem = f"ex{self.chapter.stem.replace('-', '_')}"
        self.test_file = files.ROOT / "tests" / "exercises" / f"test_{self.stem}.py"

    def path(self, package: str) -> Path:
        return files.ROOT / package / f"{self.stem}.py"

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "failed"]

    @property
    def open_functions(self) -> list[str]:
        """The functions that still raise Todo, in the order of the checks; of a method, `Class.method`."""
        names = [check.message.rpartition(": ")[2] for check in self.checks if check.outcome == "todo"]
        return [name for name in dict.fromkeys(names) if name.replace(".", "").isidentifier()]

    @property
    def status(self) -> str:
        """todo: nothing begun. done: every check passes. Else how many of them pass."""
        n_passed = sum(check.outcome == "passed" for check in self.checks)
        if n_passed == len(self.checks) > 0:
            return "done"
        return f"{n_passed} of {len(self.checks)}" if n_passed or self.failed else "todo"


def exercises() -> list[Exercise]:
    """All chapters that have checks, in order; a learner's own file may be missing."""
    if not files.IS_CLONE:
        raise EnvironmentProblem("the exercises belong to a clone of the lab; clone it and type the command there")
    chapters = sorted((files.ROOT / "docs" / "chapters").glob("*.md"))
    found = [Exercise(path) for path in chapters if re.fullmatch(r"\d\d-[\w-]+", path.stem)]
    return [one for one in found if one.test_file.is_file()]


def check_command(*words: str) -> str:
    return shlex.join(["python", files.shown(files.ROOT / "check.py"), *words])


# --- running ----------------------------------------------------------------------------------------------------------


def run_checks(package: str, chosen: list[Exercise]) -> None:
    """Run the checks of these exercises, in one process for all, and fill in their outcomes.

    Raises EnvironmentProblem where not one check began: then it is not the learner's code that is wrong.
    """
    # At once: pytest, and the torch of some exercises, take seconds to load.
    note(f"running the checks of {package} {', '.join(str(exercise.number) for exercise in chosen)} ...")
    code, log, outcomes = _pytest(package, [exercise.test_file for exercise in chosen])
    if not outcomes:
        error = [*re.findall(r"^E +(.*)", log, re.MULTILINE), "it says nothing"][0]
        tests, packages = (files.shown(files.ROOT / name) for name in ("tests", "requirements.txt"))
        raise EnvironmentProblem(
            f"the checks cannot be run (pytest stopped): {error}; type: git checkout -- {tests}, "
            f"or, where a package is missing: pip install -r {packages}"
        )
    for exercise in chosen:
        own = [Check(**line["check"]) for line in outcomes if line["file"] == exercise.test_file.name]
        exercise.checks = [*{check.function: check for check in own}.values()]  # the last line of each
        for check in exercise.checks:
            if check.outcome == "none":
                check.outcome, check.message = "failed", _why_it_ended(code, log)


def _pytest(package: str, test_files: list[Path]) -> tuple[int | None, str, list[dict]]:
    """Run these test files in a process; whatever it has started is ended with it, also where this process stops.

    -> exit code, None where it had to be ended; what it printed; the lines that tests/exercises/conftest.py wrote
    """
    words = ["-p", "no:cacheprovider", "-c", "pyproject.toml", "--confcutdir", "tests/exercises", "--impl", package]
    words += ["-p", "pytest_timeout", "-o", f"faulthandler_timeout={STACK}", *map(str, test_files), "--outcomes"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes, log = Path(folder) / "outcomes", Path(folder) / "log"
        outcomes.touch()
        with log.open("wb") as output:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            command, env = [sys.executable, "-m", "pytest", *words, str(outcomes)], {**os.environ, **SETTINGS}
            process = subprocess.Popen(command, cwd=files.ROOT, env=env, start_new_session=True, **streams)
            code, n_bytes = None, -1
            try:
                while code is None and n_bytes != (n_bytes := outcomes.stat().st_size):  # while checks come to ends
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(SILENCE)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found = []
        for line in outcomes.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # the last one may be torn where the process was ended
                found.append(json.loads(line))
        return code, log.read_text("utf-8", errors="replace"), found


def _why_it_ended(code: int | None, log: str) -> str:
    places = re.findall(r'File ".*?(\w+)[/\\](ex\d\d_\w+\.py)", line (\d+)', log)
    place = " ({}/{}:{})".format(*places[0]) if places else ""
    if code is None:
        return f"still running, and nothing could interrupt it{place}: a loop without an end?"
    names = {-number: number.name for number in signal.Signals}
    how = "MemoryError" if "MemoryError" in log else names.get(code, f"exit code {code}")
    return f"did not run: your code ended Python, with {how}{place}"


# --- what is said -----------------------------------------------------------------------------------------------------


def hints(exercise: Exercise) -> dict[str, list[str]]:
    """Function -> three levels, in the order of the exercise; a method goes by its own name."""
    return tomllib.loads((files.ROOT / "exercises" / "hints.toml").read_text("utf-8")).get(exercise.stem[:4], {})


def function_with_hints(exercise: Exercise) -> str | None:
    """Return the function or check whose hints help next: what the first failing check uses, or what is open."""
    names = [name.rpartition(".")[2] for name in exercise.open_functions]
    if exercise.failed:
        first = exercise.failed[0]
        names = [*first.uses, first.function.removeprefix("test_")]
    return next((name for name in hints(exercise) if name in names), None)


def hint_text(exercise: Exercise, level: int) -> str:
    name = function_with_hints(exercise)
    if exercise.status == "done" or name is None:
        return f"no hint is about exercise {exercise.number} as it is; type: {check_command(str(exercise.number))}"
    texts = enumerate(hints(exercise)[name][:level], start=1)
    lines = [textwrap.fill(text, 100, initial_indent=f"  {n}. ", subsequent_indent="     ") for n, text in texts]
    more = f"--hint {level + 1} says more. " if level < 3 else ""
    next_line = f"{more}next: {check_command(str(exercise.number))}"
    return "\n".join([f"{name}, in {files.shown(exercise.path('exercises'))}", "", *lines, "", next_line])


def summary(chosen: list[Exercise]) -> str:
    width = max(len(exercise.title) for exercise in chosen)
    lines = [f"{'':>4}{'exercise':<{width}}  {'progress':<8}  chapter"]
    for exercise in chosen:
        line = f"{exercise.number:>2}  {exercise.title:<{width}}  {exercise.status:<8}  {files.shown(exercise.chapter)}"
        lines.append(line + (f"   {len(exercise.failed)} failing" if exercise.failed else ""))
    return "\n".join(lines)


def report(exercise: Exercise) -> str:
    """Return a line for each check of an exercise, and what is wrong, once for each mistake that has a name."""
    lines = [f"Exercise {exercise.number}: {exercise.title}   [{exercise.status}]", ""]
    width, said, indent = max(len(check.name) for check in exercise.checks), set[str](), " " * 9
    for check in exercise.checks:
        what = check.message.rpartition("this mistake: ")[2]
        is_new = check.outcome == "failed" and what not in said
        remark = "" if is_new else "see above" if check.outcome == "failed" else check.message
        lines.append(f"  {MARKS[check.outcome]:>5}  {check.name:<{width}}  {remark}".rstrip())
        if is_new:
            lines.append(textwrap.fill(check.message, 110, initial_indent=indent, subsequent_indent=indent))
            if not said:  # only for the first: a print in a loop would bury the others
                lines += [indent + line for line in check.printed]
            said.add(what)
    return "\n".join(lines)


def next_step(chosen: list[Exercise], package: str) -> str:
    exercise = next((exercise for exercise in chosen if exercise.status != "done"), None)
    if exercise is None:
        return f"all done; to see where you are, type: {check_command()}"
    number, path = str(exercise.number), files.shown(exercise.path(package))
    if exercise.failed:
        about, flag = ("a hint", ["--hint"]) if len(chosen) == 1 else ("what is wrong", [])
        return f"next, for {about}: {check_command(number, *flag)}"
    task = f"write {exercise.open_functions[0]} in" if exercise.open_functions else "work on"
    return f"next: read {files.shown(exercise.chapter)}, {task} {path}, then type: {check_command(number)}"
