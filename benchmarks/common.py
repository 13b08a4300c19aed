"""The parts that the benchmarks share: flags, the start of a record, and pages."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from draft_models import ModelDrafter
from speclab.cli import compare, flags
from speclab.cli.compare import Output
from speclab.drafts import registry
from speclab.models.setup import Setup
from speclab.present.screen import busy_line, circumstances
from speclab.present.tables import Block, Heading, show
from speclab.records import files
from speclab.records.files import Head
from speclab.system.errors import UsageProblem
from speclab.system.files import check_writable


@dataclass(kw_only=True)
class BenchmarkRun(Head):
    """The fields that the records of all benchmarks share. They hold seconds and counts; pages make ratios of them."""

    benchmark: str
    schema_version: Literal[2]


def add_result_flags(parser: argparse.ArgumentParser, benchmark: str) -> None:
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(benchmark=benchmark)


def check_result_flags(args: argparse.Namespace) -> Output:
    output = Output(args, f"{args.name}-{args.benchmark}")
    for ending in (".json", ".md"):
        check_writable(output.result(ending), "--out-dir")
    return output


def model_drafter(kind: str, setup: Setup, seed: int, why: str) -> ModelDrafter:
    """A drafter that is a plain model. Raises UsageProblem, with `why` and what else to type, where it is not."""
    drafter: Any = registry.make(kind, setup, seed)
    if not drafter.is_model:
        raise UsageProblem(f"--draft {kind}: {why}; give model, a folder or a hub name")
    return drafter


def head_of(args: argparse.Namespace, setup: Setup, **settings: Any) -> dict[str, Any]:
    """The fields of BenchmarkRun that say what ran, where and how. settings: the choices of the flags."""
    settings = {**setup.recorded, "seed": args.seed, "why_engine": setup.why_engine, **settings}
    what = {"benchmark": args.benchmark, "schema_version": 2, "interrupted": False, "settings": settings}
    return {**what, **files.when_and_where(setup.device)}


def finish(output: Output, run: Any, page: Callable[[Any], list[Block]]) -> None:
    """Write the record and the page to files, and print the page to standard output."""
    texts = (lambda: show(page(run)).removesuffix("\n"), lambda: show(page(run), markdown=True))
    compare.show(output, run, *texts, [])


def begin(title: str, run: BenchmarkRun) -> list[Block]:
    stopped = "Stopped before the end: only what was complete by then is here." if run.interrupted else None
    return [Heading(title, 1), f"{circumstances(run)}.", busy_line(run), stopped]
