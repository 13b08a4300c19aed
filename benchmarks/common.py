"""What the benchmarks share: how a record starts and is written, and models loaded one by one."""

import argparse
import contextlib
import copy
import gc
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from draft_models import ModelDrafter
from speclab.cli import flags
from speclab.cli.parsing import plain_name, some_path
from speclab.drafts.select import make_drafter
from speclab.lab.harness import STOPS
from speclab.models import loading
from speclab.models.setup import Setup
from speclab.present import run_lines
from speclab.records import files
from speclab.records.runs import Head
from speclab.system import terminal
from speclab.system.errors import UsageProblem
from speclab.system.files import check_writable, do_all, write_whole
from speclab.system.paths import OUTPUT
from speclab.system.terminal import note


@dataclass(kw_only=True)
class BenchmarkRun(Head):
    """What the records of all benchmarks share."""

    benchmark: str
    schema_version: Literal[1]


Run = TypeVar("Run", bound=BenchmarkRun)


def head(benchmark: str, device: torch.device, settings: dict[str, Any], interrupted: bool = False) -> dict[str, Any]:
    """The fields of BenchmarkRun: what, where and how. settings: what the flags chose."""
    return {
        "benchmark": benchmark,
        "schema_version": 1,
        "created": files.today(),
        "interrupted": interrupted,
        "machine": files.machine(device),
        "versions": files.versions(),
        "settings": settings,
    }


def shared_settings(args: argparse.Namespace, setup: Setup) -> dict[str, Any]:
    """The settings of every benchmark that loads a target."""
    return {
        "device": setup.device.type,
        "dtype": setup.dtype_name,
        "engine": setup.engine,
        "threads": torch.get_num_threads(),
        "seed": args.seed,
        "reasons": setup.reasons,
    }


# --- flags and files --------------------------------------------------------------------------------------------------


def add_result_flags(parser: argparse.ArgumentParser) -> None:
    """Where the record and the page go."""
    group = parser.add_argument_group("results")
    group.add_argument("--out-dir", type=some_path, default=OUTPUT, help="holds results/ (default: the lab)")
    group.add_argument("--name", type=plain_name, default="local", help="of this run's files (default: local)")


def check_result_flags(args: argparse.Namespace, benchmark: str) -> None:
    """Before anything is measured."""
    for path in _results(args, benchmark):
        check_writable(path, "--out-dir")


def _results(args: argparse.Namespace, benchmark: str) -> list[Path]:
    """The record, and its tables in Markdown."""
    return [args.out_dir / "results" / f"{args.name}-{benchmark}{ending}" for ending in (".json", ".md")]


@contextlib.contextmanager
def kept(measured: list) -> Iterator[list[BaseException]]:
    """Ctrl-C or a problem ends what runs inside, and is raised where nothing is in `measured` yet.  -> what ended it"""
    stops: list[BaseException] = []
    try:
        yield stops
    except (*STOPS, UsageProblem) as stop:
        if not measured:
            raise
        note("stopped; what is measured is kept")
        stops.append(stop)


def finish(
    args: argparse.Namespace, run: Run, page: Callable[[Run, bool], str], stop: BaseException | None = None
) -> int:
    """Tables to standard output, then the record and the tables in Markdown.  -> exit code

    stop: what ended the measurement early; a problem is raised now that everything is written.
    """
    if stop:
        run = replace(run, interrupted=True)
    record_file, page_file = _results(args, run.benchmark)
    code = do_all(
        [
            lambda: terminal.say(page(run, False), end=""),
            lambda: write_whole(record_file, files.to_json(run)),
            lambda: write_whole(page_file, terminal.harmless(page(run, True))),
        ]
    )
    if stop and not isinstance(stop, KeyboardInterrupt):
        raise stop
    return code


# --- models -----------------------------------------------------------------------------------------------------------


def setups(args: argparse.Namespace, names: list[str]) -> Iterator[Setup]:
    """The named targets, loaded one after another; each is gone before the next one comes."""
    for name in names:
        mine = copy.copy(args)
        mine.target = target_name(name)
        setup = flags.setup_from(mine)
        yield setup
        del setup
        free()


def target_name(name: str) -> str:
    """`lab` is the lab's own target; every other name is what --target takes."""
    return loading.LAB_TARGET if name == "lab" else name


def listed_sizes(text: str) -> list[str]:
    """The targets that --sizes names. Each is looked at before the first is measured."""
    names = [name for name in text.split(",") if name]
    if not names or len(set(names)) < len(names):
        raise UsageProblem(f"--sizes {text}: give different targets with commas between them, for example lab")
    for name in names:
        loading.load_tokenizer(target_name(name))
    return names


def free() -> None:
    """Give back what the last model held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def model_drafter(kind: str, setup: Setup, seed: int, why: str) -> ModelDrafter:
    """A drafter that is a plain model. Raises UsageProblem, with `why` and what else to type, where it is not."""
    drafter = make_drafter(kind, setup, seed)
    if type(drafter) is not ModelDrafter:
        raise UsageProblem(f"--draft {kind}: {why}; give model, a folder or a hub name")
    return drafter


# --- pages ------------------------------------------------------------------------------------------------------------


def opening(title: str, run: BenchmarkRun, markdown: bool) -> list[str]:
    """Title and circumstances, which only the page in Markdown needs."""
    return [f"# {title}", f"{run_lines.circumstances(files.as_dict(run))}."] if markdown else []


def heading(text: str, markdown: bool) -> str:
    """Of a part of the page."""
    return f"## {text}" if markdown else text


def remarks(lines: list[str], markdown: bool) -> str:
    """A list; in the terminal wrapped to 79 columns."""
    if markdown:
        return "\n".join(f"- {line}" for line in lines)
    # "k = 4" stays on one line.
    wrapped = [textwrap.fill(line.replace(" = ", "\xa0=\xa0"), 79, subsequent_indent="    ") for line in lines]
    return "\n".join(wrapped).replace("\xa0", " ")
