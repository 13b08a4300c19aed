"""Problems that a user can solve: `reports_problems` turns them into one line on stderr and an exit code.

An error names the cause and the next thing to type.
"""

import contextlib
import functools
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
        terminal.open_streams()
        with contextlib.suppress(ValueError):  # no thread but the main one may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a job in the background may ignore Ctrl-C
                    signal.signal(number, signal.default_int_handler)
        code = _run(main, *args, **kwargs)
        failure = terminal.flush_output()
        return report(failure) if failure and not code else code

    return wrapped


def report(problem: Exception) -> int:
    """Say what went wrong in one line on stderr.  -> exit code"""
    text = str(problem)
    if isinstance(problem, OSError):
        text = f"{problem.filename or 'standard output'}: {problem.strerror or problem}; check the path and the disk"
    terminal.note(f"error: {' '.join(text.split())}")
    return getattr(problem, "exit_code", EnvironmentProblem.exit_code)


def _run(main: Callable[..., int | None], *args: Any, **kwargs: Any) -> int:
    try:
        return main(*args, **kwargs) or 0
    except BrokenPipeError:  # the reader of a pipe left; nothing is left to say
        return 0
    except (Problem, OSError) as problem:
        return report(problem)
    except KeyboardInterrupt:
        terminal.note("stopped")
        return 130
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return report(EnvironmentProblem(f"out of memory: {first_line(error)}; use a smaller model or shorter texts"))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out: Python's own error, PyTorch's for a GPU, or its RuntimeError for a CPU."""
    on_gpu = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    return isinstance(error, (MemoryError, on_gpu)) or "DefaultCPUAllocator" in str(error)
