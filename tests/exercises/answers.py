"""What the checks of the exercises share: how an answer is read, and how a mistake is called by its name."""

import contextlib
import functools
import importlib
import inspect
import operator
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from textwrap import dedent
from types import CodeType, ModuleType
from typing import Any, NoReturn

import pytest

from exercises import Todo
from exercises.guard import LONGEST, NeverEnds, at_most
from speclab.system.paths import ROOT
from tests.exercises.conftest import in_words, returning_something

VOICES = re.compile("it looks as if|remember:", re.IGNORECASE)
OF_LATER_CHAPTERS = re.compile(r"test_ex(09|1\d)_")


def whole(answer: Any) -> int | None:
    """The int that an index is, an id from numpy or torch as well; None for 4.0, "4" and all that is no index."""
    try:
        return operator.index(answer)
    except TypeError:
        return None


def wrong(message: str) -> NoReturn:
    """A check fails with this message.

    From chapter 9 on it says in which voice it speaks, and what a long message loses comes before that. Where it does
    not describe the reader's code ("it looks as if yours ..."), it ends with the rule: the docstring of the check.
    """
    if rule := _rule_of_the_check():
        voice = VOICES.search(message)
        start = voice.start() if voice else len(message)
        facts, said = message[:start], message[start:] or f"; remember: {rule}"
        if len(facts) + len(said) > LONGEST:
            facts = facts[: max(0, LONGEST - len(said) - 5)] + " ... "
        message = facts + said
    pytest.fail(message, pytrace=False)


def _rule_of_the_check() -> str:
    """The docstring of the check that is running, without the name of the function; empty before chapter 9."""
    frame = sys._getframe(1)
    while frame and not frame.f_code.co_name.startswith("test_"):
        frame = frame.f_back
    if frame is None or not OF_LATER_CHAPTERS.search(frame.f_globals["__name__"]):
        return ""
    said = inspect.getdoc(frame.f_globals.get(frame.f_code.co_name)) or ""
    first = " ".join(said.partition("\n\n")[0].split()).removesuffix(".")
    return re.sub(r"^\w+(, \w+)*: ", "", first)


def named_by(stem: str, explains: Callable[[ModuleType], bool]) -> str:
    """The well-known mistake that `explains` what a learner's code does, if it is one."""
    for name, mistake in wrong_answers(stem).items():
        with contextlib.suppress(Exception, pytest.fail.Exception):  # one that does not fit has no answer everywhere
            if explains(with_wrong_answer(stem, *mistake)):
                return f". It looks as if yours has this mistake: {name}"
    return ""


def named(stem: str, ask: Callable[[ModuleType], object], given: object) -> str:
    """The well-known mistake that gives the very same answers, if it is one."""
    return named_by(stem, lambda mistaken: ask(mistaken) == given)


def unlike(
    stem: str, ask: Callable[[ModuleType], list], learner: ModuleType, right: ModuleType, cases: Sequence
) -> Iterator[tuple[Any, Any, Any, str]]:
    """Where the answers differ from the solution's: the case, both answers, and the name of the mistake, if it has one.

    `ask` asks a module about all the cases, in their order.
    """
    found = ask(learner)
    for case, given, expected in zip(cases, found, ask(right), strict=True):
        if given != expected:
            yield case, given, expected, named(stem, ask, found)


@functools.cache
def wrong_answers(stem: str) -> dict[str, tuple[str, str]]:
    """Short name of a misconception -> (the hole it fills, its source); none for an exercise without such a file."""
    path = ROOT / "tests" / "exercises" / "wrong" / f"{stem}.py"
    return runpy.run_path(str(path)).get("WRONG", {}) if path.exists() else {}


def with_wrong_answer(stem: str, hole: str, source: str) -> ModuleType:
    """A fresh copy of the solution in which one function, or one method of a class, is the wrong one."""
    module = ModuleType(f"solutions.{stem}")
    exec(_solution(stem), module.__dict__)
    name, defined = hole.rpartition(".")[2], {}
    exec(dedent(source), module.__dict__, defined)
    # Its own classes only: the `prefill` of a class that it imports is the lab's.
    owners = [module, *(x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__)]
    owner = next((owner for owner in owners if name in vars(owner)), None)
    assert owner is not None, f"{stem} has no {hole} to replace"
    module.__dict__.update({key: value for key, value in defined.items() if key != name})
    setattr(owner, name, defined[name])
    return module


@functools.cache
def _solution(stem: str) -> CodeType:
    path = ROOT / "solutions" / f"{stem}.py"
    return compile(path.read_text(encoding="utf-8"), str(path), "exec")


def checks_of(stem: str) -> dict[str, Callable]:
    """Name -> check of an exercise, in the order of the file; a check's first argument is the module under test."""
    file = vars(importlib.import_module(f"tests.exercises.test_{stem}"))
    tests = {name: test for name, test in file.items() if name.startswith("test_")}
    return {name: test for name, test in tests.items() if [*inspect.signature(test).parameters][:1] == ["learner"]}


def cases(check: Callable) -> list[dict]:
    """The arguments beside `learner` that a check is run with, one dict for every case."""
    marks = [mark.args for mark in getattr(check, "pytestmark", []) if mark.name == "parametrize"]
    if not marks:
        return [{}]
    ((names, values),) = marks
    return [{names: v} if isinstance(names, str) else dict(zip(names, v, strict=True)) for v in values]


def failures(learner: ModuleType, stem: str, seconds: float = 10) -> Iterator[tuple[str, str]]:
    """Every case that fails of every check: the check's name, and what it says. Raises Todo as a check does.

    learner: a module of its own, whose functions are watched from here on.
    """
    returning_something(learner)
    for name, check in checks_of(stem).items():
        for case in cases(check):
            try:
                with at_most(seconds):
                    check(learner, **case)
            except Todo:
                raise
            except (Exception, pytest.fail.Exception, NeverEnds) as error:
                yield name, in_words(error)


def chapter(stem: str) -> str:
    """The text of the chapter of an exercise."""
    return (ROOT / "docs" / "chapters" / f"{stem[2:].replace('_', '-')}.md").read_text("utf-8")


@functools.cache
def committed(path: str) -> bytes | None:
    """A file of the lab as it is in HEAD, without a reader's own answers; None where git does not know it."""
    with contextlib.suppress(OSError):
        shown = subprocess.run(["git", "-C", str(ROOT), "show", f"HEAD:{path}"], capture_output=True)
        return shown.stdout if shown.returncode == 0 else None
    return None
