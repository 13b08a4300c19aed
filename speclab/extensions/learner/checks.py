"""What exercises there are, how their checks are run, what became of them, and what to do next.

A chapter (docs/chapters/), a file with open functions (exercises/), its solution, its checks (tests/exercises/) and
hints (exercises/hints.toml) make an exercise. Imports nothing heavy: check.py answers at once.

The checks are run by pytest in a process of its own, which is ended with all it started. Whatever a learner's code
does, it does it in that process. pytest-timeout stops code that never ends, and this module ends the process where that
cannot: a long call into C, or code that catches whatever is raised in it. A check without an outcome has failed, and
the reason is read from the process's end.
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
from typing import NamedTuple

from exercises.guard import has_alarm
from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import install_advice, shown
from speclab.system.terminal import note

MARKS = {"passed": "ok", "todo": "todo", "failed": "FAILS"}
SILENCE = 45  # seconds without the end of a check, after which the process is ended
STACK = 30  # seconds after which pytest logs where a check is; pytest-timeout has stopped before what it can stop
WORST_FIRST = ("none", "failed", "todo", "passed")
# Only the lab's own settings: no plugins and no options of whoever runs this.
SETTINGS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Check:
    """One check of an exercise, all its cases together. tests/exercises/conftest.py writes the fields as JSON."""

    function: str  # its name in the test file
    uses: list[str]  # the learner's functions that it calls
    outcome: str  # passed, todo or failed
    message: str = ""
    traceback: str = ""
    printed: list[str] = field(default_factory=list)  # the last lines that the learner's code printed
    reach: list[str] = field(default_factory=list)  # what it uses, and what that calls in turn in the learner's file
    is_whole: bool = False  # it tries everything together, after the checks of single ideas

    @property
    def name(self) -> str:
        """The check in words: what it looks at."""
        return re.sub(r"\bthe targets\b", "the target's", self.function.removeprefix("test_").replace("_", " "))

    def follows_from(self, other: "Check") -> bool:
        """Where both fail: does this one fail because of the functions that the other one, before it, has looked at?

        It does where it uses these and further ones, and where it tries the same ones all together.
        """
        mine, its = set(self.reach), set(other.reach)
        return bool(its) and its <= mine and (self.is_whole or (its < mine and not other.is_whole))


@dataclass
class Exercise:
    """An exercise and, once they have run, its checks."""

    chapter: Path  # docs/chapters/03-rollback.md
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self):
        self.number = int(self.chapter.stem[:2])
        self.title = self.chapter.read_text("utf-8").partition("\n")[0].partition(". ")[2]
        self.stem = f"ex{self.chapter.stem.replace('-', '_')}"
        self.test_file = paths.ROOT / "tests" / "exercises" / f"test_{self.stem}.py"

    def path(self, package: str) -> Path:
        """Its file in exercises/ or solutions/."""
        return paths.ROOT / package / f"{self.stem}.py"

    @property
    def failed(self) -> list[Check]:
        """The checks that have failed."""
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
    if not paths.IS_CLONE:
        raise EnvironmentProblem("the exercises belong to a clone of the lab; clone it and type the command there")
    chapters, tests = paths.ROOT / "docs" / "chapters", paths.ROOT / "tests" / "exercises"
    found = [Exercise(path) for path in sorted(chapters.glob("*.md")) if re.fullmatch(r"\d\d-[\w-]+", path.stem)]
    if not found or not tests.is_dir():
        gone = tests if found else chapters
        raise EnvironmentProblem(f"there is no exercise in {shown(gone)}; type: {restore(gone)}")
    return [one for one in found if one.test_file.is_file()]


def restore(path: Path) -> str:
    """What to type to get a file or a folder of the lab back."""
    return shlex.join(["git", "checkout", "--", shown(path)])


def check_command(*words: str) -> str:
    """How to type check.py."""
    return shlex.join(["python", shown(paths.ROOT / "check.py"), *words])


# --- running ----------------------------------------------------------------------------------------------------------


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


# --- what is said -----------------------------------------------------------------------------------------------------


def hints(exercise: Exercise) -> dict[str, list[str]]:
    """Function -> three levels, in the order of the exercise; a method goes by its own name."""
    path = paths.ROOT / "exercises" / "hints.toml"
    try:
        return tomllib.loads(path.read_text("utf-8")).get(exercise.stem[:4], {})
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{shown(path)} is no list of hints: {error}; type: {restore(path)}") from None


def function_with_hints(exercise: Exercise) -> str | None:
    """The function, or the check, whose hints help next: what the first failing check uses, or what is still open.
    None where no hint is about what is unfinished."""
    known, first = hints(exercise), next(iter(exercise.failed), None)
    if first is None:
        names = [name.rpartition(".")[2] for name in exercise.open_functions]
        return next((name for name in known if name in names), next(iter(known), None))
    if any("cannot be imported" in check.message for check in exercise.failed):
        return None
    return next((name for name in known if name in [*first.uses, first.function.removeprefix("test_")]), None)


def hint_text(exercise: Exercise, level: int) -> str:
    """The first unfinished function's hints up to this level."""
    if exercise.status == "done":
        return f"exercise {exercise.number} is done: there is nothing to hint at"
    again, name = check_command(str(exercise.number)), function_with_hints(exercise)
    if name is None:
        return f"no hint is about what is wrong here; type: {again}"
    lines = [f"{name}, in {shown(exercise.path('exercises'))}", ""]
    for n, text in enumerate(hints(exercise)[name][:level], start=1):
        lines.append(textwrap.fill(text, 100, initial_indent=f"  {n}. ", subsequent_indent="     "))
    more = f"--hint {level + 1} says more. " if level < 3 else ""
    return "\n".join([*lines, "", f"{more}next: {again}"])


