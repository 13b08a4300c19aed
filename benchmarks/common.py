"""The parts that the benchmarks share: flags, the start of a record, and pages."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draft_models import ModelDrafter
from speclab.cli.parsing import plain_name, some_path
from speclab.drafts import registry
from speclab.models.setup import Setup
from speclab.present.screen import busy_line, circumstances
from speclab.present.tables import Block, Heading, show
from speclab.records import files
from speclab.records.files import Head
from speclab.system import terminal
from speclab.system.errors import UsageProblem
from speclab.system.files import OUTPUT, check_writable, shown, write_all, write_whole


@dataclass(kw_only=True)
class BenchmarkRun(Head):
    """The fields that the records of all benchmarks share. They hold seconds and counts; pages make ratios of them."""

    benchmark: str
    schema_version: Literal[2]


def add_result_flags(parser: argparse.ArgumentParser, benchmark: str) -> None:
    group = parser.add_argument_group("results")
    where = f"holds results/ (default: {shown(OUTPUT)})".replace("%", "%%")
    group.add_argument("--out-dir", type=some_path, default=OUTPUT, help=where)
    group.add_argument("--name", type=plain_name, default="local", help="of this run's files (default: local)")
    parser.set_defaults(benchmark=benchmark)


def check_result_flags(args: argparse.Namespace) -> None:
    for ending in (".json", ".md"):
        check_writable(_result(args, ending), "--out-dir")


def _result(args: argparse.Namespace, ending: str) -> Path:
    return args.out_dir / "results" / f"{args.name}-{args.benchmark}{ending}"


def model_drafter(kind: str, setup: Setup, seed: int, why: str) -> ModelDrafter:
    """A drafter that is a plain model. Raises UsageProblem, with `why` and what else to type, where it is not."""
    drafter: Any = registry.make(kind, setup, seed)
    if not drafter.is_model:
        raise UsageProblem(f"--draft {kind}: {why}; give model, a folder or a hub name")
    return drafter


def head_of(args: argparse.Namespace, setup: Setup, stopped: bool = False, **settings: Any) -> dict[str, Any]:
    """The fields of BenchmarkRun that say what ran, where and how. stopped: whether something ended it early. settings:
    the choices of the flags."""
    settings = {**setup.recorded, "seed": args.seed, "why_engine": setup.why_engine, **settings}
    what = {"benchmark": args.benchmark, "schema_version": 2, "interrupted": stopped, "settings": settings}
    return {**what, **files.when_and_where(setup.device)}


def finish(
    args: argparse.Namespace, run: Any, page: Callable[[Any], list[Block]], stop: BaseException | None = None
) -> int:
    """Write the record and the page to files, and print the page to standard output.  -> exit code

    stop: what ended the measurement early; a problem is raised now that everything is written.
    """
    write_all(
        [
            lambda: write_whole(_result(args, ".json"), files.to_json(run)),
            lambda: write_whole(_result(args, ".md"), terminal.harmless(show(page(run), markdown=True))),
            lambda: terminal.say(show(page(run)), end=""),
        ]
    )
    if stop and not isinstance(stop, KeyboardInterrupt):
        raise stop
    return 0


def begin(title: str, run: BenchmarkRun) -> list[Block]:
    stopped = "Stopped before the end: only what was complete by then is here." if run.interrupted else None
    return [Heading(title, 1), f"{circumstances(run)}.", busy_line(run), stopped]
