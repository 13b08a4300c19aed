"""Output to the terminal: text that cannot harm it, in any encoding, and bars where it can show them.

Standard library only: check.py and every error need this before anything else can be imported.
"""

import contextlib
import sys
import unicodedata
from typing import Any

# These control and format characters stay: line ends and tabs, soft hyphen, the marks of Arabic and Syriac
# numbers and verses, and the two joiners, without which Persian, Hindi and many emoji are written wrongly.
ALLOWED = frozenset("\n\t\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2\u200c\u200d")


def harmless(text: str) -> str:
    """Show the control characters of `text` as signs: they could turn it around, hide text, or command the terminal."""

    def safe(char: str) -> str:
        if char in ALLOWED or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return char
        return chr(0x2400 + ord(char)) if ord(char) < 32 else f"‹{ord(char):04X}›"

    return "".join(map(safe, text))


def say(text: str, end: str = "\n") -> None:
    """Print a result on standard output, at once: an output that is full or gone is noticed here."""
    try:
        print(harmless(text), end=end, flush=True)
    except OSError as error:
        error.filename = "standard output"
        raise


def note(text: str) -> None:
    """Print a remark for the person at the terminal on standard error. Results go to standard output."""
    with contextlib.suppress(OSError):  # a terminal that is gone must not stop what is being measured
        if sys.stderr:  # None where it was closed before the start; print would then take standard output
            print(harmless(text), file=sys.stderr, flush=True)


def progress(total: int, unit: str, title: str) -> Any:
    """Return a tqdm bar whose `update()` counts one more. Where there is no terminal, a line says what begins."""
    from tqdm import tqdm  # here: check.py runs without it

    bar = tqdm(total=total, unit=unit, desc=title, leave=False, disable=not (sys.stderr and sys.stderr.isatty()))
    if bar.disable:
        note(f"{title}: {total} {unit}s")
    return bar
