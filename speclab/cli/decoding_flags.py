"""The flags of the two decoding scripts. Reading them loads nothing heavy."""

import argparse

from speclab.cli import flags, parsing

DRAFT_LENGTH = 4


def make_parser(docstring: str, speculative: bool) -> argparse.ArgumentParser:
    """Return all flags of either script. speculative: those of the draft, too."""
    parser = parsing.make_parser(docstring)
    flags.add_shared_flags(parser)
    flags.add_printing_flags(flags.add_decoding_flags(parser))
    if speculative:
        group = parser.add_argument_group("draft")
        flags.add_draft_flag(group)
        group.add_argument(
            "-k",
            "--draft-length",
            type=parsing.length_or_auto,
            metavar="K",
            help=f"tokens per draft, or auto: chosen in every round (default: {DRAFT_LENGTH})",
        )
        flags.add_rule_flag(group)
    return parser


def check_words(docstring: str, speculative: bool) -> None:
    """End the program with one line and exit code 2 where the command line of either script is mistyped."""
    parsing.check_words(make_parser(docstring, speculative))
