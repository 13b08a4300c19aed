"""What the checks of the exercises share: how an answer is compared, and how a mistake is called by its name.

The well-known mistakes of an exercise stand in exercises/mistakes/ as edits of its solution (tests/edits.py): under
[FUNCTION] the name of a mistake and its edits of that function.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import operator
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import dedent
from types import ModuleType
from typing import NoReturn

import pytest

from exercises import Todo
from exercises.guard import LONGEST, NeverEnds, at_most, cut, is_learners_file, text_of
from speclab.system.files import ROOT
from tests.edits import Edit, edited, edits_in
from tests.exercises.conftest import in_words, returning_something

whole = operator.index  # the int that an index is, of numpy or torch as well; TypeError for 4.0, "4" and None
VOICES = re.compile("it looks as if|remember:", re.IGNORECASE)


def wrong(message: str, rule: str = "") -> NoReturn:
    """A check fails with this message, and what a long message loses comes before its voice.

    Where it does not describe the reader's code ("it looks as if yours ..."), it ends with the rule, by default the one
    that the running check begins with (see `asked`).
    """
    frame = sys._getframe(1)
    while not rule and frame:
        if frame.f_code.co_name.startswith("test_"):
            rule = rule_of(frame.f_globals.get(frame.f_code.co_name))
        frame = frame.f_back
    voice = VOICES.search(message)
    start = voice.start() if voice else len(message)
    facts, said = message[:start], message[start:] or f"; remember: {rule}"
    if len(facts) + len(said) > LONGEST:
        facts = facts[: max(0, LONGEST - len(said) - 5)] + " ... "
    pytest.fail(facts + said, pytrace=False)


def rule_of(check: Callable | None) -> str:
    """The docstring of a check, without the names of the functions that it begins with."""
    said = " ".join((inspect.getdoc(check) or "").split()).removesuffix(".")
    return re.sub(r"^[\w.]+(, [\w.]+)*: ", "", said)


def asked(
    cases: Sequence[tuple], about: str | Callable[..., str], right: Sequence | None = None
) -> Callable[[Callable], Callable]:
    """Make a check of a function that asks a module about a case, test_x(module, *case): see `agree`.

    Its docstring begins with the functions that are looked at and a colon, and says the rule.
    """

    def made(ask: Callable) -> Callable:
        def check(learner: ModuleType) -> None:
            agree(learner, ask, cases, about, right)

        check.__name__, check.__doc__, check.__module__ = ask.__name__, ask.__doc__, ask.__module__
        check.ask, check.cases = ask, cases
        return check

    return made


def agree(
    learner: ModuleType,
    ask: Callable,
    cases: Sequence[tuple],
    about: str | Callable[..., str],
    right: Sequence | None = None,
) -> None:
    """Fail at the first case whose answer is not the right one: the solution's, or the one of `right`.

    about: the case in words, a format of its parts, or a function of them. The message ends with the mistake that gives
    the same answers to all cases, else with the rule.
    """
    if right is None:
        solution = importlib.import_module(f"solutions.{stem_of(learner)}")
        right = [_once(ask, solution, i, case) for i, case in enumerate(cases)]
    in_words, found = about.format if isinstance(about, str) else about, []
    for case in cases:
        try:
            found.append(_answer(ask, learner, case))
        except Exception as error:
            error.add_note(f"; the case: {in_words(*case)}")
            raise
    for case, given, expected in zip(cases, found, right, strict=True):
        if given != expected:
            if isinstance(given, dict) and isinstance(expected, dict):
                given, expected = _without_equals(given, expected), _without_equals(expected, given)
            words = in_words(*case)
            name = named(
                learner, lambda module: all(_once(ask, module, i, cases[i]) == its for i, its in enumerate(found))
            )
            wrong(f"{words}: {said(expected)}, yours says {said(given)}{name}", rule_of(ask))


def _answer(ask: Callable, module: ModuleType, case: tuple) -> object:
    """What is said about a case. An answer that is of no use to the check becomes words, and what the code itself
    raises stays as it is."""
    try:
        return ask(module, *case)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if any(is_learners_file(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
        return f"what no check can read, {type(error).__name__}: {cut(text_of(error))}"


def _once(ask: Callable, module: ModuleType, i: int, case: tuple) -> object:
    """`_answer` of a module that nobody changes, to its i-th case: kept while checks run."""
    if (ask, module, i) not in ANSWERS:
        ANSWERS[ask, module, i] = _answer(ask, module, case)
    return ANSWERS[ask, module, i]


ANSWERS: dict[tuple[Callable, ModuleType, int], object] = {}


def simplest(cases: Iterable) -> list:
    """Random cases, those first that are shortest to read: the first one that fails is shown."""
    return sorted(cases, key=lambda case: len(str(case)))


def _without_equals(one: dict, other: dict) -> dict:
    return {key: value for key, value in one.items() if key not in other or other[key] != value}


def said(answer: object) -> str:
    """An answer as it is shown."""
    return answer if isinstance(answer, str) else f"{answer!r:.400}"


def stem_of(learner: ModuleType) -> str:
    """Of a reader's module, or of a copy of the solution."""
    return learner.__name__.rpartition(".")[2]


