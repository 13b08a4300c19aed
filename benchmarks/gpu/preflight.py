"""The first seconds of `python -m benchmarks.gpu`: can this GPU be used at all, and how fast is it?

What is looked at: the names of the targets, the device, a CUDA graph that is recorded and replayed, memory bandwidth,
and products of one weight matrix with 1 to 9 rows, which is what a decode step and a verification consist of. The
record says what ended it, so that also a process that crashes leaves its reason.

    python -m benchmarks.gpu.preflight --sizes lab --device cpu --dtype float32
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
import time
from dataclasses import dataclass

import torch

from benchmarks import common
from speclab.cli import parsing
from speclab.core import graphs
from speclab.drafts.select import check_kind
from speclab.models import loading, timing
from speclab.present.tables import Block, Cell, Heading, Lines, Table
from speclab.records.rows import Amount, Count, Part
from speclab.system.errors import EnvironmentProblem, first_line, is_out_of_memory, reports_problems

WIDTHS = range(1, 10)  # rows
WEIGHT = {"cuda": (14336, 4096)}  # of a matrix as lab:8b has them; a CPU reads a smaller one
SMALL_WEIGHT = (2048, 1024)
UNFINISHED = "the preflight did not come to its end"


@dataclass(kw_only=True)
class Product(Part):
    """`width` rows times the weight matrix."""

    width: Count
    seconds: Amount  # the fastest


@dataclass(kw_only=True)
class PreflightRun(common.BenchmarkRun):
    """`python -m benchmarks.gpu.preflight`."""

    problem: str | None  # why this machine cannot be measured
    import_seconds: Amount | None  # from the start of the process, the libraries' imports included
    capture_seconds: Amount | None  # of a first CUDA graph; None where there are none
    ceilings: dict[str, Amount]  # bytes a second, as in benchmarks/roofline.py
    weight: list[Count]  # rows and columns of the matrix
    products: list[Product]


def page(run: PreflightRun) -> list[Block]:
    """Everything a reader gets, from the record alone."""
    n_bytes = run.weight[0] * run.weight[1] * (2 if run.settings["dtype"] == "bfloat16" else 4)
    cells: dict[str, Cell] = {
        "rows": lambda product: str(product.width),
        "us": lambda product: f"{product.seconds * 1e6:.1f}",
        "GB/s": lambda product: f"{n_bytes / product.seconds / 1e9:.0f}",
    }
    facts = [
        f"imports: {run.import_seconds:.1f} s" if run.import_seconds is not None else None,
        f"first CUDA graph: {run.capture_seconds:.2f} s" if run.capture_seconds is not None else None,
        *(f"{way}: {speed / 1e9:.1f} GB/s" for way, speed in run.ceilings.items()),
        *(f"{what}: {value}" for what, value in (run.machine.gpu_state or {}).items()),
        f"cannot be used: {run.problem}" if run.problem else None,
    ]
    title = f"Rows times a matrix of {run.weight[0]} x {run.weight[1]}"
    return [*common.begin("Preflight", run), Lines(facts), Heading(title), Table(run.products, cells, n_words=0)]


@torch.inference_mode()
def capture(device: torch.device) -> float:
    """Record a graph, replay it on other numbers and look at the result.  -> seconds of the recording"""
    square = torch.eye(256, device=device)
    start = time.perf_counter()
    replay, (doubled,) = graphs.capture(lambda: (square + square,))
    seconds = time.perf_counter() - start
    square.fill_(3.0)
    replay()
    if not torch.equal(doubled, torch.full_like(square, 6.0)):
        raise EnvironmentProblem("a CUDA graph was replayed and gave wrong numbers; check the driver")
    return seconds


@torch.inference_mode()
def products(device: torch.device, dtype: torch.dtype) -> tuple[list[int], list[Product]]:
    """The shape of the weight matrix, and the time of a product for each of WIDTHS."""
    n_out, n_in = WEIGHT.get(device.type, SMALL_WEIGHT)
    weight = torch.randn(n_out, n_in, device=device).to(dtype)
    timed = []
    for width in WIDTHS:
        rows = torch.randn(width, n_in, device=device).to(dtype)
        seconds = timing.best(functools.partial(torch.nn.functional.linear, rows, weight), device, repeats=20)
        timed.append(Product(width=width, seconds=seconds))
    return [n_out, n_in], timed


def look(args: argparse.Namespace, run: PreflightRun) -> PreflightRun:
    """Use the device, and put what comes out into the record."""
    device, _ = loading.choose_device(args.device)
    dtype = getattr(torch, args.dtype)
    run.machine = common.head(args, device, {})["machine"]
    if device.type == "cuda":
        torch.cuda.init()
        run.capture_seconds = capture(device)
    run.ceilings = timing.bandwidth(timing.block_bytes(device), device, dtype)
    run.weight, run.products = products(device, dtype)
    run.problem = None
    return run


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--sizes", required=True, help="the targets of the run, with commas")
    parser.add_argument("--draft", metavar="KIND", help="the draft of the run")
    parser.add_argument("--device", choices=("cuda", "cpu", "mps"), default="cuda")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--started", type=float, help="when this process was started, in seconds since 1970")
    common.add_result_flags(parser, "preflight")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    imports = None if args.started is None else max(0.0, time.time() - args.started)
    common.listed_sizes(args.sizes)
    if args.draft:
        check_kind(args.draft)
    common.check_result_flags(args)
    settings = {"device": args.device, "dtype": args.dtype, "engine": "no", "seed": 0, "sizes": args.sizes}
    run = PreflightRun(
        **common.head(args, torch.device("cpu"), settings),
        problem=UNFINISHED,
        import_seconds=imports,
        capture_seconds=None,
        ceilings={},
        weight=[0, 0],
        products=[],
    )
    common.write(args, run, page)
    try:
        look(args, run)
    except Exception as error:  # what a driver can raise has no end
        run.problem = "out of memory" if is_out_of_memory(error) else first_line(error)
    common.finish(args, run, page)
    if run.problem:
        raise EnvironmentProblem(f"this {args.device} device cannot be used: {run.problem}; choose another one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
