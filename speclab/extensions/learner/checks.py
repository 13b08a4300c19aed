"""What exercises there are, how their checks are run, what became of them, and what to do next.

A chapter (docs/chapters/), a file with open functions (exercises/), its solution, its checks (tests/exercises/) and
hints (exercises/hints.toml) make an exercise. pytest runs the checks in a process of its own, which is ended with all
it started. pytest-timeout stops code that never ends, and this module ends the process where that cannot. A check
without an outcome has failed. Nothing heavy is imported: check.py answers at once.
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
from speclab.system.files import shown
from speclab.system.terminal import note

SILENCE = 45  # seconds without the end of a check, after which the process is ended
STACK = 30  # seconds after which pytest logs where a check is; pytest-timeout has stopped before what it can stop


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
        n, n_passed = len(self.checks), sum(check.outcome == "passed" for check in self.checks)
        begun = f"{n_passed} of {n}" if n_passed or self.failed else "todo"
        return "done" if n_passed == n > 0 else begun


def exercises() -> list[Exercise]:
    """All chapters that have checks, in order; a learner's own file may be missing."""
    chapters = sorted((files.ROOT / "docs" / "chapters").glob("[0-9][0-9]-*.md"))
    return [exercise for exercise in map(Exercise, chapters) if exercise.test_file.is_file()]


def check_command(*words: str) -> str:
    return shlex.join(["python", shown(files.ROOT / "check.py"), *words])


def run_checks(package: str, chosen: list[Exercise]) -> None:
    """Run the checks of these exercises, in one process for all, and fill in their outcomes. Raises EnvironmentProblem
    where not one check began: then it is not the learner's code that is wrong."""
    note(f"running the checks of {package} {', '.join(str(exercise.number) for exercise in chosen)} ...")
    code, log, outcomes = _pytest(package, [exercise.test_file for exercise in chosen])
    if not outcomes:
        error = [*re.findall(r"^E +(.*)", log, re.MULTILINE), "it says nothing"][0]
        tests, packages = (shown(files.ROOT / name) for name in ("tests", "requirements.txt"))
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
    """Run these test files in a process; whatever it has started is ended with it, also where this process stops.  ->
    exit code, None where it had to be ended; what it printed; the lines that tests/exercises/conftest.py wrote"""
    options = f"-B -m pytest -c pyproject.toml --confcutdir tests/exercises --impl {package} -p no:cacheprovider"
    options += f" -p no:unraisableexception --disable-plugin-autoload -p pytest_timeout -o faulthandler_timeout={STACK}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outcomes, log = Path(folder) / "outcomes", Path(folder) / "log"
        outcomes.touch()
        command = [sys.executable, *options.split(), *map(str, test_files), "--outcomes", str(outcomes)]
        with log.open("wb") as output:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            where: Any = {"cwd": files.ROOT, "env": os.environ | {"PYTEST_ADDOPTS": ""}, "start_new_session": True}
            process = subprocess.Popen(command, **where, **streams)
            code, n_bytes = None, -1
            try:
                while code is None and n_bytes != (n_bytes := outcomes.stat().st_size):  # while checks come to ends
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(SILENCE)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
                    os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()  # Windows
                process.wait()
        lines = outcomes.read_bytes().split(b"\n")[:-1]  # without the last one, which is empty or torn
        return code, log.read_text("utf-8", errors="replace"), list(map(json.loads, lines))


def _why_it_ended(code: int | None, log: str) -> str:
    places = re.findall(r'File ".*?(\w+)[/\\](ex\d\d_\w+\.py)", line (\d+)', log)
    place = " ({}/{}:{})".format(*places[0]) if places else ""
    if code is None:
        return f"still running, and nothing could interrupt it{place}: a loop without an end?"
    how = "MemoryError" if "MemoryError" in log else f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return f"did not run: your code ended Python, with {how}{place}"


def hints(exercise: Exercise) -> dict[str, list[str]]:
    """Function -> three levels, in the order of the exercise; a method goes by its own name."""
    return tomllib.loads((files.ROOT / "exercises" / "hints.toml").read_text("utf-8")).get(exercise.stem[:4], {})


def function_with_hints(exercise: Exercise) -> str | None:
    """Return the function or check whose hints help next: what the first failing check uses, or what is open."""
    names = [name.rpartition(".")[2] for name in exercise.open_functions]
    if exercise.failed:
        names = [*exercise.failed[0].uses, exercise.failed[0].function.removeprefix("test_")]
    return next((name for name in hints(exercise) if name in names), None)


def hint_text(exercise: Exercise, level: int) -> str:
    name, again = function_with_hints(exercise), check_command(str(exercise.number))
    if exercise.status == "done" or name is None:
        return f"no hint is about exercise {exercise.number} as it is; type: {again}"
    texts = enumerate(hints(exercise)[name][:level], start=1)
    lines = [textwrap.fill(text, 100, initial_indent=f"  {n}. ", subsequent_indent="     ") for n, text in texts]
    more = f"--hint {level + 1} says more. " * (level < 3)
    return "\n".join([f"{name}, in {shown(exercise.path('exercises'))}", "", *lines, "", f"{more}next: {again}"])


def summary(chosen: list[Exercise]) -> str:
    width = max(len(exercise.title) for exercise in chosen)
    lines = [f"{'':>4}{'exercise':<{width}}  {'progress':<8}  chapter"]
    for one in chosen:
        failing = f"   {len(one.failed)} failing" * bool(one.failed)
        lines.append(f"{one.number:>2}  {one.title:<{width}}  {one.status:<8}  {shown(one.chapter)}{failing}")
    return "\n".join(lines)


def report(exercise: Exercise) -> str:
    """Return a line for each check of an exercise, and what is wrong, once for each mistake that has a name."""
    lines = [f"Exercise {exercise.number}: {exercise.title}   [{exercise.status}]", ""]
    width, said, indent = max(len(check.name) for check in exercise.checks), set[str](), " " * 9
    for check in exercise.checks:
        what = check.message.rpartition("this mistake: ")[2]
        is_new = check.outcome == "failed" and what not in said
        remark = "" if is_new else "see above" if check.outcome == "failed" else check.message
        mark = {"passed": "ok", "failed": "FAILS"}.get(check.outcome, check.outcome)
        lines.append(f"  {mark:>5}  {check.name:<{width}}  {remark}".rstrip())
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
    number, path = str(exercise.number), shown(exercise.path(package))
    if exercise.failed:
        about, flag = ("a hint", ["--hint"]) if len(chosen) == 1 else ("what is wrong", [])
        return f"next, for {about}: {check_command(number, *flag)}"
    task = f"write {exercise.open_functions[0]} in" if exercise.open_functions else "work on"
    return f"next: read {shown(exercise.chapter)}, {task} {path}, then type: {check_command(number)}"
