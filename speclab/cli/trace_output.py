"""--trace: its flag, the check of its file, and what is written there."""

import argparse
import sys
from pathlib import Path

from speclab.cli import parsing
from speclab.lab.tracing.trace import Trace
from speclab.present.trace_page import page
from speclab.present.trace_terminal import terminal
from speclab.system.files import check_writable, shown, write_whole
from speclab.system.terminal import note, wants_colour


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--trace, and --trace-shapes (speclab/lab/tracing/shapes.py)."""
    add_trace_flag(parser)
    parser.add_argument(
        "--trace-shapes", action="store_true", help="print the shapes of one round's tensors and decode nothing"
    )


def add_trace_flag(parser: argparse._ActionsContainer) -> None:
    """--trace FILE"""
    parser.add_argument(
        "--trace",
        type=parsing.some_path,
        metavar="FILE",
        help="then decode the first prompt once more for a picture (HTML); - for the terminal",
    )


def check_path(path: Path | None) -> None:
    """Everything that can be wrong with --trace's file is said before anything is decoded."""
    if path not in (None, parsing.DASH):
        check_writable(path, "--trace")


def write(trace: Trace, path: Path) -> None:
    """To the file, whole or not at all, or to the terminal."""
    if path == parsing.DASH:
        print(terminal(trace, wants_colour(sys.stdout)), end="")
        return
    write_whole(path, page(trace))
    note(f"wrote {shown(path)}; open it in a browser")
