"""The flags of the command."""

import argparse

from speclab.cli import flags, parsing

NAMES = (
    "draft-length",
    "acceptance",
    "temperature",
    "output-length",
    "context",
    "draft-kind",
    "mismatch",
    "definitions",
)
ALL = "all"


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the command. doc: its description."""
    parser = parsing.make_parser(doc or "", "python -m speclab.extensions.sweeps")
    parser.add_argument("sweep", choices=[*NAMES, ALL], metavar="NAME", help="what to change, see above")
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("experiment")
    kinds = "as of compare.py, but no drafts with branches (default: model,ngram; acceptance has dials)"
    flags.add_draft_flag(group, None, kinds)
    flags.add_run_flags(
        group,
        "tokens per draft (default: 4; draft-length 0 to 16)",
        "0 is greedy (default: 0; temperature 0 to 1.2)",
        "times that each arm decodes each prompt (default: 1)",
    )
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(max_new_tokens=None)
    return parser
