"""How long does compiling take, and what do compiled passes over several texts gain?

    python -m benchmarks.compiling
    python -m benchmarks.compiling --drafts model --size none --rows 2x1,2x5

An empty folder takes the place of the user's cache folder. Everything that `make compare` needs is loaded three times:
with the fast engine, compiled in the empty folder, and once more from there: the target, its drafts, both again at the
second size, and then the passes over several texts. Before that it is loaded once with the fast engine and not timed,
because the first loading of a process also does what later ones find done. What comes out: how many functions were
compiled, the seconds of each loading with its checks, and the seconds of the cores that compilers used. Then these
passes and the kernels that are called one by one take turns.
Files: results/NAME-compiling.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import contextlib
import copy
import functools
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.lab import padded_pair
from speclab.lab.harness import kept_when_stopped
from speclab.models import engine_choice
from speclab.models.backends import packages
from speclab.models.padded import sizes
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Heading, Lines, Table
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system import cache
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems

if TYPE_CHECKING:  # the functions that need the extension import it: it can be deleted
    from speclab.extensions.batch.decoding.row_buffers import Programs, Shape

NONE = "none"  # of --size
EMPTY, FULL = "empty", "full"  # the folder before a loading

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Loaded(RecordPart):
    """The loading of one part. folder: "empty" or "full" before it, "" with the fast engine. functions: that were
    compiled. core_seconds: of the processes that compiled."""

    part: str
    folder: str
    functions: Count
    seconds: Amount
    core_seconds: Amount


@dataclass(kw_only=True)
class RowsPass(RecordPart):
    """Passes over `width` tokens of each of `n_texts` texts: the seconds of every repeat, in turns."""

    n_texts: Count
    width: Count
    compiled: list[Amount]
    kernels: list[Amount]


@dataclass(kw_only=True)
class CompilingRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.compiling`."""

    loaded: list[Loaded]
    passes: list[RowsPass]


# --- measuring --------------------------------------------------------------------------------------------------------


def load_all(
    args: argparse.Namespace, folder: str, loaded: list[Loaded]
) -> "tuple[dict[str, Any], Setup, Programs | None]":
    """Load every part, and add the seconds.  -> the fields of BenchmarkRun, the target, its passes over several texts

    folder: as in Loaded. Raises EnvironmentProblem where the target's passes cannot be compiled.
    """

    def timed(part: str, load: Callable[[], Any]) -> Any:
        before, start, children = _n_functions(), time.perf_counter(), _core_seconds()
        made = load()
        seconds, cores = time.perf_counter() - start, _core_seconds() - children
        n = _n_functions() - before
        loaded.append(Loaded(part=part, folder=folder, functions=n, seconds=seconds, core_seconds=cores))
        return made

    packages._loaded.cache_clear()  # this process knows nothing of the functions
    targets = {"": args.target} if args.size == NONE else {"": args.target, f", {args.size}": args.size}
    setups = []
    for words, target in targets.items():
        chosen = copy.copy(args)
        chosen.target, chosen.engine = target, "compiled" if folder else "fast"
        setup = timed(f"target{words}", functools.partial(flags.setup_from, chosen))
        if folder and not engine_choice.is_compiled(setup.target.fast):
            raise EnvironmentProblem(setup.reasons["engine"])
        for kind in args.drafts if not words else padded_pair.padded_kinds(args.drafts, target):
            timed(f"{kind}{words}", functools.partial(registry.make, kind, setup, args.seed))
        setups.append(setup)
    programs = None
    if folder:
        from speclab.extensions.batch.decoding.compiled_rows import checked_rows

        of_size: dict[int, list[Shape]] = {}
        for shape in args.rows:
            of_size.setdefault(shape[0], []).append(shape)
        target_model = setups[0].target
        found: dict[Shape, Any] = {}
        for n, of_texts in of_size.items():
            [made] = timed(f"{n} texts", functools.partial(checked_rows, target_model, of_texts)).values()
            found |= made
        programs = {target_model.fast: found} if target_model.fast else None
    return common.head_of(args, setups[0]), setups[0], programs


def _n_functions() -> int:
    return len(list(cache.folder().glob("*.pt2")))


def _core_seconds() -> float:
    """The seconds of all processes that this one has started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


@contextlib.contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Let this folder be the cache folder."""
    before = os.environ.get(cache.FOLDER)
    os.environ[cache.FOLDER] = folder
    try:
        yield
    finally:
        del os.environ[cache.FOLDER]
        os.environ |= {} if before is None else {cache.FOLDER: before}


