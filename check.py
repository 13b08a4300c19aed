#!/usr/bin/env python3
"""How far are you with the exercises, and what is wrong? Start with docs/chapters/README.md.

What comes out: a line per exercise, or per check of one exercise, and at the end the next thing to type.

    python check.py                    # all exercises: todo, 2 of 4, or done
    python check.py 3                  # the checks of exercise 3, one line each
    python check.py 3 --traceback      # with pytest's own report of every failure
    python check.py 3 --hint           # a nudge for the first unfinished function; --hint 2 and 3 say more
    python check.py --impl solutions   # the same for the solutions

Underneath it is pytest (tests/exercises/). Exit code 0 when nothing is wrong: a hole still open is not wrong.
Exit code 1 when a check fails.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from speclab import flags
from speclab.errors import EnvironmentProblem, UsageProblem, reports_problems

ROOT = Path(__file__).resolve().parent
CHECKS = ROOT / "tests" / "exercises"
PRINTED = 10  # lines shown of what a learner's code has printed
MARKS = {"passed": "ok", "todo": "todo", "failed": "FAILS", "skipped": "skip"}
WORST = ("failed", "todo", "skipped", "passed")


@dataclass
class Check:
    """One check of an exercise, all its cases together."""

    function: str  # its name in the test file
    outcome: str  # passed, todo, failed or skipped
    message: str = ""
    traceback: str = ""
    printed: str = ""  # by the learner's code, up to the failure

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
        return self.chapter.read_text(encoding="utf-8").partition("\n")[0].partition(". ")[2]

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
    return sorted(known, key=lambda exercise: exercise.number)


def run_checks(impl: str, chosen: list[Exercise]) -> None:
    """Run the checks of these exercises and fill in their outcomes.

    In a process of its own: whatever the learner's code does, it does it there. Raises UsageProblem if a file to check
    is missing, EnvironmentProblem if there is no pytest or if a test file itself cannot be run.
    """
    if find_spec("pytest") is None:
        raise EnvironmentProblem("the checks need pytest; type: pip install -r requirements.txt")
    missing = [flags.shown(exercise.path(impl)) for exercise in chosen if not exercise.path(impl).exists()]
    if missing:
        raise UsageProblem(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; type: "
            f"{shlex.join(['git', 'checkout', '--', *missing])}, or unpack the lab's archive once more and copy from it"
        )
    numbers = ", ".join(str(exercise.number) for exercise in chosen)
    # At once: pytest, and the torch of some exercises, take seconds to load.
    print(f"running the checks of {impl} {numbers} ...", file=sys.stderr, flush=True)
    waiting = chosen
    while waiting:
        code, lines = _pytest(impl, [str(exercise.test_file) for exercise in waiting])
        for exercise in waiting:
            exercise.checks = _by_check([line for line in lines if line["file"] == exercise.test_file.name])
        # Where the learner's code ended the process, the first exercise with a check missing did it; others go on.
        guilty, *waiting = [exercise for exercise in waiting if _missing(exercise)] or [None]
        if guilty:
            why = f"did not run: your code ended Python, with exit code {code}"
            guilty.checks += [Check(name, "failed", why) for name in _missing(guilty)]


def _missing(exercise: Exercise) -> list[str]:
    """Checks that have no outcome."""
    known = {check.function for check in exercise.checks}
    return [name for name in used_functions(exercise) if name not in known]


def _pytest(impl: str, files: list[str]) -> tuple[int, list[dict]]:
    """-> exit code, an outcome for every case that ran (tests/exercises/conftest.py writes them)"""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes"
        report.touch()
        words = ["--impl", impl, "--outcomes", str(report)]
        words += ["--confcutdir", str(CHECKS), "-c", str(ROOT / "pyproject.toml")]
        # Only the lab's own settings: no plugins and no options of whoever runs this.
        settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *files],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    if done.returncode in (2, 3, 4):  # pytest's own: interrupted, internal error, usage
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in said if line.startswith("E  ")] or said
        named = [found[1] for line in said if (found := re.match(r"_* ?ERROR collecting (\S+)", line))]
        raise EnvironmentProblem(
            f"the checks cannot be run ({', '.join(named) or 'pytest stopped'}): "
            f"{errors[-1].removeprefix('E').strip()[:300]}; restore the files, for example with git checkout tests"
        )
    return done.returncode, lines


def _by_check(lines: list[dict]) -> list[Check]:
    """A check with several cases is as good as its worst one."""
    checks: dict[str, Check] = {}
    for line in lines:
        check = Check(line["check"], line["outcome"], line["message"], line["traceback"], line["printed"])
        before = checks.get(check.function)
        if before is None or WORST.index(check.outcome) < WORST.index(before.outcome):
            checks[check.function] = check
    return list(checks.values())


def open_holes(path: Path) -> list[str]:
    """The functions of a file that still raise Todo, in order; of a method, `Class.method`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
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
    tree = ast.parse(exercise.test_file.read_text(encoding="utf-8"))
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
    return {
        exercise: {hole: entry["levels"] for hole, entry in holes.items()}
        for exercise, holes in tomllib.loads((ROOT / "exercises" / "hints.toml").read_text(encoding="utf-8")).items()
    }


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
    again = flags.command(ROOT / "check.py", str(exercise.number))
    if exercise.status == "done":
        print(f"exercise {exercise.number} is done: there is nothing to hint at")
        return
    hole = hinted(exercise)
    if hole is None:
        print(f"no hint is about what is wrong here; type: {again}")
        return
    print(f"{hole}, in {flags.shown(exercise.path('exercises'))}\n")
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
        mark = MARKS[check.outcome]
        print(f"  {mark:>5}  {check.name:<{width}}  {check.message if check.outcome != 'failed' else ''}".rstrip())
        if check.outcome == "failed" and check.message not in said:  # a file that cannot be imported fails them all
            print(textwrap.fill(check.message, 110, initial_indent=" " * 9, subsequent_indent=" " * 9))
            if not said:  # only for the first: a print in a loop would bury the others
                show_printed(check.printed.splitlines())
            said.add(check.message)
        if traceback and check.traceback:
            print(textwrap.indent(check.traceback, " " * 9))
    print(f"\n{next_step([exercise], impl)}")


