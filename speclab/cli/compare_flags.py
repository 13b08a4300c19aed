"""The flags of compare.py, and the values of those that are left out. Reading them loads nothing heavy."""

import argparse

from speclab.cli import flags, parsing
from speclab.models.names import LAB_TARGET
from speclab.models.padded import sizes

# The defaults of what the command line leaves open, by the size of the run. limit 0 means all prompts.
SIZE_FLAGS = ("limit", "max_new_tokens", "repeats", "draft_length", "temperature")
SIZES = {
    "default": (4, 64, 1, "2,4,6,auto", "0,0.8"),
    "quick": (2, 48, 1, "2,4", "0,0.8"),
    "full": (0, 128, 1, "2,4,6,auto", "0,0.8"),
}
ANSWER_TOKENS = 192  # of an answer to one of --texts, at most
USUAL_DRAFTS = "model,ngram"
LAB_DRAFTS = "model,feature,hybrid"  # of a comparison with the lab's own target


def size_of(args: argparse.Namespace) -> str:
    """Return the size of the run, one of SIZES."""
    return "quick" if args.quick else "full" if args.full else "default"


def make_parser(docstring: str) -> argparse.ArgumentParser:
    """Return all flags of compare.py."""
    parser = parsing.make_parser(docstring)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("experiment")
    flags.add_draft_flag(group, None, f"what drafts, several with commas; {flags.DRAFT_HELP}")
    flags.add_rule_flag(group)
    flags.add_run_flags(
        group,
        "tokens per draft; auto: chosen in every round (default: 2,4,6,auto)",
        "0 is greedy (default: 0,0.8)",
        "times that each arm decodes each prompt (default: 1)",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, k = 2, 4")
    size.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    group.add_argument(
        "--no-padded", action="store_true", help="leave out the short run with the lab's pair padded to a larger size"
    )
    group = parser.add_argument_group("results")
    group.add_argument("--brief", action="store_true", help="print the table alone")
    group.add_argument(
        "--verbose", action="store_true", help="print all tables, also of each kind of prompt, and what a round reads"
    )
    flags.add_output_flags(group)
    parser.set_defaults(max_new_tokens=None)
    return parser


def filled(args: argparse.Namespace, size: str) -> argparse.Namespace:
    """Return the arguments, with the defaults of this size wherever the command line gives none."""
    is_lab = args.target == LAB_TARGET or sizes.is_lab_size(args.target)
    drafts = LAB_DRAFTS if is_lab else USUAL_DRAFTS
    defaults = {"draft": drafts} | dict(zip(SIZE_FLAGS, SIZES[size], strict=True))
    if args.texts:
        defaults["max_new_tokens"] = ANSWER_TOKENS
    filled = flags.with_defaults(args, defaults)
    filled.has_typed_lengths = args.draft_length is not None
    return filled


def wants_padded(args: argparse.Namespace, size: str) -> bool:
    """Tell whether the lab's pair is measured at a larger size as well. size: the size of the run, as in SIZES."""
    from speclab.lab import padded_pair  # here: it needs torch

    drafts_nothing = parsing.lengths(args.draft_length, "-k") == ([0], False)
    is_lab = args.target == LAB_TARGET and not drafts_nothing
    usable = is_lab and size in ("default", "full") and padded_pair.padded_kinds(args.draft.split(","), "lab:50m")
    return bool(usable) and not args.no_padded
