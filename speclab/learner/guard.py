"""Running code that somebody is still writing: an exception is a line, and what never ends is stopped.

The checks (tests/exercises/) and the real runs (speclab/learner/adapters.py) both call a learner's functions through
this. Imports nothing heavy.
"""

import contextlib
import signal
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from speclab.system.paths import ROOT

IMPLS = ("solutions", "exercises")  # where the functions are
# What code may take: to be imported, in one call, and in every further call after this file's code never ended once.
SECONDS = {"setup": 30, "call": 10, "again": 1}  # of processor time
CLOCK = {"setup": 60, "call": 60, "again": 5}  # by the clock: a sleep and a lock take no processor time
REPEAT = 1  # seconds until an alarm rings once more, for code that has caught the first one
LONGEST = 1000  # characters of a message that are shown


class NeverEnds(BaseException):
    """Not an Exception, so that a learner's own `except Exception` lets it through. Its words: after what, and why."""


def has_alarm() -> bool:
    """Can this system interrupt a loop?"""
    return hasattr(signal, "setitimer")


@contextlib.contextmanager
def at_most(seconds: float, clock: float | None = None) -> Iterator[Callable[[], None]]:
    """Raise NeverEnds in the code inside after that much processor time, or that long by the clock.

    Only where the system has such alarms. Python code alone can be interrupted: a long call into C goes on, and whoever
    started the process must end it. Gives a function that winds the alarms up again, for code that is asked for many
    things in one call.
    """
    if not has_alarm():
        yield lambda: None
        return
    alarms = {signal.SIGPROF: (signal.ITIMER_PROF, seconds)}
    words = {signal.SIGPROF: (f"after {seconds:g} s of processor time", "a loop without an end?")}
    if clock is not None:
        alarms[signal.SIGALRM] = (signal.ITIMER_REAL, clock)
        words[signal.SIGALRM] = (f"after {clock:g} s by the clock", "does it wait for something that never comes?")
    rung, armed = [], True

    def stop(number: int, _) -> None:
        if armed:  # a signal may wait until its timer is off
            rung.append(NeverEnds(*words[number]))
            raise rung[-1]

    def wind_up() -> None:
        for timer, limit in alarms.values():
            signal.setitimer(timer, limit, REPEAT)

    handlers, timers = {}, {}  # of a limit around this one
    try:
        for number, (timer, _) in alarms.items():
            timers[timer] = signal.setitimer(timer, 0)
            handlers[number] = signal.signal(number, stop)
        wind_up()
        yield wind_up
        if rung:  # the code inside has caught it
            raise rung[0]
    finally:
        armed = False
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for timer, left in timers.items():
            signal.setitimer(timer, *left)


def never_ended(error: NeverEnds) -> str:
    """still running after 10 s of processor time (exercises/ex02_greedy.py:14): a loop without an end?"""
    after, why = error.args
    return f"still running {after}{place(error)}: {why}"


def place(error: BaseException) -> str:
    """The learner's file and innermost line: " (exercises/ex02_greedy.py:14)"; nothing where none took part."""
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        found = [(error.filename, error.lineno)]
    else:
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        found = [frame for frame in frames if is_theirs(frame[0])]
    return f" ({Path(found[-1][0]).parent.name}/{Path(found[-1][0]).name}:{found[-1][1]})" if found else ""


def is_theirs(filename: str) -> bool:
    """Is this an exercise's file? simulator.py and scenes.py lie beside them and are the lab's."""
    path = Path(filename)
    return path.parent in [ROOT / impl for impl in IMPLS] and path.name.startswith("ex")


def printable(text: str) -> str:
    """The same text with every character that a terminal would act on, or could not show, in Python's notation."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def text_of(error: BaseException) -> str:
    """str(error), whatever its class has made of that."""
    try:
        return str(error)
    except BaseException as another:
        return f"(its str() raises {type(another).__name__})"


def in_one_line(error: BaseException) -> str:
    """An exception and its place: "IndexError: list index out of range (exercises/ex02_greedy.py:14)"."""
    what = text_of(error.msg if isinstance(error, SyntaxError) else error)
    what = printable(" ".join(what[: 2 * LONGEST].split()))
    return f"{printable(type(error).__name__)}{': ' * bool(what)}{what}{place(error)}"


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
