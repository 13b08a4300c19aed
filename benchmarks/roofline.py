"""How close is a pass of the model to what this machine can do at all?

A pass over m tokens must read every weight once and do 2 x weights x m operations. The machine reads so many bytes and
does so many operations a second: the slower of the two is a floor no code can beat. While reading is the floor, a pass
over five tokens may cost what one costs, and that is the whole room speculative decoding lives in.

What comes out: the machine's ceilings, measured; then for each width m the time t(m) of a pass, v(m) = t(m) / t(1), its
floor, which of the two floors it is, and the share of it that was reached.

    python -m benchmarks.roofline                                # the lab's target, about half a minute
    python -m benchmarks.roofline --draft model --context 1000
    python -m benchmarks.roofline --sizes lab,lab:200m --widths 1,2,3,5,9,17

Bytes: the weights once (of an embedding that is not the output layer only the rows in use, so none), and the cache.
Operations: two for each weight and token, and attention over the cache. A mixture of experts would read less.
The bandwidth is the best of copying (bytes read plus written), a matrix-vector product and a sum, over 256 MiB and over
a block as large as the weights: small weights may stay in the processor's cache, and then that is the ceiling.
Files: results/NAME-roofline.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.cli.parsing import numbers
from speclab.core.clock import synchronize
from speclab.models import loading, memory, padding
from speclab.models.cached import CachedModel
from speclab.models.memory import cache_bytes, operations, weights_read
from speclab.models.setup import Setup
from speclab.present.tables import table
from speclab.records.rows import Amount, Count, Part
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note

LARGE = 256 * 2**20  # bytes: more than a processor's caches hold
LARGE_ON_GPU = 2**30


# --- the record -------------------------------------------------------------------------------------------------------


Kind = Literal["reading", "arithmetic"]
Role = Literal["target", "draft"]
READING = ("copy", "matrix_vector", "sum")  # three ways to measure bytes a second
Ceilings = dict[str, Amount]  # by READING, and `matrix`: operations a second of a matrix product


@dataclass(kw_only=True)
class Pass(Part):
    """Passes over `width` tokens, beside their floor."""

    width: Count
    seconds: Amount  # median
    fastest_seconds: Amount
    to_narrowest: Amount
    bytes: Count
    operations: Count
    floor_seconds: Amount
    floor: Kind
    share: Amount  # of the floor's speed that was reached


@dataclass(kw_only=True)
class ModelPasses(Part):
    """One model and its passes."""

    name: str
    role: Role
    engine: str
    parameters: Count
    weights_read: Count
    weight_bytes: Count
    context: Count  # tokens in the cache
    bandwidth: Amount  # bytes a second, the best seen
    matrix_rate: Amount
    passes: list[Pass]

    def against(self, ceilings: Ceilings) -> "ModelPasses":
        """The same passes beside the floors of these ceilings, as far as they are higher than those known."""
        bandwidth = max(self.bandwidth, *(ceilings[way] for way in READING))
        passes = []
        for one in self.passes:
            seconds, kind = floor(one.bytes, one.operations, bandwidth, ceilings["matrix"])
            passes.append(replace(one, floor_seconds=seconds, floor=kind, share=seconds / one.seconds))
        return replace(self, bandwidth=bandwidth, matrix_rate=ceilings["matrix"], passes=passes)


@dataclass(kw_only=True)
class RooflineRun(common.BenchmarkRun):
    """`python -m benchmarks.roofline`."""

    block_bytes: Count
    ceilings: Ceilings
    models: list[ModelPasses]


def floor(n_bytes: float, n_operations: float, bandwidth: float, rate: float) -> tuple[float, Kind]:
    """-> seconds that no code can beat, and what takes them"""
    reading, arithmetic = n_bytes / bandwidth, n_operations / rate
    return max(reading, arithmetic), "reading" if reading >= arithmetic else "arithmetic"


# --- what the machine can do ------------------------------------------------------------------------------------------


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call, the device's own clock where it has one."""
    synchronize(device)
    if device.type == "cuda":
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / 1e3
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def best(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """A ceiling is the best time seen: everything that disturbs only makes it longer."""
    call()
    return min(seconds(call, device) for _ in range(repeats))


@torch.inference_mode()
def bandwidth(n_bytes: int, device: torch.device, dtype: torch.dtype, repeats: int = 7) -> dict[str, float]:
    """Bytes a second over a block of about this size, three ways."""
    columns = 2048
    rows = max(1, n_bytes // (columns * dtype.itemsize))
    block, vector = (
        torch.ones(rows, columns, dtype=dtype, device=device),
        torch.ones(columns, dtype=dtype, device=device),
    )
    other, read = torch.empty_like(block), rows * columns * dtype.itemsize
    return {
        "copy": 2 * read / best(lambda: other.copy_(block), device, repeats),
        "matrix_vector": read / best(lambda: torch.mv(block, vector), device, repeats),
        "sum": read / best(lambda: block.sum(), device, repeats),
    }


@torch.inference_mode()
def matrix_rate(device: torch.device, dtype: torch.dtype, sizes: tuple[int, ...], repeats: int = 5) -> float:
    """Operations a second of the best square matrix product."""
    rates = []
    for n in sizes:
        a, b = (torch.randn(n, n, dtype=torch.float32, device=device).to(dtype) for _ in range(2))
        rates.append(2 * n**3 / best(functools.partial(torch.mm, a, b), device, repeats))
    return max(rates)


def measure_ceilings(device: torch.device, dtype: torch.dtype, large: int) -> Ceilings:
    """large: bytes of the block that is read and copied."""
    sizes = (4096, 8192) if device.type == "cuda" else (768, 1536)
    return {**bandwidth(large, device, dtype), "matrix": matrix_rate(device, dtype, sizes)}


# --- what the model does ----------------------------------------------------------------------------------------------


def time_passes(
    cached: CachedModel, widths: list[int], context: int, repeats: int, seed: int
) -> dict[int, list[float]]:
    """Seconds of passes of every width after the same context, the widths taking turns."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, cached.vocab_size, (1, context + max(widths)), generator=generator).to(cached.device)
    times: dict[int, list[float]] = {width: [] for width in widths}

    def one_pass(width: int) -> float:
        tokens = ids[:, context : context + width]
        taken = seconds(lambda: cached.forward(tokens), cached.device)
        cached.crop(context)
        return taken

    cached.prefill(ids[:, :context], rolls_back=True)
    for width in widths:  # meet every shape before the clock counts
        one_pass(width)
    for turn in range(repeats):
        for width in widths if turn % 2 == 0 else widths[::-1]:  # there and back: steady drift cancels
            times[width].append(one_pass(width))
    return times


def measure_model(
    args: argparse.Namespace, cached: CachedModel, role: Role, name: str, widths: list[int], block: int
) -> ModelPasses:
    """Passes of one model, and the bandwidth over a block as large as its weights; its floors are not known yet."""
    model, (n_weights, weight_bytes) = cached.model, weights_read(cached.model)
    times = time_passes(cached, widths, args.context, args.repeats, args.seed)
    medians = {width: statistics.median(values) for width, values in times.items()}
    passes = [
        Pass(
            width=width,
            seconds=seconds,
            fastest_seconds=min(times[width]),
            to_narrowest=seconds / medians[min(medians)],
            bytes=weight_bytes + cache_bytes(model, args.context + width),
            operations=operations(model, width, args.context),
            floor_seconds=0.0,
            floor="reading",
            share=0.0,
        )
        for width, seconds in medians.items()
    ]
    return ModelPasses(
        name=name,
        role=role,
        engine=cached.engine,
        parameters=sum(p.numel() for p in model.parameters()),
        weights_read=n_weights,
        weight_bytes=weight_bytes,
        context=args.context,
        bandwidth=max(bandwidth(min(block, max(weight_bytes, 2**16)), cached.device, model.dtype).values()),
        matrix_rate=0.0,
        passes=passes,
    )


# --- views of it ------------------------------------------------------------------------------------------------------


LEGEND = [
    "t(m): median time of a pass over m tokens; v(m): in passes over the narrowest; floor: the larger of bytes / "
    "bandwidth and operations / rate; reached: floor / t(m)",
    "bandwidth: the best seen for a block as large as the model's weights (small ones stay in the processor's cache)",
    "where reading is the floor a wider pass could be free, where arithmetic is it must cost more",
    "more than 100 % reached means that the ceiling was measured while something else used the machine: run it again "
    "on a quiet one",
]


def ceilings_table(run: RooflineRun, markdown: bool) -> str:
    """What the machine can do."""
    ceilings, size = run.ceilings, f"{run.block_bytes / 2**20:.0f} MiB"
    names = (f"copy {size}, read + written", f"matrix x vector, {size}", f"sum of {size}")
    lines = [[name, f"{ceilings[way] / 1e9:.1f} GB/s"] for name, way in zip(names, READING, strict=True)]
    lines.append([f"matrix x matrix, {run.settings['dtype']}", f"{ceilings['matrix'] / 1e9:.0f} GFLOP/s"])
    return table(lines, ["ceiling", "measured"], markdown)


def passes_table(model: ModelPasses, markdown: bool) -> str:
    """A line for every width."""
    lines = [
        [
            str(p.width),
            f"{p.seconds * 1e3:.3g}",
            f"{p.to_narrowest:.2f}",
            f"{p.floor_seconds * 1e3:.3g}",
            p.floor,
            f"{p.share:.0%}",
        ]
        for p in model.passes
    ]
    return table(lines, ["m", "t(m) ms", "v(m)", "floor ms", "floor", "reached"], markdown)


def model_title(model: ModelPasses) -> str:
    """Name, size, and where its passes ran."""
    size = f"{model.parameters / 1e6:.1f} M parameters, {model.weight_bytes / 1e6:.0f} MB read in a pass"
    size += ", padded" * padding.is_lab_size(model.name)
    where = f"{model.context} tokens in the cache, {model.engine} engine, bandwidth {model.bandwidth / 1e9:.1f} GB/s"
    return f"{model.role.capitalize()} {model.name}: {size}, {where}"


def page(run: RooflineRun, markdown: bool) -> str:
    """Everything a reader gets, from the record alone."""
    blocks = common.opening("Passes against the machine's ceilings", run, markdown)
    blocks += [common.heading("The machine", markdown), ceilings_table(run, markdown)]
    for model in run.models:
        blocks += [common.heading(model_title(model), markdown), passes_table(model, markdown)]
    return "\n\n".join([*blocks, common.remarks(LEGEND, markdown)]) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    parser.add_argument("--draft", metavar="KIND", help="time this draft model, too: model, a folder or a hub name")
    group = parser.add_argument_group("benchmark")
    group.add_argument("--sizes", metavar="NAME,NAME", help="several targets one after another; lab is the lab's own")
    group.add_argument("--widths", default="1,2,3,5,9,17", metavar="M,M", help="(default: %(default)s)")
    group.add_argument("--context", type=parsing.at_least(1), default=256, help="tokens in the cache (default: 256)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=15, help="of every width (default: 15)")
    group.add_argument("--block", type=parsing.at_least(1, 2**20), metavar="MIB", help="read and copied (default: 256)")
    common.add_result_flags(parser)
    return parser


def check_room(cached: CachedModel, context: int, widest: int) -> None:
    """Raises UsageProblem where the widest pass does not fit the model's context."""
    if cached.max_length is not None and context + widest > cached.max_length:
        raise UsageProblem(
            f"--context {context} and a pass over {widest} do not fit the model's context of {cached.max_length}; "
            f"use --context {max(1, cached.max_length - widest)} or less"
        )


def check_block(args: argparse.Namespace, device: torch.device) -> int:
    """-> bytes of the block that is read and copied; both must fit the memory"""
    usual = LARGE_ON_GPU if device.type == "cuda" else LARGE
    block, free = args.block * 2**20 if args.block else usual, memory.free_memory(device)
    if free is not None and 2 * block > free:
        raise UsageProblem(
            f"--block {block // 2**20}: two blocks of {block // 2**20} MiB do not fit the {free // 2**20} MiB free; "
            f"use --block {max(1, free // 2**22)} or less"
        )
    return block


def models_to_time(args: argparse.Namespace, setup: Setup, widest: int) -> list[tuple[CachedModel, Role, str]]:
    """The target, and the draft if it was asked for, with their roles and names."""
    models: list[tuple[CachedModel, Role, str]] = [(setup.target, "target", setup.target_name)]
    if args.draft is not None:
        drafter = common.model_drafter(args.draft, setup, args.seed, "only a model has passes")
        models.append((drafter.draft, "draft", loading.short_name(args.draft)))
    for cached, _, _ in models:
        check_room(cached, args.context, widest)
    return models


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    widths = numbers(args.widths, int, 1, "--widths")
    common.check_result_flags(args, "roofline")
    names = [args.target] if args.sizes is None else common.listed_sizes(args.sizes)
    measured: list[ModelPasses] = []
    ceilings: Ceilings = {}
    settings: dict[str, Any] = {}
    targets: list[str] = []
    with common.kept(measured) as stops:
        for setup in common.setups(args, names):
            block, models = check_block(args, setup.device), models_to_time(args, setup, max(widths))
            note(setup.describe())
            if not ceilings:
                ceilings, device = measure_ceilings(setup.device, setup.dtype, block), setup.device
                settings = {**common.shared_settings(args, setup), "targets": targets, "widths": widths}
                settings |= {"context": args.context, "repeats": args.repeats}
            measured += [measure_model(args, *model, widths, block) for model in models]
            targets.append(setup.target_name)
            # Once more after the passes, when the machine may be faster; the ceiling is the best seen.
            again = measure_ceilings(setup.device, setup.dtype, block)
            ceilings = {way: max(speed, again[way]) for way, speed in ceilings.items()}
            del setup, models  # or the next model would be loaded beside this one
    run = RooflineRun(
        **common.head("roofline", device, settings),
        block_bytes=block,
        ceilings=ceilings,
        models=[model.against(ceilings) for model in measured],
    )
    return common.finish(args, run, page, stops[0] if stops else None)


if __name__ == "__main__":
    sys.exit(main())
