"""Every script's command line is made of these parts. Nothing heavy is imported, so that check.py answers at once."""

import argparse
import difflib
import functools
from pathlib import Path
from typing import Any, NoReturn

from speclab.system.errors import UsageProblem

AUTO = "auto"  # of -k: the length is chosen in every round
LARGEST = 256  # of the numbers in a list; every draft length up to the longest is calibrated
LARGEST_SEED = 2**32 - 1  # with room for the numbers that are made from it: PyTorch takes 64 bits


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, which name the flag that an unknown one is nearly."""

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        near = difflib.get_close_matches(unknown, self._option_string_actions, 1, 0.8)
        meant = f"; did you mean {near[0]}?" if near else ""
        if unknown and not unknown.startswith("-") and "--prompt" in self._option_string_actions:
            meant = '; a text is given with --prompt "TEXT"'
        raise UsageProblem(f"{message}{meant}; see {self.prog} --help")


def make_parser(docstring: str, prog: str | None = None) -> Parser:
    """Return a parser whose help is the docstring. prog: how it is called, where that is not its file's name."""
    # One line of usage and, where words allow that, one for a flag: a help fits on a screen.
    form = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=26, width=100)
    parser = Parser(prog, "%(prog)s [options]", docstring, formatter_class=form, add_help=False)
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)  # who reads the help knows it
    return parser


def number(kind: type, smallest: float, largest: float = 2**31 - 1, or_else: str = ""):
    """Return an argparse type: an int or float from `smallest` to `largest`. or_else: what else may be typed."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' * (kind is int)}number{or_else}") from None
        if not smallest <= value <= largest:
            what = f"too large, give {largest} or less" if value > largest else f"too small, give {smallest} or more"
            raise argparse.ArgumentTypeError(f"{value} is {what}")
        return value

    return parse


at_least = functools.partial(number, int)
seed, positive = at_least(0, LARGEST_SEED), number(float, 1e-9)


def some_name(text: str) -> str:
    """Read a word that is not empty, as an unset variable would leave it."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty, give a name")
    return text


def some_path(text: str) -> Path:
    return Path(some_name(text))


def plain_name(text: str) -> str:
    """Read the name that all files of a run begin with."""
    if not text.strip(" .") or not text.isprintable() or Path(text).name != text or len(text.encode()) > 128:
        raise argparse.ArgumentTypeError(f"{text!r} is no plain word of 1 to 128 bytes; --out-dir chooses the folder")
    return text


def length_or_auto(text: str) -> int | str:
    return AUTO if text.strip() == AUTO else number(int, 0, LARGEST, " or auto")(text)


def lengths(text: str, flag: str) -> tuple[list[int], bool]:
    """Read draft lengths with commas between them; `auto` may be one.  -> sorted numbers, whether auto is there"""
    words = [word.strip() for word in text.split(",")]
    others = [word for word in words if word != AUTO]
    return numbers(",".join(others), int, 0, flag, or_else=" or auto") if others else [], AUTO in words


def numbers(text: str, kind: type, smallest: float, flag: str, largest: float = LARGEST, or_else: str = "") -> list:
    """Read a comma-separated list from the command line, sorted, without repeats."""
    try:
        return sorted(set(map(number(kind, smallest, largest, or_else), text.split(","))))
    except argparse.ArgumentTypeError as error:
        example = "2,4,8" if kind is int else "0,0.8"
        raise UsageProblem(f"{flag} {text}: {error}; give a list as in {flag} {example}") from None
