"""The flags of `python -m speclab.extensions.servers`, and what stands for those that are left out."""

import argparse

from speclab.cli import flags, parsing
from speclab.extensions.servers import installed
from speclab.extensions.servers.connection import check_url
from speclab.extensions.servers.server_record import Limits
from speclab.system.errors import UsageProblem

VLLM = "vllm"
VLLM_DRAFTS = "model,feature,ngram,suffix,block"  # the usual ones; what a build does not run is said in a line
MOST_AT_A_TIME, MOST_RANKS = 256, 64
SIZE_FLAGS = ("limit", "max_new_tokens", "repeats", "draft_length", "temperature")
# What the command line leaves open. limit 0: all prompts.
SIZES = {"default": (4, 64, 1, "4", "0"), "quick": (2, 48, 1, "4", "0"), "full": (0, 128, 1, "4", "0")}
LEVELS = {"default": "1,2,4,8,16", "quick": "1,4", "full": "1,2,4,8,16"}
OWN_ENGINE = "eager"  # of the lab's own texts and rounds


def make_parser(docstring: str) -> argparse.ArgumentParser:
    """All flags of the command."""
    parser = parsing.make_parser(docstring, "python -m speclab.extensions.servers")
    flags.add_model_flags(parser)
    flags.add_text_flags(parser)
    group = parser.add_argument_group("experiment")
    group.add_argument(
        "--draft",
        metavar="KIND",
        help=f"{installed.KINDS} (default: {VLLM_DRAFTS})",
    )
    group.add_argument("-k", "--draft-length", metavar="K,K", help="drafted tokens in every round (default: 4)")
    group.add_argument("--temperature", metavar="T,T", help="0 is greedy (default: 0)")
    group.add_argument(
        "--repeats", type=parsing.at_least(1), metavar="N", help="times that each server is asked each prompt"
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, 1 and 4 at a time")
    size.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    add_server_flags(parser)
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(max_new_tokens=None, engine=OWN_ENGINE, device_map=None)
    return parser


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with the defaults of their size wherever the command line gives none."""
    size = "quick" if args.quick else "full" if args.full else "default"
    defaults = dict(zip(SIZE_FLAGS, SIZES[size], strict=True))
    return flags.with_defaults(args, defaults | {"draft": VLLM_DRAFTS, "concurrency": LEVELS[size]})


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """What is about servers."""
    group = parser.add_argument_group("servers")
    group.add_argument(
        "--url",
        action="append",
        type=check_url,
        metavar="URL",
        help="ask a server that runs; once the one without speculation, then the one with it",
    )
    group.add_argument(
        "--concurrency",
        metavar="N,N",
        help=f"then ask so many at a time; none: do not (default: {LEVELS['default']})",
    )
    group.add_argument(
        "--tensor-parallel", type=parsing.at_least(1, MOST_RANKS), metavar="N", help="split every model over N ranks"
    )
    group.add_argument(
        "--vllm-flags", metavar="WORDS", help='further flags of every server, such as "--max-num-seqs 64"'
    )
    group.add_argument(
        "--goodput",
        metavar="FIRST,TOKEN",
        help="milliseconds to the first chunk and per token, the most with which a request counts",
    )
    group.add_argument(
        "--schedule",
        action="store_true",
        help="under load also a server for each draft whose k follows the load",
    )


def limits_of(args: argparse.Namespace) -> Limits | None:
    """The two numbers of --goodput, in seconds; None where they are not given."""
    if args.goodput is None:
        return None
    try:
        first, token = (float(word) / 1e3 for word in args.goodput.split(","))
        good = 0 < first < float("inf") and 0 < token < float("inf")
    except ValueError:
        good = False
    if not good:
        raise UsageProblem(f"--goodput {args.goodput}: give two numbers above 0, in milliseconds: --goodput 500,50")
    return Limits(first=first, token=token, given=True)
