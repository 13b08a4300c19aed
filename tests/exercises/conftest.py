"""The frame around the checks of the exercises. `python check.py` is the friendly way in; underneath it is pytest:

    python -m pytest tests/exercises                       # the solutions, as `make test` runs them
    python -m pytest tests/exercises --impl exercises      # your own code

A check asks for the fixture `learner`, the module under test. A hole that is still open skips its checks; code that
cannot be imported fails them in one line; code that never ends is stopped by pytest-timeout.

With `--outcomes FILE`, as check.py starts it, a JSON line is written for every case of a check before the first one
begins, and one for what became of it; files and memory have a limit.
"""

import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import re
import resource
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from exercises import Todo
from exercises.guard import (
    LONGEST,
    PACKAGES,
    cut,
    in_one_line,
    is_learners_file,
    promises_a_value,
    still_running,
    text_of,
)
from speclab.system.files import ROOT

SECONDS = 20  # by the clock, for a check with the import of the file; a right answer takes one
AGAIN = 5  # for every further check of a file of which one has been stopped
FILE_BYTES = 16 << 20  # of every file that the code writes, and of what a check prints
MEMORY_BYTES = 4 << 30  # of data; torch and a check need less than half a GiB
SHOWN_LINES = 10  # of what a failing check has printed


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("exercises")
    group.addoption("--impl", choices=PACKAGES, default="solutions", help="whose code the checks look at")
    group.addoption("--outcomes", metavar="FILE", help="write JSON lines of what became of every check")


def pytest_configure(config: pytest.Config) -> None:
    """A print or a list without an end fills neither the disk nor the memory, and a crash leaves no image of itself."""
    if config.getoption("--outcomes", None):
        limit(resource.RLIMIT_FSIZE, FILE_BYTES)
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_DATA, MEMORY_BYTES)


def limit(what: int, number: int) -> None:
    """Lower a limit of this process; one that is lower already, or that the system does not lower, stays."""
    soft, hard = resource.getrlimit(what)
    if soft == resource.RLIM_INFINITY or number < soft:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (number, hard))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every check has a time limit, of which `--timeout` may make another."""
    seconds = config.getoption("--timeout", None) or SECONDS
    for item in items:
        if "learner" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(seconds))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the runner takes for failed where no outcome follows; nothing where a test file cannot be run."""
    for item in session.items if not session.testsfailed else []:
        if "learner" in item.fixturenames:
            _write(item, "none")


def module_name(path: Path) -> str:
    """tests/exercises/test_ex02_greedy.py -> ex02_greedy"""
    return path.stem.removeprefix("test_")


@pytest.fixture
def learner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module under test: the solution, or with `--impl exercises` the learner's file."""
    stem = module_name(request.path)
    impl = request.config.getoption("--impl", "solutions")
    if not (ROOT / impl / f"{stem}.py").is_file():  # a pipe would never end to be read
        pytest.fail(f"{impl}/{stem}.py cannot be imported: there is no such file", pytrace=False)
    try:
        return returning_something(importlib.import_module(f"{impl}.{stem}"), monkeypatch.setattr)
    except Todo as todo:
        pytest.skip(cut(text_of(todo)))
    except (KeyboardInterrupt, pytest.fail.Exception):  # somebody has typed Ctrl-C, or the time is over
        raise
    except BaseException as error:  # in here: pytest loses count of fixtures that end with a BaseException
        reason = in_one_line(error)
    pytest.fail(f"{impl}/{stem}.py cannot be imported: {reason}", pytrace=False)


def returning_something(module: ModuleType, put: Callable = setattr) -> ModuleType:
    """The module, in which a function that forgets to return fails in those words.

    So does one that changes what it is given: those that the solution has, not a reader's helpers. Exercise 4 hands out
    copies, and exercise 8 is a whole loop.
    """
    stem = module.__name__.rpartition(".")[2]
    holes = own_functions(importlib.import_module(f"solutions.{stem}")) if not stem.startswith(("ex04", "ex08")) else {}

    def watched(function: Callable) -> Callable:
        names = [*inspect.signature(function).parameters] if function.__qualname__ in holes else []

        @functools.wraps(function)
        def call(*args, **kwargs):
            __tracebackhide__ = True
            given = dict(zip(names, args, strict=False)) | kwargs
            before = {name: numbers_of(value) for name, value in given.items()} if names else {}
            answer = function(*args, **kwargs)
            for name, numbers in before.items():
                if numbers_of(given[name]) != numbers:
                    said = f"it looks as if yours changes `{name}`, which {function.__qualname__} is given"
                    pytest.fail(f"{said}: whoever calls it needs it as it was; work on a copy", pytrace=False)
            if answer is None and promises_a_value(function):
                pytest.fail(f"{function.__qualname__} returned None; did you forget `return`?", pytrace=False)
            promised = getattr(function.__annotations__.get("return"), "__name__", "")
            if promised == "Tensor" and not hasattr(answer, "untyped_storage"):
                said = f"it looks as if {function.__qualname__} returns {type(answer).__name__}"
                pytest.fail(f"{said}, where its first line promises a Tensor", pytrace=False)
            return answer

        return call

    for owner, function in own_functions(module).values():
        put(owner, function.__name__, watched(function))
    return module


