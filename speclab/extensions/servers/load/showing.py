"""`--load`: asks one server, or two in turns, with more and more users, and shows where speculation stops paying."""

import argparse
import datetime
import itertools
import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from speclab.extensions.servers import screen
from speclab.extensions.servers.ask.asking import Prompt
from speclab.extensions.servers.ask.engines import Server
from speclab.extensions.servers.load import load_screen
from speclab.extensions.servers.load.levels import Level
from speclab.extensions.servers.load.users import LONGEST
from speclab.extensions.servers.load.work import PASSES, measure, work
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import check_writable, shown, write_whole
from speclab.system.terminal import note, say

FORMATS = (".png", ".svg", ".pdf")


def check(args: argparse.Namespace) -> None:
    """Raise a Problem where the chart cannot be drawn or written."""
    if args.chart:
        if args.chart.suffix not in FORMATS:
            raise UsageProblem(f"--chart {shown(args.chart)}: give a name that ends in {', '.join(FORMATS)}")
        from speclab.extensions.servers.load import load_chart  # here: it imports matplotlib, which is slow

        load_chart.check(args.chart)
        check_writable(args.chart, "--chart")
        _check_numbers(args.chart.with_suffix(".json"))


def _check_numbers(path: Path) -> None:
    """Raise UsageProblem where another kind of file has the name of the file of numbers: it would be lost."""
    if not path.exists():
        return
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        found = None
    if not (isinstance(found, dict) and {"conditions", "loads"} <= set(found)):
        raise UsageProblem(f"--chart: {shown(path)} is another kind of file, and would be replaced; give another name")


def show(args: argparse.Namespace, speculative: Server, plain: Server | None, prompts: Sequence[Prompt]) -> int:
    """Measure, print, and write the chart with its numbers beside it.  -> exit code: 1 where a check fails, and that of
    the problem that has ended it before the last load. After Ctrl-C it is that of the finished loads, as in a
    comparison: what they say is whole, and the numbers beside the chart say that not all loads were asked."""
    windows = len(args.load) * PASSES * (2 if plain else 1)
    longest = f"up to {LONGEST * args.load_seconds:g} s where answers take long"
    note(f"  {windows} windows of {args.load_seconds:g} s, {longest}, and a warm-up before each")

    def orders(first: int) -> Iterator[tuple[str, int]]:
        return work(prompts, args.max_new_tokens, itertools.count(first), alter=args.texts is None)

    levels, stop = measure(speculative, plain, args.load, args.load_seconds, orders, not args.raw)
    say("\n" + screen.joined(load_screen.lines(levels)))
    if args.chart:
        from speclab.extensions.servers.load import load_chart

        load_chart.draw(levels, speculative.model, args.chart)
        write_whole(args.chart.with_suffix(".json"), _record(args, speculative, plain, levels, stop is not None))
    if isinstance(stop, EnvironmentProblem):  # a line has said which loads are lost
        return stop.exit_code
    return int(not all(one.good for level in levels for one in level.checks))


def _record(
    args: argparse.Namespace, speculative: Server, plain: Server | None, levels: Sequence[Level], ended_early: bool
) -> str:
    engine = f"{speculative.engine} {speculative.version}".strip()
    conditions: dict[str, Any] = {"engine": engine, "model": speculative.model}
    conditions |= {"has_plain_server": plain is not None, "max_new_tokens": args.max_new_tokens, "temperature": 0}
    conditions |= {"ended_early": ended_early}  # not all loads were asked
    conditions |= {"least_window_seconds": args.load_seconds, "own_prompts": args.texts is None}
    found = _head() | {"conditions": conditions, "loads": load_screen.numbers(levels)}
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _head() -> dict[str, Any]:
    """Return when, where and with what the client ran. It knows nothing of the server's machine."""
    return {
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "machine": {"of": "the client", "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), "httpx2": metadata.version("httpx2")},
    }
