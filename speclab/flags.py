"""What every script's command line is made of. Imports nothing heavy: check.py answers at once."""

import argparse
import os
import shlex
from pathlib import Path

from speclab.errors import UsageProblem


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> None:
        raise UsageProblem(f"{message}; see {self.prog} --help")


def make_parser(docstring: str) -> Parser:
    """A parser whose help is the script's docstring, examples included."""
    return Parser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)


def at_least(smallest: int):
    """An argparse type: a whole number not below `smallest`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{value} is too small, give {smallest} or more")
        return value

    return parse


def shown(path: Path) -> str:
    """A path as one would type it from the current directory."""
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive
        return str(path)


def command(script: Path, *words: str) -> str:
    """How to type a script of the lab from the current directory."""
    return shlex.join(["python", shown(script), *words])
