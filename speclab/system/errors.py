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
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from speclab.system import terminal

LONGEST_LINE = 800  # characters of an error
_flags = False  # whether messages name settings as flags
CTRL_C = 130  # the exit code
SAME_REQUEST_SECONDS = 1.0  # a second signal within them is the same request: some programs send it twice


class Problem(Exception):
    """Base of the errors that are shown as one line."""

    exit_code = 1


class UsageProblem(Problem):
    """The words of the command line are wrong."""

    exit_code = 2


class EnvironmentProblem(Problem):
    """A file, a model, a device or a library is not what the command needs."""

    exit_code = 3


class Panic(ValueError):
    """A panic of a library in Rust, which itself is no Exception."""


def is_panic(error: BaseException) -> bool:
    """Tell whether a library in Rust gave up, as tokenizers does where a regular expression takes too many steps."""
    return type(error).__name__ == "PanicException"  # each library has a type of its own, which cannot be imported


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


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic inside into a Panic, and drop the page of lines that it writes to standard error.

    Everything else that any thread writes to standard error in the meantime is dropped, too: use this for short calls
    beside which no decoding is timed.
    """
    try:
        with terminal.without_stderr():
            yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise Panic(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """Return the message of a library's error, short enough for one of the lab's lines."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


class Stopped(KeyboardInterrupt):
    """The user pressed Ctrl-C, or a signal asked for the same: keep what is measured, write it down, and end."""

    def __init__(self, number: int):
        super().__init__()
        self.exit_code = 128 + number


def reports_problems(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap the main() of a script: what a user can solve becomes one line on stderr and an exit code.

    A fault of the lab keeps its traceback. SIGTERM and SIGHUP arrive as Ctrl-C does.
    """

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        terminal.open_streams()
        with on_signals(_stop), as_flags():
            try:
                code = _run(main, *args, **kwargs)
            finally:
                failure = terminal.flush_streams()
            if failure and not code:
                code = report(failure)
            return code

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
    except Problem as problem:
        return report(problem)
    except BrokenPipeError:  # the reader of a pipe left; nothing is left to say
        return 0
    except OSError as error:
        return report(error)
    except KeyboardInterrupt as stop:
        terminal.note("stopped")
        return getattr(stop, "exit_code", CTRL_C)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        why = (str(error).splitlines() or ["no more to be had"])[0]
        return report(EnvironmentProblem(f"out of memory: {why}; use a smaller model or shorter texts"))
    except BaseException as error:
        if not is_panic(error):
            raise
        why = f"a library gave up on a text: {first_line(error)}"
        return report(EnvironmentProblem(f"{why}; shorten the prompt, or choose another model"))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out: Python's own error, PyTorch's for a GPU, or PyTorch's for a CPU, which has no type
    of its own."""
    on_gpu = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    on_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return on_cpu or isinstance(error, (MemoryError, on_gpu))


def _stop(stop: Stopped) -> NoReturn:
    raise stop


@contextlib.contextmanager
def on_signals(act: Callable[[Stopped], object]) -> Iterator[None]:
    """Let SIGINT, SIGTERM and, where the system has it, SIGHUP call `act`; one that the caller ignores stays
    ignored."""
    last = -SAME_REQUEST_SECONDS

    def receive(number: int, _frame: object) -> None:
        nonlocal last
        if time.monotonic() - last >= SAME_REQUEST_SECONDS:
            last = time.monotonic()
            act(Stopped(number))

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_at_the_end() -> Iterator[None]:
    """Finish the block without a break: a signal that comes in the meantime is raised after it."""
    asked: list[Stopped] = []
    with on_signals(asked.append):
        yield
    if asked:
        raise asked[0]
