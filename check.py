#!/usr/bin/env python3
"""How far are you with the exercises, and what is wrong? Start with docs/chapters/README.md.

What comes out: a line per exercise, or per check of one exercise, and at the end the next thing to type.

    python check.py                    # all exercises: todo, 2 of 4, or done
    python check.py 3                  # the checks of exercise 3, one line each
    python check.py 3 --traceback      # with pytest's own report of every failure
    python check.py 3 --hint           # a nudge for the first unfinished function; --hint 2 and 3 say more
    python check.py --impl solutions   # the same for the solutions

Underneath it is pytest (tests/exercises/), in a process of its own, which is ended together with all that your code has
started. Exit code 0 when nothing is wrong: a hole still open is not wrong. Exit code 1 when a check fails.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the imports below is one line

import ast
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
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from speclab.cli import parsing
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems

ROOT = Path(__file__).resolve().parent
CHECKS = ROOT / "tests" / "exercises"
NEEDED = ("pytest", "torch", "transformers")
SILENCE = 75  # seconds without a word after which a run is ended; the code's own alarms ring before (unfinished.py)
LOG_BYTES = 1 << 16  # of what pytest says, its end
SOURCE_BYTES = 1 << 20  # of an exercise's file: nobody writes more by hand
MARKS = {"passed": "ok", "todo": "todo", "failed": "FAILS", "skipped": "skip"}
WORST = ("failed", "todo", "skipped", "passed")


@dataclass
class Check:
    """One check of an exercise, all its cases together."""

    function: str  # its name in the test file
    outcome: str  # passed, todo, failed or skipped
    message: str = ""
    traceback: str = ""
    printed: list[str] = field(default_factory=list)  # by the learner's code, the last lines before the failure
    n_printed: int = 0  # lines in all

    @property
    def name(self) -> str:
        return self.function.removeprefix("test_").replace("_", " ")


@dataclass
class Exercise:
    number: int
    stem: str  # ex03_rollback
    checks: list[Check] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The chapter's."""
        return text_of_the_lab(self.chapter).partition("\n")[0].partition(". ")[2]

    def path(self, impl: str) -> Path:
        return ROOT / impl / f"{self.stem}.py"

    @property
    def test_file(self) -> Path:
        return CHECKS / f"test_{self.stem}.py"

    @property
    def chapter(self) -> Path:
        return chapters() / f"{self.number:02}-{self.stem.partition('_')[2].replace('_', '-')}.md"

    def of(self, outcome: str) -> list[Check]:
        return [check for check in self.checks if check.outcome == outcome]

    @property
    def status(self) -> str:
        """todo: nothing begun. done: every check passes. Else how many of them pass."""
        counted = [check for check in self.checks if check.outcome != "skipped"]
        if len(self.of("passed")) == len(counted) > 0:
            return "done"
        if not self.of("passed") and not self.of("failed"):
            return "todo"
        return f"{len(self.of('passed'))} of {len(counted)}"


def chapters() -> Path:
    return ROOT / "docs" / "chapters"


def exercises() -> list[Exercise]:
    """All that have a chapter, in order; a learner's own file may be missing."""
    found = (re.fullmatch(r"(\d\d)-([\w-]+)", path.stem) for path in chapters().glob("*.md"))
    known = [Exercise(int(m[1]), f"ex{m[1]}_{m[2].replace('-', '_')}") for m in found if m]
    if not known:
        raise EnvironmentProblem(f"there is no chapter in {parsing.shown(chapters())}; type: {restored(chapters())}")
    return sorted(known, key=lambda exercise: exercise.number)


