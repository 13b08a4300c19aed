"""What the three benchmarks share: how a record starts, is checked and is written, and models loaded one by one."""

import argparse
import contextlib
import copy
import functools
import gc
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import torch

from draft_models import ModelDrafter
from speclab.cli import flags
from speclab.cli.parsing import plain_name, some_path
from speclab.drafts.select import make_drafter
from speclab.lab.harness import STOPS
from speclab.models import loading
from speclab.models.setup import Setup
from speclab.present import run_lines, tables
from speclab.records import record
from speclab.system import terminal
from speclab.system.errors import UsageProblem
from speclab.system.files import check_writable, do_all, write_whole
from speclab.system.terminal import note

SCHEMA_VERSION = 1
NUMBER, COUNT, TEXT = {"type": "number"}, {"type": "integer", "minimum": 0}, {"type": "string"}
SECONDS, MAYBE = {"type": "number", "minimum": 0}, {"type": ["number", "null"]}


def one_of(properties: dict) -> dict:
    """Schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def list_of(properties: dict) -> dict:
    return {"type": "array", "items": one_of(properties)}


HEAD = {
    "benchmark": TEXT,
    "schema_version": {"const": SCHEMA_VERSION},
    "created": TEXT,
    "interrupted": {"type": "boolean"},
    "machine": {"type": "object"},
    "versions": {"type": "object"},
    "settings": {"type": "object"},
}


def head(name: str, args: argparse.Namespace, setup: Setup, settings: dict, interrupted: bool = False) -> dict:
    """The part of a record that says what, where and how."""
    return {
        "benchmark": name,
        "schema_version": SCHEMA_VERSION,
        "created": record.today(),
        "interrupted": interrupted,
        "machine": record.machine(setup.device),
        "versions": record.versions(),
        "settings": {
            "device": setup.device.type,
            "dtype": setup.dtype_name,
            "engine": setup.engine,
            "threads": torch.get_num_threads(),
            "seed": args.seed,
            "reasons": setup.reasons,
            **settings,
        },
    }


def provenance(run: dict) -> str:
    """Where the numbers come from, for the top of a page."""
    return f"{run_lines.circumstances(run)}."


def to_json(run: dict, schema: dict) -> str:
    """Checked, and compact enough to commit: one line for every item of a list."""
    jsonschema.validate(run, schema)
    return record.compact(run, [key for key, value in run.items() if isinstance(value, list)])


def load(path: Path, schema: dict) -> dict:
    """A record from disk, checked."""
    return record.load(path, functools.partial(jsonschema.validate, schema=schema))


# --- flags and files --------------------------------------------------------------------------------------------------


def add_result_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument("--out-dir", type=some_path, default=record.ROOT, help="holds results/ (default: the lab)")
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
    args: argparse.Namespace,
    run: dict,
    schema: dict,
    page: Callable[[dict, bool], str],
    stops: list[BaseException] | None = None,
) -> int:
    """Tables to standard output, then the record and the tables in Markdown.  -> exit code

    stops: what `kept` has caught; a problem is raised now that everything is written.
    """
    if stops:
        run = {**run, "interrupted": True}
    record_file, page_file = _results(args, run["benchmark"])
    code = do_all(
        [
            lambda: terminal.say(page(run, False), end=""),
            lambda: write_whole(record_file, to_json(run, schema)),
            lambda: write_whole(page_file, terminal.harmless(page(run, True))),
        ]
    )
    if stops and not isinstance(stops[0], KeyboardInterrupt):
        raise stops[0]
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


def sizes(args: argparse.Namespace) -> list[str]:
    """--sizes, or the one target of --target."""
    return [args.target] if args.sizes is None else listed_sizes(args.sizes)


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
    """A drafter that is a plain model, or an error that says what else to type."""
    drafter = make_drafter(kind, setup, seed)
    if type(drafter) is not ModelDrafter:
        raise UsageProblem(f"--draft {kind}: {why}; give model, a folder or a hub name")
    return drafter


# --- words ------------------------------------------------------------------------------------------------------------


def heading(text: str, markdown: bool) -> str:
    return f"## {text}" if markdown else text


def sentences(items: list[str], markdown: bool) -> str:
    """A list; in the terminal wrapped to 79 columns."""
    if markdown:
        return "\n".join(f"- {item}" for item in items)
    # "k = 4" and "1.20x" stay on one line with what belongs to them.
    lines = [textwrap.fill(item.replace(" = ", "\xa0=\xa0"), 79, subsequent_indent="    ") for item in items]
    return "\n".join(lines).replace("\xa0", " ")


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def interval(low: float | None, high: float | None) -> str:
    """Ends of a 95 % interval; a dash where there were too few prompts for one."""
    return "-" if low is None else f"{low:.2f} to {high:.2f}"


table = tables.table
