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
import statistics
import sys
import time
from collections.abc import Callable

import torch

from benchmarks import common
from benchmarks.common import COUNT, NUMBER, SECONDS, TEXT
from speclab.cli import flags, parsing
from speclab.cli.parsing import numbers
from speclab.core.clock import synchronize
from speclab.models import loading, memory, padding
from speclab.models.cached import CachedModel
from speclab.models.memory import cache_bytes, operations, weights_read
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note

LARGE = 256 * 2**20  # bytes: more than a processor's caches hold
LARGE_ON_GPU = 2**30


# --- the floor -------------------------------------------------------------------------------------------------------


def floor(n_bytes: float, n_operations: float, bandwidth: float, rate: float) -> tuple[float, str]:
    """-> seconds that no code can beat, and what takes them"""
    reading, arithmetic = n_bytes / bandwidth, n_operations / rate
    return max(reading, arithmetic), "reading" if reading >= arithmetic else "arithmetic"


# --- what the machine can do ------------------------------------------------------------------------------------------


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call, the device's own clock where it has one."""
    synchronize(device)
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
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
        rates.append(2 * n**3 / best(lambda a=a, b=b: torch.mm(a, b), device, repeats))
    return max(rates)


def ceilings(device: torch.device, dtype: torch.dtype, large: int) -> dict[str, float]:
    sizes = (4096, 8192) if device.type == "cuda" else (768, 1536)
    return {**bandwidth(large, device, dtype), "matrix": matrix_rate(device, dtype, sizes)}


