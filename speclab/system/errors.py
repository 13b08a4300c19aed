"""Problems that a user can solve. `reports_problems` turns them into one line on stderr and an exit code.

An error names the cause and the next thing to type. `setting` names a setting in it: as a flag while a script runs, as
an argument where Python calls the lab.
"""

import contextlib
import errno
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from speclab.system import terminal

LONGEST_LINE = 800  # characters of an error
_flags = False  # whether messages name settings as flags
CTRL_C = 130  # the exit code


class Problem(Exception):
    """Base of the errors that are shown as one line."""

    exit_code = 1


class UsageProblem(Problem):
    """The words of the command line are wrong."""

    exit_code = 2


class EnvironmentProblem(Problem):
    """A file, a model, a device or a library is not what the command needs."""

    exit_code = 3


@contextlib.contextmanager
def as_flags() -> Iterator[None]:
    """While this is open, `setting` gives flags of the command line."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def setting(name: str, value: str | float | None = None) -> str:
    """Return a setting as the caller types it: `--dtype float32` in a script, `dtype="float32"` in Python.

    name: the argument's, as in max_new_tokens. value: what to give; None: the name alone.
    """
    if _flags:
        return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")
    return name if value is None else f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"


def first_line(error: BaseException) -> str:
    """Return the message of a library's error, short enough for one of the lab's lines."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


def reports_problems(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap the main() of a script: what a user can solve becomes one line on stderr and an exit code.

    A fault of the lab keeps its traceback. SIGTERM arrives as Ctrl-C does.
    """

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        terminal.open_streams()
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a job in the background may ignore Ctrl-C
                    signal.signal(number, signal.default_int_handler)
        with as_flags():
            try:
                code = _run(main, *args, **kwargs)
            finally:
                failure = terminal.flush_streams()
            return report(failure) if failure and not code else code

    return wrapped


def report(problem: Exception) -> int:
    """Say what went wrong in one line on stderr.  -> exit code"""
    text = str(problem)
    if isinstance(problem, OSError):
        full = problem.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)
        where = problem.filename or ("standard output" if full else type(problem).__name__)
        advice = "; free some space" if full else "; check the path" if problem.filename else ""
        text = f"{where}: {problem.strerror or problem}{advice}"
    line = " ".join(text.split())
    if len(line) > LONGEST_LINE:  # a long name in the middle: the advice stands at the end
        line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
    terminal.note(f"error: {line}")
    return getattr(problem, "exit_code", EnvironmentProblem.exit_code)


def _run(main: Callable[..., int | None], *args: Any, **kwargs: Any) -> int:
    try:
        return main(*args, **kwargs) or 0
    except BrokenPipeError:  # the reader of a pipe left; nothing is left to say
        return 0
    except (Problem, OSError) as problem:
        return report(problem)
    except KeyboardInterrupt as stop:
        terminal.note("stopped")
        return getattr(stop, "exit_code", CTRL_C)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        why = (str(error).splitlines() or ["no more to be had"])[0]
        return report(EnvironmentProblem(f"out of memory: {why}; use a smaller model or shorter texts"))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out: Python's own error, PyTorch's for a GPU, or PyTorch's for a CPU, which has no type
    of its own."""
    on_gpu = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    on_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return on_cpu or isinstance(error, (MemoryError, on_gpu))
