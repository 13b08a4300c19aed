"""The flags of the command."""

import argparse

from speclab.cli import flags, parsing

LONGEST = 64  # tokens of a draft


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the command. doc: its description."""
    parser = parsing.make_parser(doc or "", "python -m speclab.extensions.margins")
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser.add_argument_group("draft"), "model,ngram")
    group = parser.add_argument_group("replay")
    group.add_argument("-k", "--draft-length", type=parsing.at_least(1, LONGEST), default=4, metavar="K", help="(4)")
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser
