"""Calling code that somebody is still writing: an exception becomes a line, and what never ends is stopped.

`python check.py --run` calls a learner's functions through this; the checks (tests/exercises/), which run
in a process of their own, only take the words. Imports nothing heavy.
"""

import contextlib
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from speclab.system.files import ROOT

PACKAGES = ("solutions", "exercises")  # where the functions are
SECONDS = 30  # by the clock, for one call in a run
LONGEST = 1000  # characters of a message that are shown


class NeverEnds(BaseException):
    """Code was stopped after so many seconds, its argument.

    It is no Exception, so that a learner's own `except Exception` lets it through.
    """


def has_alarm() -> bool:
    """Can this system interrupt a loop?"""
    return hasattr(signal, "setitimer")


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise NeverEnds in the code inside after so many seconds by the clock, and once more every second after that.

    Nothing is raised where the system has no alarm, nor in a long call into C, which only the end of the process ends.
    """
    if not has_alarm():
        yield
        return

    raised: list[NeverEnds] = []
    armed = True

    def stop(*_) -> None:
        if armed:  # a signal may wait until its timer is off
            raised.append(NeverEnds(seconds))
            raise raised[-1]

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
        if raised:  # the code inside has caught it
            raise raised[0]
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


# --- what went wrong, in one line -------------------------------------------------------------------------------------


def in_one_line(error: BaseException) -> str:
    """An exception and its place: "IndexError: list index out of range (exercises/ex02_greedy.py:14)".

    Code that was stopped is "still running after 30 s (exercises/ex02_greedy.py:14): a loop ...".
    """
    if isinstance(error, NeverEnds):
        return still_running(error.args[0], error)
    what = cut(str(error.msg) if isinstance(error, SyntaxError) else text_of(error))
    notes = "".join(getattr(error, "__notes__", []))  # the case, where a check has one
    return f"{cut(type(error).__name__)}{': ' * bool(what)}{what}{place(error)}{cut(notes)}"


def still_running(seconds: float, error: BaseException) -> str:
    """Say that code was stopped after so many seconds, and where."""
    reason = "a loop without an end, or a wait for something that never comes?"
    return f"still running after {seconds:g} s{place(error)}: {reason}"


def cut(text: str) -> str:
    """A text in one line of at most LONGEST characters."""
    line = " ".join(text[: 2 * LONGEST].split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


def text_of(error: BaseException) -> str:
    """str(error), whatever its class has made of that."""
    try:
        return str(error)
    except BaseException as another:
        return f"(its str() raises {type(another).__name__})"


def place(error: BaseException) -> str:
    """The learner's file and innermost line: " (exercises/ex02_greedy.py:14)"; nothing where none took part."""
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        lines = [(error.filename, error.lineno)]
    else:
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        lines = [(name, line) for name, line in frames if is_learners_file(name)]
    if not lines:
        return ""
    path, line = Path(lines[-1][0]), lines[-1][1]
    return f" ({path.parent.name}/{path.name}:{line})"


def is_learners_file(filename: str) -> bool:
    """Is this an exercise's file? simulator.py and scenes.py lie beside them and are the lab's."""
    path = Path(filename)
    return path.parent in [ROOT / package for package in PACKAGES] and path.name.startswith("ex")


def promises_a_value(function: Callable) -> bool:
    """Does its annotation say that it returns something, and never None?"""
    promised = getattr(function, "__annotations__", {}).get("return")
    return promised is not None and "None" not in str(promised)
