"""Output to the terminal: text that cannot harm it, in any encoding, with colour and bars where it can show them.

Standard library only: check.py and every error need this before anything else can be imported.
"""

import contextlib
import os
import sys
import time
import unicodedata
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm


# These control and format characters stay: line ends and tabs, soft hyphen, the marks of Arabic and Syriac
# numbers and verses, and the two joiners, without which Persian, Hindi and many emoji are written wrongly.
ALLOWED = frozenset("\n\t\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2\u200c\u200d")
LINE_SECONDS = 60.0  # between two lines of progress in a file


def harmless(text: str) -> str:
    """Show the control characters of `text` as signs: they could turn it around, hide text, or command the terminal.

    Line ends, tabs and the format characters that texts need stay.
    """

    def safe(char: str) -> str:
        if char in ALLOWED or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return char
        return chr(0x2400 + ord(char)) if ord(char) < 32 else f"‹{ord(char):04X}›"

    return "".join(map(safe, text))


def say(text: str, end: str = "\n") -> None:
    """Print a result on standard output, at once: an output that is full or gone is noticed here."""
    print(harmless(text), end=end, flush=True)


def note(text: str) -> None:
    """Print a remark for the person at the terminal on standard error. Results go to standard output."""
    with contextlib.suppress(OSError):  # a terminal that is gone must not stop what is being measured
        print(harmless(text), file=sys.stderr, flush=True)


def is_animated(stream: TextIO) -> bool:
    """Tell whether lines of this stream can be drawn again: it is a terminal that knows control characters."""
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Tell whether this stream is a terminal with colours and NO_COLOR is not set (no-color.org)."""
    return is_animated(stream) and not os.environ.get("NO_COLOR")


def progress_bar(*items: Any, disable: bool = False, **options: Any) -> "tqdm":
    """tqdm, silent where a bar would leave control characters in a file."""
    from tqdm import tqdm  # here: check.py runs without it

    return tqdm(*items, disable=disable or not is_animated(sys.stderr), **options)


class ProgressLines:
    """Progress where no bar can be drawn: a line at the start, then at most one every LINE_SECONDS."""

    def __init__(self, total: int, unit: str, title: str):
        self.total, self._words = total, (unit, title)
        self._n, self._start = 0, time.monotonic()
        self._last = self._start

    def __enter__(self) -> "ProgressLines":
        unit, title = self._words
        note(f"{title}: {self.total} {unit}s")
        return self

    def __exit__(self, *stop: object) -> None:
        pass

    def update(self) -> None:
        self._n, now = self._n + 1, time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last, spent, (unit, title) = now, (now - self._start) / 60, self._words
            left = spent / self._n * (self.total - self._n)
            note(f"{title}: {self._n} of {self.total} {unit}s after {spent:.0f} min, about {left:.0f} min left")


def progress(total: int, unit: str, title: str) -> "tqdm | ProgressLines":
    """Return a bar where one can be drawn, lines where not. `update()` counts one more."""
    if is_animated(sys.stderr):
        return progress_bar(total=total, unit=unit, desc=title, leave=False)
    return ProgressLines(total, unit, title)


def open_streams() -> None:
    """Give a closed output a place to go, and replace what an encoding lacks instead of raising an error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure") and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def flush_streams() -> OSError | None:
    """Write what is buffered. A stream that cannot is silenced for good.  -> why standard output failed, if it did"""
    failure = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())  # or Python would fail on the same bytes when it ends
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                failure = error
    return failure
