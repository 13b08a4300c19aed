"""Asks a server under load, or two in turns, and prints the screen. The exit code says whether it may be believed."""

import argparse
import itertools
from collections.abc import Iterator, Sequence

from speclab.extensions.servers import screen
from speclab.extensions.servers.ask.asking import Prompt
from speclab.extensions.servers.ask.engines import Server
from speclab.extensions.servers.load import load_screen
from speclab.extensions.servers.load.users import LONGEST
from speclab.extensions.servers.load.work import PASSES, measure, work
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note, say


def show(args: argparse.Namespace, speculative: Server, plain: Server | None, prompts: Sequence[Prompt]) -> int:
    """Measure and print.  -> exit code: 1 where a check fails, and that of the problem that has ended it before the
    last load. After Ctrl-C it is that of the finished loads, as in a comparison."""
    windows = len(args.load) * PASSES * (2 if plain else 1)
    longest = f"up to {LONGEST * args.load_seconds:g} s where answers take long"
    note(f"  {windows} windows of {args.load_seconds:g} s, {longest}, and a warm-up before each")

    def orders(first: int) -> Iterator[tuple[str, int]]:
        return work(prompts, args.max_new_tokens, itertools.count(first), alter=args.texts is None)

    levels, stop = measure(speculative, plain, args.load, args.load_seconds, orders, not args.raw)
    say("\n" + screen.joined(load_screen.lines(levels)))
    if isinstance(stop, EnvironmentProblem):  # a line has said which loads are lost
        return stop.exit_code
    return int(not all(one.good for level in levels for one in level.checks))