def text_of_the_lab(path: Path) -> str:
    """A file that belongs to the lab and not to the learner."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{parsing.shown(path)} cannot be read: {error}; type: {restored(path)}") from None


def restored(path: Path) -> str:
    """What to type to get a file or a folder of the lab back."""
    return shlex.join(["git", "checkout", "--", parsing.shown(path)])


def installed() -> str:
    """What to type where a package is missing: the same words to the lab's own Python, or pip's."""
    own = ROOT / ".venv" / "bin" / "python"
    if own.exists() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        return shlex.join([parsing.shown(own), *sys.argv])
    return shlex.join(["pip", "install", "-r", parsing.shown(ROOT / "requirements.txt")])


# --- running the checks -----------------------------------------------------------------------------------------------


def run_checks(impl: str, chosen: list[Exercise]) -> None:
    """Run the checks of these exercises and fill in their outcomes.

    Whatever the learner's code does, it does it in another process. One process for all is quick, but there one
    exercise can spoil the next one, so what fails after another exercise is run once more without it.
    Raises EnvironmentProblem if a package is missing or if a test file itself cannot be run.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"the checks need {' and '.join(missing)}, which this Python lacks; type: {installed()}"
        )
    for exercise in chosen:
        if why := unreadable(exercise.path(impl)):
            exercise.checks = [Check(name, "failed", why) for name in used_functions(exercise)]
    ready = [exercise for exercise in chosen if not exercise.checks]
    with caught_signals() as caught:
        _run(impl, ready, caught)
        for exercise in ready[1:]:
            if exercise.of("failed"):
                _run(impl, [exercise], caught)


def unreadable(path: Path) -> str:
    """Why a learner's file cannot be imported at all, and what to type; nothing where it can be read."""
    try:
        what = "it is missing" if not path.exists() else "it is no file" if not path.is_file() else ""
        if not what:
            with path.open("rb") as file:
                file.read(1)
            what = f"it is larger than {SOURCE_BYTES >> 20} MB" * (path.stat().st_size > SOURCE_BYTES)
    except OSError as error:
        what = str(error.strerror)
    again = f"{restored(path)}, or unpack the lab's archive once more and copy from it"
    return f"{parsing.shown(path)} cannot be imported: {what}; type: {again}" if what else ""


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """The signals that ask this process to end, as they come; at the end of the block they are obeyed."""
    caught: list[int] = []
    asking = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in asking}
    handled = [number for number in asking if before[number] not in (signal.SIG_IGN, None)]  # nohup ignores SIGHUP
    for number in handled:
        signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        for number in handled:
            signal.signal(number, before[number])
    if caught:
        raise KeyboardInterrupt if caught[0] == signal.SIGINT else SystemExit(128 + caught[0])


def _run(impl: str, chosen: list[Exercise], caught: list[int]) -> None:
    """One process for the checks of these exercises; a check that has no outcome has failed."""
    if not chosen or caught:
        return
    numbers = ", ".join(str(exercise.number) for exercise in chosen)
    # At once: pytest, and the torch of some exercises, take seconds to load.
    print(f"running the checks of {impl} {numbers} ...", file=sys.stderr, flush=True)
    code, said, lines = _pytest(impl, [str(exercise.test_file) for exercise in chosen], caught)
    if caught:
        return
    if not lines:
        raise EnvironmentProblem(_why_nothing_ran(said))
    for exercise in chosen:
        exercise.checks = _by_check([line for line in lines if line["file"] == exercise.test_file.name])
        ended = [check.function for check in exercise.checks]
        why = _why_it_ended(code, said)
        exercise.checks += [Check(name, "failed", why) for name in used_functions(exercise) if name not in ended]


def _pytest(impl: str, files: list[str], caught: list[int]) -> tuple[int | None, str, list[dict]]:
    """-> exit code (None: it had to be ended), the end of what pytest said, the lines of tests/exercises/conftest.py"""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report, log = Path(folder) / "outcomes", Path(folder) / "log"
        words = ["--impl", impl, "--outcomes", str(report), "--confcutdir", str(CHECKS)]
        # Python writes where a crash, or a call that nothing can interrupt, was.
        words += ["-c", str(ROOT / "pyproject.toml"), "-o", f"faulthandler_timeout={SILENCE / 2}"]
        # Only the lab's own settings: no plugins and no options of whoever runs this.
        settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        with report.open("w+b") as outcomes, log.open("w+b") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *files],
                cwd=ROOT,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code = _watched(process, outcomes, caught)
            finally:
                _end(process)
            output.seek(max(0, os.fstat(output.fileno()).st_size - LOG_BYTES))
            outcomes.seek(0)
            return code, output.read().decode(errors="replace"), list(_parsed(outcomes))


