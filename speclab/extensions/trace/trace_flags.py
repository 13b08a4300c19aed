"""The flags of the trace and of the three commands that its first word chooses."""

import argparse
import re

from speclab.cli import flags, parsing

PROG = "python -m speclab.extensions.trace"
DRAFT_LENGTH = 4
# Fields of LoopFunctions that may be others: a page shows the token rule's tests, and the phases of the lab's loop.
SHOWN = ("accept", "keeps", "adapt")
SETTINGS = ("max_new_tokens", "seed", "top_k", "top_p")  # of a record that are flags of a decoding, too
CHOSEN = ("target", "draft", "draft_length")
FROM_RECORD = (*CHOSEN, *SETTINGS, "temperature")
DEFAULT = re.compile(r" \(default: (%\(default\)s|[^)])*\)")  # in the help of a flag
SHAPES = f"""The shapes of the tensors of one round, with a cache and without one. Nothing is decoded after that round.

{PROG} shapes
{PROG} shapes --prompt "def f(x):" -k 3
"""
PROFILE = f"""A profiler trace of a few steps of the baseline and a few rounds, for ui.perfetto.dev or chrome://tracing.

    {PROG} profile trace.json
    {PROG} profile trace.json.gz --draft ngram -k 6 --prompt "def f(x):"

Each step and each round is marked with its name. Both are greedy. A profiler slows everything down, so no time in it is
a measurement: compare.py measures.
"""
REPORT = f"""A comparison as one HTML page that needs no network: answer, pictures, a decoding with dials, all tables.

    python compare.py                                                                        # writes results/local.json
    {PROG} report results/local.json --out report.html

The decoding is made now: of the first standard prompt, or of --prompt, with the target, the first draft, its fastest
length, and the settings of the record. Flags change them. Where these models are not here it is left out.
"""


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return all flags of the trace. doc: its description."""
    parser = parsing.make_parser(doc or "", PROG)
    parser.add_argument(
        "file",
        nargs="?",
        type=parsing.some_path,
        default=parsing.DASH,
        metavar="FILE",
        help="write an HTML page; - prints lines in the terminal (default: -)",
    )
    _add_flags(parser, "[FILE]")
    flags.add_decoding_flags(parser)
    parser.set_defaults(uses=SHOWN)
    return parser


def shapes_parser() -> argparse.ArgumentParser:
    """Return all flags of `shapes`."""
    parser = parsing.make_parser(SHAPES, f"{PROG} shapes")
    _add_flags(parser, "", auto=False)
    parser.set_defaults(uses=("shapes",))
    return parser


def profile_parser() -> argparse.ArgumentParser:
    """Return all flags of `profile`."""
    parser = parsing.make_parser(PROFILE, f"{PROG} profile")
    parser.add_argument(
        "file", type=parsing.some_path, metavar="FILE", help="write it here; packed with the ending .gz"
    )
    _add_flags(parser, "FILE", auto=False)
    return parser


def report_parser() -> argparse.ArgumentParser:
    """Return all flags of `report`. What is left out is None, and comes from the record."""
    parser = parsing.make_parser(REPORT, f"{PROG} report")
    parser.add_argument("record", type=parsing.some_path, metavar="RECORD", help="results/NAME.json of a comparison")
    parser.add_argument("--out", type=parsing.some_path, metavar="FILE", required=True, help="write the page here")
    _add_flags(parser, "RECORD --out FILE", auto=False)
    flags.add_decoding_flags(parser)
    parser.set_defaults(**dict.fromkeys(FROM_RECORD))
    for action in parser._actions:  # argparse has no public name for them
        if action.dest in FROM_RECORD:
            action.help = DEFAULT.sub("", action.help or "", 1) + " (default: the record's)"
    return parser


OTHERS = {"shapes": shapes_parser, "profile": profile_parser, "report": report_parser}  # by the first word


def _add_flags(parser: argparse.ArgumentParser, words: str, auto: bool = True) -> None:
    """Add the flags of the models, the text and the draft.

    words: what the command takes before its flags. auto: whether -k auto is known.
    """
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("draft")
    flags.add_draft_flag(group)
    group.add_argument(
        "-k",
        "--draft-length",
        type=parsing.length_or_auto if auto else parsing.at_least(0),
        default=DRAFT_LENGTH,
        metavar="K",
        help=f"tokens per draft{', or auto: chosen in every round' if auto else ''} (default: {DRAFT_LENGTH})",
    )
    parser.usage = " ".join(filter(None, [parser.prog, words, "[flags]"]))
    parser.set_defaults(temperature=0.0, ignore_eos=False)
