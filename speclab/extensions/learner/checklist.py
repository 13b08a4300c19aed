"""What exercises there are, what became of their checks, and what to do next.

A chapter (docs/chapters/), a file with open functions (exercises/), its solution, its checks (tests/exercises/) and
hints (exercises/hints.toml) make an exercise. Everything here gives values or text and prints nothing. Imports nothing
heavy: check.py answers at once.
"""

import re
import shlex
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import shown

MARKS = {"passed": "ok", "todo": "todo", "failed": "FAILS"}


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
        if not other.reach or (other.is_whole and not self.is_whole):
            return False
        mine, its = set(self.reach), set(other.reach)
        return its < mine or (its == mine and self.is_whole)


@dataclass
class Exercise:
    """An exercise and, once they have run, its checks."""

    chapter: Path  # docs/chapters/03-rollback.md
    checks: list[Check] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The chapter's."""
        return int(self.chapter.stem[:2])

    @property
    def stem(self) -> str:
        """Of its files: ex03_rollback."""
        return f"ex{self.chapter.stem.replace('-', '_')}"

    @property
    def title(self) -> str:
        """The chapter's."""
        return self.chapter.read_text("utf-8").partition("\n")[0].partition(". ")[2]

    def path(self, package: str) -> Path:
        """Its file in exercises/ or solutions/."""
        return paths.ROOT / package / f"{self.stem}.py"

    @property
    def test_file(self) -> Path:
        """Its checks."""
        return paths.ROOT / "tests" / "exercises" / f"test_{self.stem}.py"

    def with_outcome(self, outcome: str) -> list[Check]:
        """The checks that have passed, failed, ..."""
        return [check for check in self.checks if check.outcome == outcome]

    @property
    def failed(self) -> list[Check]:
        """The checks that have failed."""
        return self.with_outcome("failed")

    @property
    def open_functions(self) -> list[str]:
        """The functions that still raise Todo, in the order of the checks; of a method, `Class.method`."""
        names = [check.message.rpartition(": ")[2] for check in self.with_outcome("todo")]
        return [name for name in dict.fromkeys(names) if name.replace(".", "").isidentifier()]

    @property
    def status(self) -> str:
        """todo: nothing begun. done: every check passes. Else how many of them pass."""
        n_passed = len(self.with_outcome("passed"))
        if n_passed == len(self.checks) > 0:
            return "done"
        return f"{n_passed} of {len(self.checks)}" if n_passed or self.failed else "todo"


def exercises() -> list[Exercise]:
    """All that have a chapter, in order; a learner's own file may be missing."""
    if not paths.IS_CLONE:
        raise EnvironmentProblem("the exercises belong to a clone of the lab; clone it and type the command there")
    folder = paths.ROOT / "docs" / "chapters"
    chapters = sorted(path for path in folder.glob("*.md") if re.fullmatch(r"\d\d-[\w-]+", path.stem))
    if not chapters:
        raise EnvironmentProblem(f"there is no chapter in {shown(folder)}; type: {restore(folder)}")
    return [Exercise(chapter) for chapter in chapters]


def restore(path: Path) -> str:
    """What to type to get a file or a folder of the lab back."""
    return shlex.join(["git", "checkout", "--", shown(path)])


def check_command(*words: str) -> str:
    """How to type check.py."""
    return shlex.join(["python", shown(paths.ROOT / "check.py"), *words])


# --- hints ------------------------------------------------------------------------------------------------------------


def hints(exercise: Exercise) -> dict[str, list[str]]:
    """Function -> three levels, in the order of the exercise; a method goes by its own name."""
    path = paths.ROOT / "exercises" / "hints.toml"
    try:
        return tomllib.loads(path.read_text("utf-8")).get(exercise.stem[:4], {})
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{shown(path)} is no list of hints: {error}; type: {restore(path)}") from None


def function_with_hints(exercise: Exercise) -> str | None:
    """The function, or the check, whose hints help next; None where no hint is about what is unfinished.

    What the first failing check uses is the likeliest place to look first.
    """
    known = hints(exercise)
    if not exercise.failed:
        names = [name.rpartition(".")[2] for name in exercise.open_functions]
        return next((name for name in known if name in names), next(iter(known), None))
    if any("cannot be imported" in check.message for check in exercise.failed):
        return None
    check = exercise.failed[0]
    return next((name for name in known if name in [*check.uses, check.function.removeprefix("test_")]), None)


def hint_text(exercise: Exercise, level: int) -> str:
    """The first unfinished function's hints up to this level."""
    if exercise.status == "done":
        return f"exercise {exercise.number} is done: there is nothing to hint at"
    again = check_command(str(exercise.number))
    name = function_with_hints(exercise)
    if name is None:
        return f"no hint is about what is wrong here; type: {again}"
    levels = hints(exercise)[name]
    lines = [f"{name}, in {shown(exercise.path('exercises'))}", ""]
    for n, text in enumerate(levels[:level], start=1):
        lines.append(textwrap.fill(text, 100, initial_indent=f"  {n}. ", subsequent_indent="     "))
    more = f"--hint {level + 1} says more. " if level < len(levels) else ""
    return "\n".join([*lines, "", f"{more}next: {again}"])


# --- results ----------------------------------------------------------------------------------------------------------


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
        remark = check.message
        if check.outcome == "failed":
            remark = ""
            if any(check.message == cause.message for cause in causes):
                remark = "the same as above"
            elif any(check.follows_from(cause) for cause in causes):
                remark = "follows from the above"
        lines.append(f"  {MARKS[check.outcome]:>5}  {check.name:<{width}}  {remark}".rstrip())
        if check.outcome == "failed" and not remark:
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
    if exercise is None:
        return _after(chosen[0]) if len(chosen) == 1 else "all exercises are done"
    number, path = str(exercise.number), exercise.path(package)
    if not exercise.failed:
        names = exercise.open_functions
        task = f"write {names[0]} in {shown(path)}" if names else f"work on {shown(path)}"
        return f"next: read {shown(exercise.chapter)}, {task}, then type: {check_command(number)}"
    if package == "solutions":
        return f"next, for all that pytest says: {check_command(number, '--impl', 'solutions', '--traceback')}"
    if len(chosen) > 1:
        return f"next, for what is wrong: {check_command(number)}"
    if not path.is_file():
        return f"next, to get the file back: {restore(path)}, or unpack the lab's archive once more and copy from it"
    if function_with_hints(exercise):
        return f"next, for a hint: {check_command(number, '--hint')}"
    return f"next, for another look when you have changed it: {check_command(number)}"


def _after(exercise: Exercise) -> str:
    """What comes after an exercise that is done."""
    following = next((other for other in exercises() if other.number > exercise.number), None)
    read = f"read {shown(following.chapter)}, or " if following else ""
    return f"next: {read}see where you are: {check_command()}"
