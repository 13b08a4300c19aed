"""The flags of the command."""

import argparse

from speclab.cli import flags, parsing


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the command. doc: its description."""
    parser = parsing.make_parser(doc or "", "python -m speclab.extensions.plan")
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("plan")
    group.add_argument("--verify", action="store_true", help="plan on half of the prompts, then measure on the rest")
    kinds = "as of compare.py, but no drafts with branches and no hybrids (default: %(default)s)"
    flags.add_draft_flag(group, "model,ngram", kinds)
    group.add_argument(
        "--acceptance-profile",
        type=parsing.some_path,
        metavar="FILE",
        help="acceptance by position from a speculation_profile.json, not from the draft",
    )
    flags.add_run_flags(
        group,
        "lengths to try (default: 0 to 16; --quick 0 to 8)",
        "0 is greedy (default: 0)",
        "times that the baseline decodes each prompt",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, k = 0 to 8")
    size.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(max_new_tokens=None, temperature="0")
    return parser