def summary(chosen: list[Exercise]) -> str:
    """A line for each exercise."""
    width = max(len(exercise.title) for exercise in chosen)
    lines = [f"{'':>4}{'exercise':<{width}}  {'progress':<8}  chapter"]
    for exercise in chosen:
        line = f"{exercise.number:>2}  {exercise.title:<{width}}  {exercise.status:<8}  {shown(exercise.chapter)}"
        lines.append(line + (f"   {len(exercise.failed)} failing" if exercise.failed else ""))
    return "\n".join(lines)


def report(exercise: Exercise, traceback: bool = False) -> str:
    """A line for each check of an exercise, and what is wrong: once for each cause."""
    lines = [f"Exercise {exercise.number}: {exercise.title}   [{exercise.status}]", ""]
    width = max(len(check.name) for check in exercise.checks)
    indent = " " * 9
    causes: list[Check] = []
    for check in exercise.checks:
        remark, is_cause = check.message, check.outcome == "failed"
        if is_cause:
            same = any(check.message == cause.message for cause in causes)
            remark = "the same as above" if same else ""
            if not same and any(check.follows_from(cause) for cause in causes):
                remark = "follows from the above"
        lines.append(f"  {MARKS[check.outcome]:>5}  {check.name:<{width}}  {remark}".rstrip())
        if is_cause and not remark:
            lines.append(textwrap.fill(check.message, 110, initial_indent=indent, subsequent_indent=indent))
            if not causes:  # only for the first: a print in a loop would bury the others
                lines += [indent + line for line in check.printed]
            causes.append(check)
        if traceback and check.traceback:
            lines.append(textwrap.indent(check.traceback, indent))
    return "\n".join(lines)


def next_step(chosen: list[Exercise], package: str) -> str:
    """One line: what to type next, for the first exercise that is not done."""
    exercise = next((exercise for exercise in chosen if exercise.status != "done"), None)
    if exercise is None and len(chosen) > 1:
        return "all exercises are done"
    if exercise is None:
        following = next((other for other in exercises() if other.number > chosen[0].number), None)
        read = f"read {shown(following.chapter)}, or " if following else ""
        return f"next: {read}see where you are: {check_command()}"
    number, path = str(exercise.number), exercise.path(package)
    if not exercise.failed:
        task = f"write {exercise.open_functions[0]} in" if exercise.open_functions else "work on"
        return f"next: read {shown(exercise.chapter)}, {task} {shown(path)}, then type: {check_command(number)}"
    if package == "solutions":
        return f"next, for all that pytest says: {check_command(number, '--impl', 'solutions', '--traceback')}"
    if len(chosen) > 1:
        return f"next, for what is wrong: {check_command(number)}"
    if not path.is_file():
        return f"next, to get the file back: {restore(path)}, or unpack the lab's archive once more and copy from it"
    if function_with_hints(exercise):
        return f"next, for a hint: {check_command(number, '--hint')}"
    return f"next, for another look when you have changed it: {check_command(number)}"