def show_printed(lines: list[str]) -> None:
    """The last lines that the learner's code printed: those nearest to the failure."""
    if lines:
        which = f"the last {PRINTED} of {len(lines)} lines" if len(lines) > PRINTED else "up to here"
        print(" " * 9 + f"your code printed, {which}:")
        print(textwrap.indent("\n".join(line[:150] for line in lines[-PRINTED:]), " " * 9 + "| ", lambda _: True))


def show_all(found: list[Exercise], impl: str) -> None:
    width = max(len(exercise.title) for exercise in found)
    print(f"{'':>4}{'exercise':<{width}}  {'progress':<8}  chapter")
    for exercise in found:
        wrong = f"   {len(exercise.of('failed'))} failing" if exercise.of("failed") else ""
        where = flags.shown(exercise.chapter)
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
        return f"next, for {why}: {flags.command(me, *words)}"
    where = flags.shown(unfinished.path("exercises"))
    holes = open_holes(unfinished.path("exercises"))
    first = f", write {holes[0]} in {where}" if holes else f", work on {where}"
    return f"next: read {flags.shown(unfinished.chapter)}{first}, then type: {flags.command(me, number)}"


def after(exercise: Exercise) -> str:
    """What comes behind an exercise that is done."""
    following = next((other for other in exercises() if other.number > exercise.number), None)
    read = f"read {flags.shown(following.chapter)}, or " if following else ""
    return f"next: {read}see where you are: {flags.command(ROOT / 'check.py')}"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = flags.make_parser(__doc__)
    parser.add_argument("exercise", nargs="?", type=flags.at_least(0), help="its number (default: all)")
    parser.add_argument(
        "--hint", nargs="?", type=int, choices=(1, 2, 3), const=1, metavar="1|2|3", help="hints up to this one"
    )
    parser.add_argument("--traceback", action="store_true", help="pytest's own report of every failure")
    parser.add_argument("--impl", choices=("exercises", "solutions"), default="exercises", help="whose code to check")
    args = parser.parse_args(argv)

    found = exercises()
    if args.exercise is None and (args.hint or args.traceback):
        flag = "--hint" if args.hint else "--traceback"
        raise UsageProblem(f"{flag} needs an exercise; type: {flags.command(ROOT / 'check.py', '3', flag)}")
    chosen = [exercise for exercise in found if args.exercise in (None, exercise.number)]
    if not chosen:
        numbers = f"{found[0].number} to {found[-1].number}"
        raise UsageProblem(
            f"there is no exercise {args.exercise}, only {numbers}; type: {flags.command(ROOT / 'check.py')}"
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
