"""The flags of the command and of `decode`."""

import argparse

from speclab.cli import flags, parsing

PROG = "python -m speclab.extensions.batch"
DRAFTS = "model,ngram"
BATCHES = "1,2,4,8,16"
MOST_ROWS = 1024
SIZE = 4
DRAFT_LENGTH = 4
NO_DRAFT = "none"  # of --draft
DECODE_HELP = f"""Decodes all prompts at once, at most B side by side, prints the texts and says how fast it was.

    {PROG} decode                   # four prompts side by side, with the lab's draft model
    {PROG} decode -B 8 --limit 0    # all standard prompts, eight at a time
    {PROG} decode --draft none      # token by token, without a draft

The texts are those that each prompt has alone, in the prompts' order. A row whose text has ended takes the next prompt.
"""


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the comparison. doc: its description."""
    parser = parsing.make_parser(doc or "", PROG)
    flags.add_engine_flag(flags.add_model_flags(parser))
    flags.add_text_flags(parser)
    group = parser.add_argument_group("experiment")
    group.add_argument(
        "-B",
        "--sizes",
        type=_typed_sizes,
        metavar="B,B",
        default=BATCHES,
        help="texts that are decoded side by side (default: %(default)s)",
    )
    flags.add_draft_flag(group, DRAFTS, "as of compare.py; several with commas (default: %(default)s)")
    group.add_argument(
        "-k",
        "--draft-length",
        metavar="K,K",
        help="tokens per draft (default: 2,4,6; --quick 2,4)",
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    group.add_argument(
        "--repeats",
        type=parsing.at_least(1),
        default=1,
        metavar="N",
        help="times each prompt is decoded at least (default: 1)",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 32 tokens, k = 2, 4")
    size.add_argument("--full", action="store_true", help="128 tokens of each prompt; by default 48")
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(max_new_tokens=None, device_map=None)
    return parser


def decode_parser() -> argparse.ArgumentParser:
    """Return all flags of `decode`."""
    parser = parsing.make_parser(DECODE_HELP, f"{PROG} decode")
    flags.add_engine_flag(flags.add_model_flags(parser))
    flags.add_text_flags(parser)
    group = flags.add_decoding_flags(parser)
    group.add_argument(
        "-B",
        "--size",
        type=parsing.at_least(1, MOST_ROWS),
        default=SIZE,
        metavar="B",
        help="prompts that are decoded side by side (default: %(default)s)",
    )
    kinds = f"as of optimized_speculative.py; {NO_DRAFT}: token by token (default: %(default)s)"
    flags.add_draft_flag(group, help=kinds, besides=(NO_DRAFT,))
    group.add_argument(
        "-k",
        "--draft-length",
        type=parsing.at_least(0),
        metavar="K",
        help=f"tokens per draft (default: {DRAFT_LENGTH})",
    )
    parser.set_defaults(device_map=None)
    return parser


def batch_sizes(text: str) -> list[int]:
    """Return the numbers of texts in a batch that were typed behind -B. Raises UsageProblem where they are wrong."""
    return parsing.numbers(text, int, 1, "-B", MOST_ROWS)


def _typed_sizes(text: str) -> str:
    batch_sizes(text)
    return text


OTHERS = {"decode": decode_parser}  # by the first word
