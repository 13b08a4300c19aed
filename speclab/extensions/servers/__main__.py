"""Why is speculative decoding not faster on the server you already run? No model is loaded here, and no torch.

    python -m speclab.extensions.servers --url http://127.0.0.1:8000
    python -m speclab.extensions.servers --url http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001
    python -m speclab.extensions.servers --url http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001 --load 1,2,4,8
    python -m speclab.extensions.servers --before a.txt --after b.txt --plain-ms 21.0 --spec-ms 13.3
    python -m speclab.extensions.servers --acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 19.5

The first form asks the server a dozen prompts, the second one asks the same server without speculation, too, in turns.
Where there is no room for both, --plain-url alone says what to give as --plain-ms later.
The others use what you have written down: two /metrics pages of vLLM or llama-server, or the rate that the server
prints. A key for the servers stands in the variable SPECLAB_API_KEY. See docs/serving.md. Exit code 1 where two servers
write different texts that no tie explains, or sampling is broken.
"""

import argparse
import importlib.util
import math
import sys
from pathlib import Path

from speclab.cli import parsing
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems

NEEDS = {"httpx2": "httpx2", "prometheus_client": "prometheus-client", "tabulate": "tabulate", "numpy": "numpy"}

MOST_USERS = 256  # at a time


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Ask, or read what is written down, and print the first screen.  -> exit code"""
    args = make_parser().parse_args(argv)
    if missing := [package for module, package in NEEDS.items() if importlib.util.find_spec(module) is None]:
        raise EnvironmentProblem(
            f"{missing[0]} is not installed for this Python; type: pip install {' '.join(missing)}"
        )
    from speclab.extensions.servers import running, written  # here: what they import may be missing

    if args.load and not args.url:
        raise UsageProblem("--load asks a server; give --url and --load 1,2,4,8")
    if args.plain_url and not args.url:
        return running.show_plain(args)
    return running.show(args) if args.url else written.show(args)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers")
    ask = parser.add_argument_group("a server that runs")
    ask.add_argument("--url", metavar="URL", help="the server that speculates")
    ask.add_argument(
        "--plain-url", metavar="URL", help="the same model on a server that does not; alone: its time per token"
    )
    ask.add_argument("--texts", type=Path, metavar="FILE", help='prompts of your own, each after a line "%%%% KIND"')
    ask.add_argument(
        "--raw", action="store_true", help="continue the prompts as they are, for a model without a chat template"
    )
    ask.add_argument(
        "--max-new-tokens", type=parsing.at_least(16, 4096), default=96, metavar="N", help="of an answer (default: 96)"
    )
    ask.add_argument(
        "--seconds", type=_amount, default=120.0, metavar="S", help="no new prompt after them (default: 120)"
    )
    parser.add_argument(
        "--kind", choices=("model", "head", "lookup"), help="what drafts, where the server does not say it: causes"
    )
    load = parser.add_argument_group("a server under load")
    load.add_argument(
        "--load", type=_loads, metavar="N,N", help="users at a time, such as 1,2,4,8: where does it stop paying?"
    )
    load.add_argument(
        "--load-seconds", type=_amount, default=15.0, metavar="S", help="of each window, at least (default: 15)"
    )
    known = parser.add_argument_group("what is written down")
    known.add_argument("--before", type=Path, metavar="FILE", help="a /metrics page, and")
    known.add_argument("--after", type=Path, metavar="FILE", help="a later one of the same server")
    known.add_argument("--acceptance", type=_share, metavar="F", help="accepted / drafted, as servers print it")
    known.add_argument(
        "-k", "--draft-length", type=parsing.at_least(1, 256), metavar="K", help="drafted tokens of a round"
    )
    known.add_argument("--spec-ms", type=_amount, metavar="MS", help="milliseconds per token with speculation")
    known.add_argument("--plain-ms", type=_amount, metavar="MS", help="and without it; also with --url")
    return parser


def _amount(text: str) -> float:
    """Parse a number above 0."""
    value = _number(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount, give a number above 0")
    return value


def _loads(text: str) -> list[int]:
    """Parse numbers of users at a time, in rising order."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not 0 < found[0] <= found[-1] <= MOST_USERS:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers from 1 to {MOST_USERS}, such as 1,2,4,8")
    return found


def _share(text: str) -> float:
    """Parse a share. One above 1 may be meant as a percentage, so it is not taken."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share, give a number from 0 to 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


if __name__ == "__main__":
    sys.exit(main())