def measure(args: argparse.Namespace, fields: dict[str, Any], loaded: list[Loaded], rows: list[RowsPass]) -> None:
    """Load with the fast engine, with an empty folder and with what is in it then, and time passes in turns."""
    from speclab.extensions.batch.decoding.compiled_rows import time_rows

    with tempfile.TemporaryDirectory() as empty, cache_in(empty):
        load_all(args, "", [])
        for folder in ("", EMPTY, FULL):
            found, setup, programs = load_all(args, folder, loaded)
            fields |= found
        for shape in args.rows:
            times = time_rows(setup.target, programs or {}, shape, args.repeats)
            rows.append(RowsPass(n_texts=shape[0], width=shape[1], compiled=times[0], kernels=times[1]))


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "fast is the loading with --engine fast. first is the one with an empty cache folder, next the same again with "
    "what it has left there; all checks are in the seconds. core-s is what the compilers took on all cores. one text "
    "is the sum of the lines above it; all is with the passes over several texts, which are loaded compiled only.",
    "A pass has so many tokens of each text. ms are medians, and in brackets the fastest pass; kernels ÷ compiled is "
    "of the medians, and in brackets of the fastest.",
]


def loaded_table(run: CompilingRun) -> Table:
    """A line for each part, one for those that all engines load, and one for all; - where a part was not loaded."""
    of = {(one.part, one.folder): one for one in run.loaded}
    parts = list(dict.fromkeys(one.part for one in run.loaded))
    of_one = [part for part in parts if (part, "") in of]
    sums = {"one text": of_one, "all": parts}

    def total(part: str, folder: str, what: str) -> str:
        wanted = sums.get(part, [part])
        if any((one, folder) not in of for one in wanted):
            return "-"
        number = sum(getattr(of[one, folder], what) for one in wanted)
        return str(number) if what == "functions" else f"{number:.1f}"

    cells: dict[str, Cell] = {
        "part": lambda part: part,
        "functions": lambda part: total(part, EMPTY, "functions"),
        "fast s": lambda part: total(part, "", "seconds"),
        "first s": lambda part: total(part, EMPTY, "seconds"),
        "core-s": lambda part: total(part, EMPTY, "core_seconds"),
        "next s": lambda part: total(part, FULL, "seconds"),
    }
    return Table([*of_one, "one text", *(part for part in parts if part not in of_one), "all"], cells)


def rows_table(run: CompilingRun) -> Table:
    """A line for each kind of pass."""

    def both(times: list[float]) -> str:
        return f"{1e3 * statistics.median(times):.2f} ({1e3 * min(times):.2f})"

    def ratio(one: RowsPass) -> str:
        medians = statistics.median(one.kernels) / statistics.median(one.compiled)
        return f"{medians:.2f} ({min(one.kernels) / min(one.compiled):.2f})"

    cells: dict[str, Cell] = {
        "texts": lambda one: str(one.n_texts),
        "tokens": lambda one: str(one.width),
        "kernels ms": lambda one: both(one.kernels),
        "compiled ms": lambda one: both(one.compiled),
        "kernels ÷ compiled": ratio,
    }
    return Table(run.passes, cells, n_words=0)


def page(run: CompilingRun) -> list[Block]:
    """The whole page, from the record alone."""
    blocks = [*common.begin("Compiling, and passes over several texts", run), Heading("Loading")]
    blocks += [loaded_table(run), Heading("Passes over several texts"), rows_table(run)]
    return [*blocks, Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_model_flags(parser)
    parser.set_defaults(device_map=None, seed=0, top_k=0, top_p=1.0, temperature=0.0)  # no text is decoded
    group = parser.add_argument_group("benchmark")
    group.add_argument("--drafts", default="model,feature,hybrid", metavar="KIND,KIND", help="(default: %(default)s)")
    group.add_argument("--size", default="lab:100m", metavar="NAME", help=f"the second target, or {NONE} (lab:100m)")
    rows = "2x1,2x5,4x1,4x5,8x1,8x5"
    group.add_argument("--rows", default=rows, metavar="BxM,BxM", help="texts x tokens of each (default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=60, help="of each pass (default: 60)")
    common.add_result_flags(parser, "compiling")
    return parser


def shapes(text: str) -> "list[Shape]":
    """Read --rows. Raises UsageProblem where it names no passes over several texts."""
    found = [re.fullmatch(r"(\d{1,2})x(\d{1,2})", word) for word in text.split(",") if word]
    read = sorted({(int(one[1]), int(one[2])) for one in found if one})
    if None in found or not read or min(map(math.prod, read)) < 1 or min(read)[0] < 2:
        raise UsageProblem(f"--rows {text}: give texts x tokens of each with commas between them, for example 2x1,2x5")
    return read


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    args.rows = shapes(args.rows)
    if args.size != NONE and not sizes.is_lab_size(args.size):
        raise UsageProblem(f"--size {args.size}: give lab:SIZE, for example lab:100m, or {NONE}")
    args.drafts = [kind for kind in args.drafts.split(",") if kind]
    registry.read_all(args.drafts)
    common.check_result_flags(args)
    loaded, rows, fields = list[Loaded](), list[RowsPass](), dict[str, Any]()
    with kept_when_stopped(lambda: "what is measured is kept" if fields else "") as stops:
        measure(args, fields, loaded, rows)
    fields["settings"] |= {"drafts": args.drafts, "size": args.size, "repeats": args.repeats}
    fields["interrupted"] = bool(stops)
    return common.finish(args, CompilingRun(**fields, loaded=loaded, passes=rows), page, stops[0] if stops else None)


if __name__ == "__main__":
    sys.exit(main())