def better(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Of two looks at the same ceilings."""
    return {name: max(one[name], other[name]) for name in one}


# --- what the model does ----------------------------------------------------------------------------------------------


def time_passes(
    cached: CachedModel, widths: list[int], context: int, repeats: int, seed: int
) -> dict[int, list[float]]:
    """Seconds of passes of every width behind the same context, the widths taking turns."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, cached.vocab_size, (1, context + max(widths)), generator=generator).to(cached.device)
    found: dict[int, list[float]] = {width: [] for width in widths}

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
            found[width].append(one_pass(width))
    return found


def model_entry(
    cached: CachedModel,
    role: str,
    name: str,
    engine: str,
    times: dict[int, list[float]],
    context: int,
    fastest: float,
    rate: float,
) -> dict:
    """Passes beside their floors."""
    model, (n_weights, weight_bytes) = cached.model, weights_read(cached.model)
    medians = {width: statistics.median(values) for width, values in times.items()}
    narrowest = min(medians)
    passes = []
    for width, taken in medians.items():
        n_bytes, n_operations = weight_bytes + cache_bytes(model, context + width), operations(model, width, context)
        least, kind = floor(n_bytes, n_operations, fastest, rate)
        passes.append(
            {
                "width": width,
                "seconds": taken,
                "fastest_seconds": min(times[width]),
                "to_narrowest": taken / medians[narrowest],
                "bytes": n_bytes,
                "operations": n_operations,
                "floor_seconds": least,
                "floor": kind,
                "share": least / taken,
            }
        )
    return {
        "name": name,
        "role": role,
        "engine": engine,
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights_read": n_weights,
        "weight_bytes": weight_bytes,
        "context": context,
        "bandwidth": fastest,
        "matrix_rate": rate,
        "passes": passes,
    }


# --- the record -------------------------------------------------------------------------------------------------------

PASS = {
    "width": COUNT,
    "seconds": SECONDS,
    "fastest_seconds": SECONDS,
    "to_narrowest": NUMBER,
    "bytes": COUNT,
    "operations": COUNT,
    "floor_seconds": SECONDS,
    "floor": {"enum": ["reading", "arithmetic"]},
    "share": SECONDS,
}
MODEL = {
    "name": TEXT,
    "role": {"enum": ["target", "draft"]},
    "engine": TEXT,
    "parameters": COUNT,
    "weights_read": COUNT,
    "weight_bytes": COUNT,
    "context": COUNT,
    "bandwidth": NUMBER,
    "matrix_rate": NUMBER,
    "passes": common.list_of(PASS),
}
CEILINGS = dict.fromkeys(("copy", "matrix_vector", "sum", "matrix"), NUMBER)
SCHEMA = common.one_of(
    {**common.HEAD, "block_bytes": COUNT, "ceilings": common.one_of(CEILINGS), "models": common.list_of(MODEL)}
)


# --- views of it ------------------------------------------------------------------------------------------------------


def ceilings_table(run: dict, markdown: bool) -> str:
    found, size = run["ceilings"], f"{run['block_bytes'] / 2**20:.0f} MiB"
    lines = [
        [f"copy {size}, read + written", f"{found['copy'] / 1e9:.1f} GB/s"],
        [f"matrix x vector, {size}", f"{found['matrix_vector'] / 1e9:.1f} GB/s"],
        [f"sum of {size}", f"{found['sum'] / 1e9:.1f} GB/s"],
        [f"matrix x matrix, {run['settings']['dtype']}", f"{found['matrix'] / 1e9:.0f} GFLOP/s"],
    ]
    return common.table(lines, ["ceiling", "measured"], markdown)


def passes_table(entry: dict, markdown: bool) -> str:
    lines = [
        [
            str(p["width"]),
            f"{p['seconds'] * 1e3:.3g}",
            f"{p['to_narrowest']:.2f}",
            f"{p['floor_seconds'] * 1e3:.3g}",
            p["floor"],
            f"{p['share']:.0%}",
        ]
        for p in entry["passes"]
    ]
    return common.table(lines, ["m", "t(m) ms", "v(m)", "floor ms", "floor", "reached"], markdown)


def model_title(entry: dict) -> str:
    size = f"{entry['parameters'] / 1e6:.1f} M parameters, {entry['weight_bytes'] / 1e6:.0f} MB read in a pass"
    size += ", padded" * padding.is_lab_size(entry["name"])
    where = f"{entry['context']} tokens in the cache, {entry['engine']} engine"
    return f"{entry['role'].capitalize()} {entry['name']}: {size}, {where}"


def words(entry: dict) -> list[str]:
    """What the table says."""
    first, last = entry["passes"][0], entry["passes"][-1]
    turning = next((p["width"] for p in entry["passes"] if p["floor"] == "arithmetic"), None)
    found = [
        f"its bandwidth ceiling is {entry['bandwidth'] / 1e9:.1f} GB/s, the best seen for a block as large as its "
        f"weights (small ones stay in the processor's cache); a pass over {first['width']} runs at "
        f"{first['share']:.0%} of the floor's speed, a pass over {last['width']} at {last['share']:.0%}",
        "reading is the floor at every width here: wider passes could be free"
        if turning is None
        else f"from width {turning} on arithmetic is the floor: from there a wider pass must cost more",
    ]
    over = [p for p in entry["passes"] if p["share"] > 1]
    if over:
        found.append(
            "more than 100 % means that the ceiling was measured while something else used the machine: run it again "
            "on a quiet one"
        )
    return found


def page(run: dict, markdown: bool) -> str:
    blocks = ["# Passes against the machine's ceilings", common.provenance(run)] if markdown else []
    blocks += [common.heading("The machine", markdown), ceilings_table(run, markdown)]
    for entry in run["models"]:
        blocks += [common.heading(model_title(entry), markdown), passes_table(entry, markdown)]
        blocks.append(common.sentences(words(entry), markdown))
    legend = (
        "t(m): median time of a pass over m tokens; v(m): in passes over the narrowest; floor: the larger of bytes / "
        "bandwidth and operations / rate; reached: floor / t(m)"
    )
    return "\n\n".join([*blocks, common.sentences([legend], markdown)]) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
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


def models_to_time(args: argparse.Namespace, setup: Setup, widest: int) -> list[tuple[CachedModel, str, str]]:
    """The target, and the draft if it was asked for, with their roles and names."""
    models = [(setup.target, "target", setup.target_name)]
    if args.draft is not None:
        drafter = common.model_drafter(args.draft, setup, args.seed, "only a model has passes")
        models.append((drafter.draft, "draft", loading.short_name(args.draft)))
    for cached, _, _ in models:
        check_room(cached, args.context, widest)
    return models


def measure_model(
    args: argparse.Namespace, cached: CachedModel, role: str, name: str, widths: list[int], machine: dict, block: int
) -> dict:
    """The entry of one model."""
    times = time_passes(cached, widths, args.context, args.repeats, args.seed)
    own = bandwidth(min(block, max(weights_read(cached.model)[1], 2**16)), cached.device, cached.model.dtype)
    fastest = max(*own.values(), machine["copy"], machine["matrix_vector"], machine["sum"])
    return model_entry(cached, role, name, cached.engine, times, args.context, fastest, machine["matrix"])


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    widths = numbers(args.widths, int, 1, "--widths")
    common.check_result_flags(args, "roofline")
    names = common.sizes(args)
    entries, top, found = [], None, None
    with common.kept(entries) as stops:
        for setup in common.setups(args, names):
            block, models = check_block(args, setup.device), models_to_time(args, setup, max(widths))
            note(setup.describe())
            if found is None:
                found = ceilings(setup.device, setup.dtype, block)
                settings = {"targets": [], "widths": widths, "context": args.context, "repeats": args.repeats}
                top = common.head("roofline", args, setup, settings)
            entries += [measure_model(args, *model, widths, found, block) for model in models]
            top["settings"]["targets"].append(setup.target_name)
            # Once more after the passes, when the machine may be in a better mood; the ceiling is the best seen.
            found = better(found, ceilings(setup.device, setup.dtype, block))
            del setup, models  # or the next model would be loaded beside this one
    run = {**top, "block_bytes": block, "ceilings": found, "models": [renewed(e, found) for e in entries]}
    return common.finish(args, run, SCHEMA, page, stops)


def renewed(entry: dict, found: dict) -> dict:
    """An entry against the best ceilings of the whole run."""
    fastest = max(entry["bandwidth"], found["copy"], found["matrix_vector"], found["sum"])
    passes = []
    for p in entry["passes"]:
        least, kind = floor(p["bytes"], p["operations"], fastest, found["matrix"])
        passes.append({**p, "floor_seconds": least, "floor": kind, "share": least / p["seconds"]})
    return {**entry, "bandwidth": fastest, "matrix_rate": found["matrix"], "passes": passes}


if __name__ == "__main__":
    sys.exit(main())
