"""Calling code that somebody is still writing: an exception becomes a line, and what never ends is stopped.

The real runs (speclab/learner/ask.py) call a learner's functions through this; the checks (tests/exercises/), which run
in a process of their own, only take the words. Imports nothing heavy.
"""

import contextlib
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from speclab.system.paths import ROOT

PACKAGES = ("solutions", "exercises")  # where the functions are
SECONDS = 10  # of processor time in one call
CLOCK = 30  # the same by the clock: a sleep and a lock take no processor time
REPEAT = 1  # seconds until an alarm rings once more, for code that has caught the first one
LONGEST = 1000  # characters of a message that are shown


class NeverEnds(BaseException):
    """Code was stopped. Its arguments: after what, and why.

    Not an Exception, so that a learner's own `except Exception` lets it through.
    """


def has_alarm() -> bool:
    """Can this system interrupt a loop?"""
    return hasattr(signal, "setitimer")


@contextlib.contextmanager
def at_most(seconds: float, clock: float) -> Iterator[Callable[[], None]]:
    """Raise NeverEnds in the code inside after that much processor time, or that long by the clock.

    Only where the system has such alarms. Python code alone can be interrupted: a long call into C goes on, and whoever
    started the process must end it. Gives a function that restarts the alarms, for code that is asked for many things
    in one call.
    """
    if not has_alarm():
        yield lambda: None
        return
    reasons = {
        signal.SIGPROF: (f"after {seconds:g} s of processor time", "a loop without an end?"),
        signal.SIGALRM: (f"after {clock:g} s by the clock", "does it wait for something that never comes?"),
    }
    raised, armed = [], True

    def stop(number: int, _) -> None:
        if armed:  # a signal may wait until its timer is off
            raised.append(NeverEnds(*reasons[signal.Signals(number)]))
            raise raised[-1]

    def restart() -> None:
        signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT)
        signal.setitimer(signal.ITIMER_REAL, clock, REPEAT)

    # Of a limit around this one.
    timers = {timer: signal.setitimer(timer, 0) for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL)}
    handlers = {number: signal.signal(number, stop) for number in reasons}
    try:
        restart()
        yield restart
        if raised:  # the code inside has caught it
            raise raised[0]
    finally:
        armed = False
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for timer, left in timers.items():
            signal.setitimer(timer, *left)


# --- what went wrong, in one line -------------------------------------------------------------------------------------


def in_one_line(error: BaseException) -> str:
    """An exception and its place: "IndexError: list index out of range (exercises/ex02_greedy.py:14)".

    Code that was stopped is "still running after 10 s of processor time (exercises/ex02_greedy.py:14): a loop ...".
    """
    if isinstance(error, NeverEnds):
        limit, reason = error.args
        return f"still running {limit}{place(error)}: {reason}"
    what = cut(str(error.msg) if isinstance(error, SyntaxError) else text_of(error))
    return f"{cut(type(error).__name__)}{': ' * bool(what)}{what}{place(error)}"


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
