"""The frame around the checks of the exercises. `python check.py` is the friendly way in; underneath it is pytest:

    python -m pytest tests/exercises                       # the solutions, as `make test` runs them
    python -m pytest tests/exercises --impl exercises      # your own code

A check asks for the fixture `mine`, the module under test. A hole that is still open skips its checks; code that
cannot be imported fails them in one line; code that never ends is stopped after some seconds.
"""

import functools
import importlib
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from exercises import Todo
from experiments.unfinished import (
    IMPLS,
    ROOT,
    SECONDS,
    NeverEnds,
    at_most,
    in_one_line,
    own_functions,
    place,
    promises_a_value,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("exercises")
    group.addoption("--impl", choices=IMPLS, default="solutions", help="whose code the checks look at")
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
    # Its own classes only: the `start` of a class that it imports is the lab's.
    owners = [module, *(x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__)]
    owner = next((owner for owner in owners if name in vars(owner)), None)
    assert owner is not None, f"{stem} has no {hole} to replace"
    module.__dict__.update({key: value for key, value in defined.items() if key != name})
    setattr(owner, name, defined[name])
    return module


@pytest.fixture
def mine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module under test: the solution, or with `--impl exercises` the learner's file."""
    stem = module_name(request.path)
    impl = request.config.getoption("--impl", "solutions")
    try:
        return returning_something(importlib.import_module(f"{impl}.{stem}"), monkeypatch)
    except Todo:
        raise
    except (Exception, SystemExit) as error:
        pytest.fail(f"{impl}/{stem}.py cannot be imported: {in_one_line(error)}", pytrace=False)


def returning_something(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, in which a function that forgets to return fails its check in those words."""

    def watched(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args, **kwargs):
            __tracebackhide__ = True
            if (answer := function(*args, **kwargs)) is None:
                pytest.fail(f"{function.__qualname__} returned None; did you forget `return`?", pytrace=False)
            return answer

        return call

    for owner, name in own_functions(module):
        if promises_a_value(function := vars(owner)[name]):
            monkeypatch.setattr(owner, name, watched(function))
    return module


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
        said = f"still running after {seconds} s of processor time{place(error)}: a loop without an end?"
        pytest.fail(said, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    return (yield from _guarded(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    return (yield from _guarded(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    path = item.config.getoption("--outcomes", None)
    if path and "mine" in item.fixturenames and (call.when == "call" or not report.passed):
        with open(path, "a", encoding="utf-8") as file:
            print(json.dumps(_outcome(item, call, report)), file=file)
    return report


def in_words(error: BaseException) -> str:
    """What a check says, or an exception that is none of its own, in one line."""
    spoken = isinstance(error, AssertionError | pytest.fail.Exception)
    message = str(error).split("\nassert ")[0].strip() if spoken else in_one_line(error)
    return message.partition("\n")[0]


def _outcome(item: pytest.Item, call: pytest.CallInfo, report: pytest.TestReport) -> dict:
    """What became of a check: passed, todo, skipped or failed, with one line that says why."""
    outcome, message = report.outcome, ""
    if report.skipped:
        message = str(call.excinfo.value)
        outcome = "todo" if message.startswith("todo: ") else "skipped"
        message = message.removeprefix("todo: ")
    elif report.failed:
        message = in_words(call.excinfo.value)
    return {
        "file": item.path.name,
        "check": item.originalname if hasattr(item, "originalname") else item.name,
        "outcome": outcome,
        "message": message,
        "traceback": report.longreprtext if report.failed else "",
        "printed": report.capstdout if report.failed else "",
    }