def _watched(process: subprocess.Popen, outcomes: BinaryIO, caught: list[int]) -> int | None:
    """Wait for the process to end.  -> its exit code; None when it was silent for too long, or a signal has come"""
    size, since = 0, time.monotonic()
    while not caught:
        if (code := process.poll()) is not None:
            return code
        now, length = time.monotonic(), os.fstat(outcomes.fileno()).st_size
        if length != size:
            size, since = length, now
        if now - since > (SILENCE if size else 10 * SILENCE):  # before the first word pytest and torch are loaded
            return None
        time.sleep(0.02)
    return None


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


def _why_it_ended(code: int | None, said: str) -> str:
    """Why there are checks without an outcome, in the learner's words."""
    stack = re.split(r"Fatal Python error|Timeout \(", said)
    lines = re.findall(r'File ".*?(\w+)[/\\](ex\d\d_\w+\.py)", line (\d+)', stack[-1]) if len(stack) > 1 else []
    place = " ({}/{}:{})".format(*lines[0]) if lines else ""
    if code is None:
        return f"still running after {SILENCE:g} s, and nothing could interrupt it{place}: a loop without an end?"
    how = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    return f"did not run: your code ended Python, with {how}{place}"


def _why_nothing_ran(said: str) -> str:
    """Not one check began, so it is not the learner's code that is wrong."""
    lines = [line for line in said.splitlines() if line.strip()] or ["pytest said nothing"]
    errors = [line for line in lines if line.startswith("E  ")] or lines
    error = errors[-1].removeprefix("E  ").strip()[:300]
    named = [found[1] for line in lines if (found := re.match(r"_* ?ERROR collecting (\S+)", line))]
    module = re.search(r"No module named '(\w+)", error)
    foreign = module and not (ROOT / module[1]).exists() and not (ROOT / f"{module[1]}.py").exists()
    advice = installed() if foreign else restored(ROOT / "tests")
    return f"the checks cannot be run ({', '.join(named) or 'pytest stopped'}): {error}; type: {advice}"


def _by_check(lines: list[dict]) -> list[Check]:
    """A check with several cases is as good as its worst one; one with a case that never ended has no outcome."""
    ended = [line for line in lines if line["outcome"] != "started"]
    torn = {line["check"] for line in lines if line["case"] not in {other["case"] for other in ended}}
    checks: dict[str, Check] = {}
    for line in ended:
        about = (line["message"], line["traceback"], line["printed"], line["n_printed"])
        check = Check(line["check"], line["outcome"], *about)
        before = checks.get(check.function)
        if before is None or WORST.index(check.outcome) < WORST.index(before.outcome):
            checks[check.function] = check
    return [check for check in checks.values() if check.function not in torn]


# --- what to do next --------------------------------------------------------------------------------------------------


def open_holes(path: Path) -> list[str]:
    """The functions of a file that still raise Todo, in order; of a method, `Class.method`."""
    if unreadable(path):
        return []
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: thousands of brackets
        return []
    found = []
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in inside:
            if isinstance(function, ast.FunctionDef) and isinstance(function.body[-1], ast.Raise):
                raised = function.body[-1].exc
                if isinstance(raised, ast.Call) and getattr(raised.func, "id", "") == "Todo":
                    found.append(prefix + function.name)
    return found