def named(learner: ModuleType, explains: Callable[[ModuleType], bool]) -> str:
    """The well-known mistake that `explains` what a learner's code does, if it is one: of several the one that an
    earlier check has named."""
    before = NAMED.setdefault(learner, [])
    for name in dict.fromkeys([*before, *mistakes(stem_of(learner))]):
        with contextlib.suppress(Exception, pytest.fail.Exception):  # one that does not fit has no answer everywhere
            if explains(known(stem_of(learner), name)):
                before.append(name)
                return f". It looks as if yours has this mistake: {name}"
    return ""


NAMED: dict[ModuleType, list[str]] = {}


@functools.cache
def mistakes(stem: str) -> dict[str, tuple[str, list[Edit]]]:
    """Name of a well-known mistake -> the function that it is in, its edits; none where there is no such file."""
    path, found, function = ROOT / "exercises" / "mistakes" / f"{stem}.txt", {}, ""
    for block in re.split(r"\n(?=[^-+#\n])", path.read_text("utf-8") if path.is_file() else "#"):
        title, *lines = block.splitlines()
        if title.startswith("["):
            function = title.strip("[]")
        elif not title.startswith("#"):
            assert title not in found, f"two mistakes of {stem} have the name: {title}"
            found[title] = function, edits_in(lines)
    return found


def mistaken(stem: str, name: str) -> ModuleType:
    """A fresh copy of the solution with this mistake."""
    return copy_of(stem, with_mistakes(stem, name))


known = functools.cache(mistaken)  # nobody watches its functions


def with_mistakes(stem: str, *names: str) -> str:
    """The source of the solution with these mistakes in it."""
    source = (ROOT / "solutions" / f"{stem}.py").read_text("utf-8")
    for name in names:
        function, edits = mistakes(stem)[name]
        node = next(node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == function)
        text = ast.get_source_segment(source, node)
        source = source.replace(text, edited(text, edits, f"{function} of {stem}, {name}:"))
    return source


def with_wrong_answer(stem: str, hole: str, source: str) -> ModuleType:
    """A fresh copy of the solution in which one function, or one method of a class, is this one."""
    module = copy_of(stem, with_mistakes(stem))
    owner, _, name = hole.rpartition(".")
    exec(dedent(source), module.__dict__, defined := {})
    setattr(getattr(module, owner) if owner else module, name, defined[name])
    return module


def copy_of(stem: str, source: str) -> ModuleType:
    """A module of this text, called like the solution; it keeps the text."""
    module = ModuleType(f"solutions.{stem}")
    module.__file__ = str(ROOT / "solutions" / f"{stem}.py")
    module.SOURCE = source
    exec(compile(source, module.__file__, "exec"), vars(module))
    return module


def checks_of(stem: str) -> dict[str, Callable]:
    """Name -> check of an exercise, in the order of the file; a check's first argument is the module under test."""
    file = vars(importlib.import_module(f"tests.exercises.test_{stem}"))
    tests = {name: test for name, test in file.items() if name.startswith("test_")}
    return {name: test for name, test in tests.items() if [*inspect.signature(test).parameters][:1] == ["learner"]}


def failures(learner: ModuleType, stem: str, seconds: float = 10) -> Iterator[tuple[str, str]]:
    """Every case that fails of every check: the check's name, and what it says. Raises Todo as a check does.

    learner: a module of its own, whose functions are watched from here on.
    """
    returning_something(learner)
    for name, check in checks_of(stem).items():
        try:
            with at_most(seconds):
                check(learner)
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
