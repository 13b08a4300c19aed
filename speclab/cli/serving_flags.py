"""The flags of `compare.py --engine vllm`, and those that do not go with it."""

import argparse

from speclab.cli import parsing
from speclab.lab.serving.connection import check_url
from speclab.records.serving import Limits
from speclab.system.errors import UsageProblem

VLLM = "vllm"
VLLM_DRAFTS = "model,feature,ngram,suffix,block"  # the usual ones; what a build does not run is said in a line
MOST_AT_A_TIME, MOST_RANKS = 256, 64
# Flags that look at the lab's own loop, or are a run of another kind.
NOT_HERE = (
    *("plan", "verify_plan", "sweep", "batch", "padded", "by_kind", "report", "trace", "profile", "impl"),
    *("tree", "verbose", "brief", "device_map"),
)
ONLY_HERE = ("url", "concurrency", "tensor_parallel", "vllm_flags", "goodput", "schedule")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What only --engine vllm has."""
    group = parser.add_argument_group("with --engine vllm")
    group.add_argument(
        "--url",
        action="append",
        type=check_url,
        metavar="URL",
        help="ask servers that run already: first the one without speculation, then, given again, the one with it; its "
        "draft and k are --draft and -k",
    )
    group.add_argument(
        "--concurrency",
        metavar="N,N",
        help="then ask so many at a time; none: do not (default: 1,2,4,8,16; --quick 1,4)",
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
        help="milliseconds to the first chunk and per token after it that a request under load must meet to count "
        "(default: 4 and 2 times the plain server's medians at one request at a time)",
    )
    group.add_argument(
        "--schedule",
        action="store_true",
        help="under load also one server for each draft whose k follows the load: the best measured k at each level",
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


def check_others(args: argparse.Namespace) -> None:
    """Raise UsageProblem where a flag of these comes with an engine of the lab's own."""
    if flag := parsing.first_given(args, *ONLY_HERE):
        raise UsageProblem(f"{flag} is about vLLM's servers; leave it out, or add --engine {VLLM}")
