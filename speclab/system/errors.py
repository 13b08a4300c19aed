"""Problems that a user can solve: `reports_problems` turns them into one line on stderr and an exit code.

An error names the cause and the next thing to type.
"""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from speclab.system import terminal


class Problem(Exception):
    """Base of the errors that are shown as one line."""

    exit_code = 1


class UsageProblem(Problem):
    """The words of the command line are wrong."""

    exit_code = 2


class EnvironmentProblem(Problem):
    """A file, a model, a device or a library is not what the command needs."""

    exit_code = 3


def first_line(error: BaseException) -> str:
    """Return the message of a library's error, short enough for one of the lab's lines."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


def reports_problems(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap the main() of a script: what a user can solve becomes one line on stderr and an exit code. A fault
    of the lab keeps its traceback. SIGTERM arrives as Ctrl-C does."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):
                stream.reconfigure(errors="replace")  # what the encoding of an output lacks
        with contextlib.suppress(ValueError):  # no thread but the main one may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a job in the background may ignore Ctrl-C
                    signal.signal(number, signal.default_int_handler)
        try:
            code = main(*args, **kwargs) or 0
        except KeyboardInterrupt:
            terminal.note("stopped")
            code = 130
        except Exception as error:
            code = report(error)
        try:
            if sys.stdout:  # None where it was closed before the start
                sys.stdout.flush()
        except OSError as error:
            error.filename = "standard output"
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())  # or Python would fail on the same bytes when it ends
            code = code or report(error)
        return code

    return wrapped


def report(error: Exception) -> int:
    """Say in one line on stderr what a user can solve. Raises any other error again.  -> exit code"""
    if isinstance(error, BrokenPipeError):  # the reader of a pipe left; nothing is left to say
        return 0
    if is_out_of_memory(error):
        error = EnvironmentProblem(f"out of memory: {first_line(error)}; use a smaller model or shorter texts")
    elif isinstance(error, OSError):
        where = error.filename or type(error).__name__
        error = EnvironmentProblem(f"{where}: {error.strerror or error}; check the path and the disk")
    elif not isinstance(error, Problem):
        raise error
    terminal.note(f"error: {' '.join(str(error).split())}")
    return error.exit_code


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out: Python's own error, PyTorch's for a GPU, or its RuntimeError for a CPU."""
    on_gpu = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    return isinstance(error, (MemoryError, on_gpu)) or "DefaultCPUAllocator" in str(error)