def used_functions(exercise: Exercise) -> dict[str, set[str]]:
    """Checks in order -> the learner's functions that each of them calls."""
    try:
        tree = ast.parse(text_of_the_lab(exercise.test_file))
    except SyntaxError as error:
        where = parsing.shown(exercise.test_file)
        raise EnvironmentProblem(f"{where} is no Python: {error}; type: {restored(exercise.test_file)}") from None
    return {
        node.name: {a.attr for a in ast.walk(node) if isinstance(a, ast.Attribute) and ast.unparse(a.value) == "mine"}
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and "mine" in [argument.arg for argument in node.args.args]
    }


def suspects(exercise: Exercise) -> list[str]:
    """The functions that failing checks look at and no passing check does: the likeliest places to look first.

    An exercise without holes has a hint for each check, so the check's own name is among them.
    """
    used = used_functions(exercise)
    fine = set().union(*(used[check.function] for check in exercise.of("passed")))
    failing = set().union(*(used[check.function] for check in exercise.of("failed")))
    names = [check.function.removeprefix("test_") for check in exercise.of("failed")]
    return sorted(failing - fine or failing) + names


def hints() -> dict[str, dict[str, list[str]]]:
    """ex02 -> hole -> three levels; a method goes by its own name."""
    path = ROOT / "exercises" / "hints.toml"
    try:
        return {
            exercise: {hole: [str(level) for level in entry["levels"]] for hole, entry in holes.items()}
            for exercise, holes in tomllib.loads(text_of_the_lab(path)).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise EnvironmentProblem(f"{parsing.shown(path)} is no list of hints: {why}; type: {restored(path)}") from None


def hinted(exercise: Exercise) -> str | None:
    """The function whose hints help next: the first unfinished one. None where no hint is about what is unfinished."""
    failing = exercise.of("failed")
    if exercise.status == "done" or any("cannot be imported" in check.message for check in failing):
        return None
    candidates = suspects(exercise) if failing else open_holes(exercise.path("exercises"))
    named = [hole.rpartition(".")[2] for hole in candidates]
    # In the order of the hints, which is that of the exercise. A hunt that has not begun has no candidates.
    known = hints().get(f"ex{exercise.number:02}", {})
    return next((hole for hole in known if hole in named or not named), None)


def show_hint(exercise: Exercise, level: int) -> None:
    """The first unfinished function's hints up to this level."""
    again = parsing.command(ROOT / "check.py", str(exercise.number))
    if exercise.status == "done":
        print(f"exercise {exercise.number} is done: there is nothing to hint at")
        return
    hole = hinted(exercise)
    if hole is None:
        print(f"no hint is about what is wrong here; type: {again}")
        return
    print(f"{hole}, in {parsing.shown(exercise.path('exercises'))}\n")
    levels = hints()[f"ex{exercise.number:02}"][hole]
    for n, text in enumerate(levels[:level], start=1):
        print(textwrap.fill(" ".join(text.split()), 100, initial_indent=f"  {n}. ", subsequent_indent="     "))
    more = f"--hint {level + 1} says more. " if level < len(levels) else ""
    print(f"\n{more}next: {again}")


def show_one(exercise: Exercise, impl: str, traceback: bool) -> None:
    print(f"Exercise {exercise.number}: {exercise.title}   [{exercise.status}]\n")
    width = max((len(check.name) for check in exercise.checks), default=0)
    said = set()
    for check in exercise.checks:
        mark, failed = MARKS[check.outcome], check.outcome == "failed"
        again = failed and check.message in said  # a file that cannot be imported fails them all
        beside = "the same as above" if again else "" if failed else check.message
        print(f"  {mark:>5}  {check.name:<{width}}  {beside}".rstrip())
        if failed and not again:
            print(textwrap.fill(check.message, 110, initial_indent=" " * 9, subsequent_indent=" " * 9))
            if not said:  # only for the first: a print in a loop would bury the others
                show_printed(check)
            said.add(check.message)
        if traceback and check.traceback:
            print(textwrap.indent(check.traceback, " " * 9))
    print(f"\n{next_step([exercise], impl)}")


def show_printed(check: Check) -> None:
    """The last lines that the learner's code printed: those nearest to the failure."""
    if check.printed:
        shown = len(check.printed)
        which = f"the last {shown} of {check.n_printed} lines" if check.n_printed > shown else "up to here"
        print(" " * 9 + f"your code printed, {which}:")
        print(textwrap.indent("\n".join(check.printed), " " * 9 + "| ", lambda _: True))


def show_all(found: list[Exercise], impl: str) -> None:
    width = max(len(exercise.title) for exercise in found)
    print(f"{'':>4}{'exercise':<{width}}  {'progress':<8}  chapter")
    for exercise in found:
        wrong = f"   {len(exercise.of('failed'))} failing" if exercise.of("failed") else ""
        where = parsing.shown(exercise.chapter)
        print(f"{exercise.number:>2}  {exercise.title:<{width}}  {exercise.status:<8}  {where}{wrong}")
    print(f"\n{next_step(found, impl)}")


def next_step(found: list[Exercise], impl: str) -> str:
    """One line: what to type next, for the first exercise that is not done."""
    me = ROOT / "check.py"
    unfinished = next((exercise for exercise in found if exercise.status != "done"), None)
    if unfinished is None:
        return after(found[0]) if len(found) == 1 else "all done: the lab is yours"
    number = str(unfinished.number)
    if unfinished.of("failed"):
        words, why = [number], "what is wrong"
        if impl == "solutions":
            words, why = [number, "--impl", "solutions", "--traceback"], "the whole story"
        elif len(found) == 1:
            hole = hinted(unfinished)
            words, why = ([number, "--hint"], "a hint") if hole else ([number], "another look when you have changed it")
        return f"next, for {why}: {parsing.command(me, *words)}"
    where = parsing.shown(unfinished.path("exercises"))
    holes = open_holes(unfinished.path("exercises"))
    first = f", write {holes[0]} in {where}" if holes else f", work on {where}"
    return f"next: read {parsing.shown(unfinished.chapter)}{first}, then type: {parsing.command(me, number)}"


def after(exercise: Exercise) -> str:
    """What comes behind an exercise that is done."""
    following = next((other for other in exercises() if other.number > exercise.number), None)
    read = f"read {parsing.shown(following.chapter)}, or " if following else ""
    return f"next: {read}see where you are: {parsing.command(ROOT / 'check.py')}"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("exercise", nargs="?", type=parsing.at_least(0), help="its number (default: all)")
    parser.add_argument(
        "--hint", nargs="?", type=int, choices=(1, 2, 3), const=1, metavar="1|2|3", help="hints up to this one"
    )
    parser.add_argument("--traceback", action="store_true", help="pytest's own report of every failure")
    parser.add_argument("--impl", choices=("exercises", "solutions"), default="exercises", help="whose code to check")
    args = parser.parse_args(argv)

    found = exercises()
    if args.exercise is None and (args.hint or args.traceback):
        flag = "--hint" if args.hint else "--traceback"
        raise UsageProblem(f"{flag} needs an exercise; type: {parsing.command(ROOT / 'check.py', '3', flag)}")
    chosen = [exercise for exercise in found if args.exercise in (None, exercise.number)]
    if not chosen:
        numbers = f"{found[0].number} to {found[-1].number}"
        raise UsageProblem(
            f"there is no exercise {args.exercise}, only {numbers}; type: {parsing.command(ROOT / 'check.py')}"
        )
    run_checks(args.impl, chosen)
    if args.hint:
        show_hint(chosen[0], args.hint)
        return 0
    if args.exercise is None:
        show_all(chosen, args.impl)
    else:
        show_one(chosen[0], args.impl, args.traceback)
    return int(any(exercise.of("failed") for exercise in chosen))


if __name__ == "__main__":
    sys.exit(main())
