"""The frame around the checks of the exercises. `python check.py` is the friendly way in; underneath it is pytest:

    python -m pytest tests/exercises                       # the solutions, as `make test` runs them
    python -m pytest tests/exercises --impl exercises      # your own code
    python -m pytest tests/exercises --wrong               # every known wrong answer: here red is what is expected

A check asks for the fixture `mine`, the module under test. A hole that is still open skips its checks; code that
cannot be imported fails them in one line; code that never ends is stopped after some seconds.
"""

import contextlib
import importlib
import json
import re
import runpy
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from exercises import Todo

ROOT = Path(__file__).parent.parent.parent
IMPLS = ("solutions", "exercises")
SECONDS = {"setup": 60, "call": 10, "again": 1}  # of processor time; "again": after this file's code never ended once


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("exercises")
    group.addoption("--impl", choices=IMPLS, default="solutions", help="whose code the checks look at")
    group.addoption(
        "--wrong",
        nargs="?",
        const="all",
        choices=("all", "first"),
        help="run the checks on every entry of tests/exercises/wrong/; first: each up to the first check that fails",
    )
    group.addoption("--outcomes", metavar="FILE", help="write a JSON line for every check that ran")


def module_name(path: Path) -> str:
    """tests/exercises/test_ex02_greedy.py -> ex02_greedy"""
    return path.stem.removeprefix("test_")


def wrong_answers(stem: str) -> dict[str, tuple[str, str]]:
    """Short name of a misconception -> (the hole it fills, its source); none for an exercise without such a file."""
    path = ROOT / "tests" / "exercises" / "wrong" / f"{stem}.py"
    return runpy.run_path(str(path)).get("WRONG", {}) if path.exists() else {}


def with_wrong_answer(stem: str, hole: str, source: str) -> ModuleType:
    """A fresh copy of the solution in which one function, or one method of a class, is the wrong one."""
    path = ROOT / "solutions" / f"{stem}.py"
    module = ModuleType(f"solutions.{stem}")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    name, defined = hole.rpartition(".")[2], {}
    exec(dedent(source), module.__dict__, defined)
    owners = [module, *(value for value in vars(module).values() if isinstance(value, type))]
    owner = next((o for o in owners if name in vars(o) and getattr(o, "__module__", stem) != "builtins"), None)
    assert owner is not None, f"{stem} has no {hole} to replace"
    module.__dict__.update({key: value for key, value in defined.items() if key != name})
    setattr(owner, name, defined[name])
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mine" in metafunc.fixturenames and metafunc.config.getoption("--wrong", None):
        names = list(wrong_answers(module_name(metafunc.definition.path)))
        metafunc.parametrize("mine", names, indirect=True, ids=[f"wrong: {name}" for name in names])


@pytest.fixture
def mine(request: pytest.FixtureRequest) -> ModuleType:
    """The module under test: the solution, or with `--impl exercises` the learner's file."""
    stem = module_name(request.path)
    if hasattr(request, "param"):
        return with_wrong_answer(stem, *wrong_answers(stem)[request.param])
    impl = request.config.getoption("--impl", "solutions")
    try:
        return importlib.import_module(f"{impl}.{stem}")
    except Todo:
        raise
    except (Exception, SystemExit) as error:
        pytest.fail(f"{impl}/{stem}.py cannot be imported: {in_one_line(error)}", pytrace=False)


def in_one_line(error: BaseException) -> str:
    """An exception with the learner's file and line: "IndexError: list index out of range (exercises/ex02….py:14)"."""
    if isinstance(error, SyntaxError) and error.filename:
        place, what = (error.filename, error.lineno), error.msg
    else:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        theirs = [frame for frame in frames if Path(frame[0]).parent in [ROOT / impl for impl in IMPLS]]
        place, what = theirs[-1] if theirs else (None, None), " ".join(str(error).split())
    where = f" ({Path(place[0]).parent.name}/{Path(place[0]).name}:{place[1]})" if place[0] else ""
    return f"{type(error).__name__}{': ' * bool(what)}{what}{where}"


class NeverEnds(BaseException):
    """Not an Exception, so that a learner's own `except Exception` lets it through."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop the code inside after that much processor time, where the system has such an alarm."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_):
        raise NeverEnds

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


CAUGHT: set[tuple[Path, str]] = set()  # wrong answers that a check has noticed
NEVER_ENDED: set[Path] = set()  # test files whose code was stopped once: no check of them waits that long again


def _guarded(item: pytest.Item, phase: str):
    seconds = SECONDS["again"] if item.path in NEVER_ENDED else SECONDS[phase]
    try:
        with at_most(seconds):
            return (yield)
    except Todo as todo:
        pytest.skip(f"todo: {todo}")
    except NeverEnds as error:
        NEVER_ENDED.add(item.path)
        place = re.search(r"\(.*\)", in_one_line(error))
        where = f" {place[0]}" if place else ""
        pytest.fail(f"still running after {seconds} s of processor time{where}: a loop without an end?", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    if item.config.getoption("--wrong", None) == "first" and (item.path, _case(item)) in CAUGHT:
        pytest.skip("this wrong answer has been noticed")
    return (yield from _guarded(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    return (yield from _guarded(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.failed:
        CAUGHT.add((item.path, _case(item)))
    path = item.config.getoption("--outcomes", None)
    if path and "mine" in item.fixturenames and (call.when == "call" or not report.passed):
        with open(path, "a", encoding="utf-8") as file:
            print(json.dumps(_outcome(item, call, report)), file=file)
    return report


def _case(item: pytest.Item) -> str:
    """The parameters of a check that is run with several."""
    return item.callspec.id if hasattr(item, "callspec") else ""


def _outcome(item: pytest.Item, call: pytest.CallInfo, report: pytest.TestReport) -> dict:
    """What became of a check: passed, todo, skipped or failed, with one line that says why."""
    outcome, message = report.outcome, ""
    if report.skipped:
        message = str(call.excinfo.value)
        outcome = "todo" if message.startswith("todo: ") else "skipped"
        message = message.removeprefix("todo: ")
    elif report.failed:
        error = call.excinfo.value
        spoken = isinstance(error, AssertionError | pytest.fail.Exception)
        message = str(error).split("\nassert ")[0].strip() if spoken else in_one_line(error)
    return {
        "file": item.path.name,
        "check": item.originalname if hasattr(item, "originalname") else item.name,
        "case": _case(item),
        "outcome": outcome,
        "message": message.partition("\n")[0],
        "traceback": report.longreprtext if report.failed else "",
    }