def numbers_of(value: object) -> object:
    """An argument as it is now: copies of lists, dicts and tensors, whatever else they hold. NaN is no change."""
    if isinstance(value, list | tuple):
        return [numbers_of(one) for one in value]
    if isinstance(value, dict):
        return {key: numbers_of(one) for key, one in value.items()}
    is_tensor = hasattr(value, "untyped_storage")
    return (value.dtype, value.shape, value.requires_grad, str(value.tolist())) if is_tensor else value


def own_functions(module: ModuleType) -> dict[str, tuple[object, FunctionType]]:
    """The functions and methods that a file defines itself -> the module or the class of it, the function."""
    classes = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    found = [(owner, x) for owner in (module, *classes) for x in vars(owner).values() if isinstance(x, FunctionType)]
    return {x.__qualname__: (owner, x) for owner, x in found if x.__module__ == module.__name__}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    try:
        return (yield)
    except Todo as todo:
        pytest.skip(cut(text_of(todo)))
    except MemoryError as error:
        traceback.clear_frames(error.__traceback__)  # what the code has piled up is in their variables
        gc.collect()  # and may hold itself
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if "learner" in item.fixturenames and (call.when == "call" or not report.passed):
        if call.excinfo and seconds_allowed(call.excinfo.value):
            for other in item.session.items:
                if other.path == item.path:
                    other.add_marker(pytest.mark.timeout(AGAIN), append=False)
        _write(item, **_outcome(call, report))
    return report


def seconds_allowed(error: BaseException) -> float:
    """The time limit that has stopped the code; 0 where it was not stopped."""
    said = re.match(r"Timeout \(>([\d.]+)s\) from pytest-timeout", text_of(error)[:LONGEST])
    return float(said[1]) if said and isinstance(error, pytest.fail.Exception) else 0


PROCESS = os.getpid()


def _write(item: pytest.Item, outcome: str, **rest) -> None:
    """Append a line to the file that the runner reads: the test file, and a Check of learner/checks.py.

    The outcome is passed, todo, failed, or none.
    """
    path = item.config.getoption("--outcomes", None)
    if path and os.getpid() == PROCESS:  # code that forks makes a copy of pytest
        check = {"function": item.name, "uses": names_used(item.function), "outcome": outcome, **rest}
        line = json.dumps({"file": item.path.name, "check": check})
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def names_used(check: Callable) -> list[str]:
    """The functions that a check is about: its docstring begins with them, or with none."""
    names = re.match(r"[\w.]+(, [\w.]+)*: ", inspect.getdoc(check) or "")
    return [name.rpartition(".")[2] for name in names[0].strip(": ").split(", ")] if names else []


def in_words(error: BaseException) -> str:
    """What a check says, or an exception that is none of its own, in one line that is never empty."""
    if seconds := seconds_allowed(error):
        return still_running(seconds, error)
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = isinstance(error, AssertionError) and frames and is_learners_file(frames[-1])  # an assert in the code itself
    if own or not isinstance(error, AssertionError | pytest.fail.Exception):
        return in_one_line(error) + ": an assert in your own code does not hold" * bool(own)
    message = text_of(error)[: 2 * LONGEST].split("\nassert ")[0].strip().partition("\n")[0]
    return cut(message) or in_one_line(error)


def _outcome(call: pytest.CallInfo, report: pytest.TestReport) -> dict:
    """What became of a check: passed, todo or failed, with one line that says why."""
    if report.passed:
        return {"outcome": "passed"}
    if report.skipped:
        return {"outcome": "todo", "message": cut(text_of(call.excinfo.value))}
    printed = report.capstdout.splitlines()
    which = f"the last {SHOWN_LINES} of {len(printed)} lines" if len(printed) > SHOWN_LINES else "up to here"
    lines = [f"| {line[:150]}" for line in printed[-SHOWN_LINES:]]
    return {
        "outcome": "failed",
        "message": in_words(call.excinfo.value),
        "printed": [f"your code printed, {which}:", *lines] if lines else [],
    }
