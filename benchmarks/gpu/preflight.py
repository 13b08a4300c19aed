"""The first seconds of `python -m benchmarks.gpu`: can this GPU be used at all, and how fast is it?

What is looked at: the names of the targets, the device, a CUDA graph that is recorded and replayed, memory bandwidth,
products of one weight matrix with 1 to 9 rows, which is what a decode step and a verification consist of, and attention
of 1 and 5 tokens to 512 rows in two ways (speclab/engines/cuda/attention.py). The record is written before each of
them, so that also a process that crashes leaves its place.

    python -m benchmarks.gpu.preflight --sizes lab --device cpu --dtype float32
"""

# ruff: noqa: E402 - the clock starts before the slow imports
import time

START = time.perf_counter()
if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import sys
from collections.abc import Callable

import torch

from benchmarks import common
from benchmarks.gpu.findings import FindingsRun, Numbers, add, page
from speclab.cli import flags, parsing
from speclab.core import graphs
from speclab.drafts import registry
from speclab.engines.cuda.attention import Attend, TwoProducts, fused, shares
from speclab.engines.cuda.buffers import causal_mask
from speclab.engines.cuda.kernels import usable_compiler
from speclab.models import loading, timing
from speclab.records import files
from speclab.system.errors import EnvironmentProblem, reports_problems

IMPORT_SECONDS = time.perf_counter() - START
WIDTHS = range(1, 10)  # rows
KV_HEADS, GROUP, HEAD_WIDTH, ROWS, LAYERS = 8, 4, 128, 512, 32
WEIGHT, SMALL_WEIGHT = (14336, 4096), (2048, 1024)  # a matrix as lab:8b has them; a CPU reads a smaller one


def use(device: torch.device, run: FindingsRun) -> Numbers:
    """Use the device. Raises EnvironmentProblem where there is no such device."""
    loading.choose_device(device.type)
    run.machine = files.machine(device)
    return {}


@torch.inference_mode()
def capture(device: torch.device) -> Numbers:
    """Record a graph, replay it on other numbers and look at the result."""
    square = torch.eye(256, device=device)
    start = time.perf_counter()
    replay, (doubled,) = graphs.capture(lambda: (square + square,))
    seconds = time.perf_counter() - start
    square.fill_(3.0)
    replay()
    if not torch.equal(doubled, torch.full_like(square, 6.0)):
        raise EnvironmentProblem("a CUDA graph was replayed and gave wrong numbers; check the driver")
    return {"s": seconds}


def bandwidth(device: torch.device, dtype: torch.dtype) -> Numbers:
    """The best bandwidth of the ways of speclab/models/timing.py."""
    return {"GB/s": max(timing.bandwidth(timing.block_bytes(device), device, dtype).values()) / 1e9}


@torch.inference_mode()
def product(device: torch.device, dtype: torch.dtype, width: int) -> Numbers:
    """The time of the fastest of some products of `width` rows with the weight matrix."""
    weight = torch.randn(WEIGHT if device.type == "cuda" else SMALL_WEIGHT, device=device, dtype=dtype)
    rows = torch.randn(width, weight.shape[1], device=device, dtype=dtype)
    seconds = timing.best(functools.partial(torch.nn.functional.linear, rows, weight), device, repeats=20)
    return {"ms": seconds * 1e3, "GB/s": weight.nbytes / seconds / 1e9}


@torch.inference_mode()
def attention(device: torch.device, dtype: torch.dtype, attend: Attend, width: int) -> Numbers:
    """The time of one of LAYERS attentions in a row of `width` tokens, with the sizes of a model of 8 B parameters."""
    queries, keys, values = (
        torch.randn(1, KV_HEADS, n, HEAD_WIDTH, device=device, dtype=dtype) for n in (GROUP * width, ROWS, ROWS)
    )
    mask = causal_mask(width, ROWS - width, ROWS, dtype, device).repeat(1, 1, GROUP, 1)

    def step() -> tuple[torch.Tensor, ...]:
        return tuple(attend(queries, keys, values, mask, None) for _ in range(LAYERS))

    run = graphs.capture(step)[0] if device.type == "cuda" else step
    return {"us": timing.best(run, device, repeats=20) / LAYERS * 1e6}


def ways_of_attention(device: torch.device) -> dict[str, Attend]:
    """The library's kernel, and two products with a compiled softmax between them where something is compiled."""
    compiler = usable_compiler(device) if device.type == "cuda" else None
    return {"fused": fused, "two products": TwoProducts(compiler(shares) if compiler else shares)}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    parser.add_argument("--sizes", required=True, help="the targets of the run, with commas")
    parser.add_argument("--draft", metavar="KIND", default="model", help="the draft of the run")
    common.add_result_flags(parser, "preflight")
    args = parser.parse_args(argv)
    common.listed_sizes(args.sizes)
    registry.read(args.draft)
    common.check_result_flags(args)
    device = loading.choose_device("auto")[0] if args.device == "auto" else torch.device(args.device)
    dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    settings = {"device": args.device, "dtype": args.dtype, "engine": "no", "seed": 0, "sizes": args.sizes}
    run = FindingsRun(**common.head(args, torch.device("cpu"), settings) | {"interrupted": True}, findings=[])
    checks: dict[str, Callable[[], Numbers]] = {
        "imports": lambda: {"s": IMPORT_SECONDS},
        "device": lambda: use(device, run),
        **({"first CUDA graph": lambda: capture(device)} if device.type == "cuda" else {}),
        "bandwidth": lambda: bandwidth(device, dtype),
        **{f"matrix x {width}": functools.partial(product, device, dtype, width) for width in WIDTHS},
    }
    for name, check in checks.items():
        if problem := add(args, run, name, check).problem:
            raise EnvironmentProblem(f"this {args.device} device cannot be used: {problem}; choose another one")
    for name, attend in ways_of_attention(device).items():  # a way that does not work here is not taken elsewhere
        for width in (1, 5):
            add(args, run, f"attention x {width}, {name}", functools.partial(attention, device, dtype, attend, width))
    run.interrupted = False
    return common.finish(args, run, page)


if __name__ == "__main__":
    sys.exit(main())
