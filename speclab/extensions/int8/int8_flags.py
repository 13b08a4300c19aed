"""The flags of the command."""

import argparse

from speclab.cli import flags, parsing


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the command. doc: its description."""
    parser = parsing.make_parser(doc or "", "python -m speclab.extensions.int8")
    flags.add_shared_flags(parser)
    parser.set_defaults(limit=1, max_new_tokens=64)
    return parser
