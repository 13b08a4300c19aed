"""Running code that somebody is still writing: an exception is a line, and a loop without an end is stopped.

The checks (tests/exercises/) and the real runs (experiments/impl_parts.py) both call a learner's functions through
this. Imports nothing heavy.
"""

import contextlib
import signal
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPLS = ("solutions", "exercises")  # where the functions are
SECONDS = {"setup": 60, "call": 10, "again": 1}  # of processor time; "again": after this file's code never ended once


class NeverEnds(BaseException):
    """Not an Exception, so that a learner's own `except Exception` lets it through."""


def has_alarm() -> bool:
    """Can this system interrupt a loop?"""
    return hasattr(signal, "setitimer")


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[Callable[[], None]]:
    """Raise NeverEnds in the code inside after that much processor time, where the system has such an alarm.

    Gives a function that winds the alarm up again, for code that is asked for many things in one call.
    """
    if not has_alarm():
        yield lambda: None
        return

    def stop(*_):
        raise NeverEnds

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_PROF, seconds)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def place(error: BaseException) -> str:
    """The learner's file and innermost line: " (exercises/ex02_greedy.py:14)"; nothing where none took part."""
    if isinstance(error, SyntaxError) and error.filename:
        found = [(error.filename, error.lineno)]
    else:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        rooms = [ROOT / impl for impl in IMPLS]
        # Not simulator.py and scenes.py, which lie beside theirs and are the lab's.
        found = [frame for frame in frames if Path(frame[0]).parent in rooms and Path(frame[0]).name.startswith("ex")]
    return f" ({Path(found[-1][0]).parent.name}/{Path(found[-1][0]).name}:{found[-1][1]})" if found else ""


def in_one_line(error: BaseException) -> str:
    """An exception and its place: "IndexError: list index out of range (exercises/ex02_greedy.py:14)"."""
    what = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}{': ' * bool(what)}{what}{place(error)}"


def promises_a_value(function: Callable) -> bool:
    """Does its annotation say that it returns something, and never None?"""
    promised = getattr(function, "__annotations__", {}).get("return")
    return promised is not None and "None" not in str(promised)


def own_functions(module: types.ModuleType) -> list[tuple[object, str]]:
    """The functions that a file defines itself: (the module or a class of it, the function's name)."""
    classes = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    return [
        (owner, name)
        for owner in (module, *classes)
        for name, value in vars(owner).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
    ]
