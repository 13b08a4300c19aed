"""This file holds the flags of the command. It imports nothing slow, so a mistyped flag is answered at once."""

import argparse

from speclab.cli import flags, parsing
from speclab.system.paths import OUTPUT

LONGEST = 64  # tokens of a draft


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the command. doc: its description."""
    parser = parsing.make_parser(doc or "", "python -m speclab.extensions.margins")
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser.add_argument_group("draft"), "model,ngram")
    group = parser.add_argument_group("replay")
    group.add_argument("-k", "--draft-length", type=parsing.at_least(1, LONGEST), default=4, metavar="K", help="(4)")
    out = parser.add_argument_group("results")
    out.add_argument("--out-dir", type=parsing.some_path, default=OUTPUT, help="folder for results/ and plots/")
    out.add_argument("--name", type=parsing.plain_name, default="local", help="of this run's files (default: local)")
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser
