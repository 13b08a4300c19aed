"""How close is a pass of the model to what this machine can do at all?

A pass over m tokens must read every weight once and do 2 x weights x m operations. The machine reads so many bytes and
does so many operations a second: the slower of the two is a floor no code can beat. While reading is the floor, a pass
over five tokens may cost what one costs, and only then can speculative decoding gain much.

What comes out: the machine's ceilings, measured; then for each width m the time t(m) of a pass, v(m) = t(m) / t(1), its
floor, which of the two floors it is, and the share of it that was reached.

    python -m benchmarks.roofline                                # the lab's target, about half a minute
    python -m benchmarks.roofline --draft model --context 1000
    python -m benchmarks.roofline --target lab:200m --widths 1,2,3,5,9,17

Bytes: the weights once (of an embedding that is not the output layer only the rows in use, so none), and the cache.
Operations: two for each weight and token, and attention over the cache. A mixture of experts would read less.
The bandwidth is the best of copying (bytes read plus written), a matrix-vector product and a sum, over 256 MiB (CUDA:
1 GiB) and over a block as large as the weights: small weights may stay in the processor's cache, and then that is the
ceiling.
Files: results/NAME-roofline.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import statistics
import sys
from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.clock import seconds
from speclab.models import loading, padding
from speclab.models.cached import CachedModel
from speclab.models.family import cached_layers
from speclab.models.memory import bandwidth, best, block_bytes, weights_read
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Heading, Lines, Table
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note

# --- the record -------------------------------------------------------------------------------------------------------

READING = ("copy", "matrix_vector", "sum")  # three ways to measure bytes a second
Role = Literal["target", "draft"]


@dataclass(kw_only=True)
class Pass(RecordPart):
    """Passes over `width` tokens, and the bytes and operations of one of them."""

    width: Count
    seconds: Amount  # median
    bytes: Count
    operations: Count


@dataclass(kw_only=True)
class ModelPasses(RecordPart):
    """One model and its passes."""

    name: str
    role: Role
    engine: str
    parameters: Count
    weight_bytes: Count
    context: Count  # tokens in the cache
    bandwidth: Amount  # bytes a second over a block as large as the weights
    passes: list[Pass]


@dataclass(kw_only=True)
class RooflineRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.roofline`."""

    block_bytes: Count
    ceilings: dict[str, Amount]  # by READING, and `matrix`: operations a second of a matrix product
    models: list[ModelPasses]


# --- what the machine can do ------------------------------------------------------------------------------------------


def cached_shapes(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Return two sizes for every layer with a cache: how many numbers it keeps for each token, and the width of a
    head."""
    pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cached_layers(model)]
    kept = [(k, v) for k, v in pairs if isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)]
    return [((keys.numel() + values.numel()) // 2, keys.shape[-1]) for keys, values in kept]


def cache_bytes(model: PreTrainedModel, n_tokens: int) -> int:
    return sum(n for n, _ in cached_shapes(model)) * n_tokens * model.dtype.itemsize


def operations(model: PreTrainedModel, width: int, context: int) -> int:
    """Return the operations of a pass over `width` tokens after `context`: 2 a weight and token, and attention's."""
    heads = getattr(model.config.get_text_config(), "num_attention_heads", 1)
    attended = sum(context + i + 1 for i in range(width))
    per_pair = sum(4 * heads * size for _, size in cached_shapes(model))
    return 2 * weights_read(model)[0] * width + per_pair * attended


@torch.inference_mode()
def matrix_rate(device: torch.device, dtype: torch.dtype, repeats: int = 5) -> float:
    rates = []
    for n in (4096, 8192) if device.type == "cuda" else (768, 1536):
        a, b = (torch.randn(n, n, dtype=torch.float32, device=device).to(dtype) for _ in range(2))
        rates.append(2 * n**3 / best(functools.partial(torch.mm, a, b), device, repeats))
    return max(rates)


def ceilings_of(setup: Setup, block: int) -> dict[str, float]:
    return {**bandwidth(block, setup.device, setup.dtype), "matrix": matrix_rate(setup.device, setup.dtype)}


# --- what the model does ----------------------------------------------------------------------------------------------


def time_passes(model: CachedModel, ids: torch.Tensor, widths: list[int], repeats: int) -> list[list[float]]:
    """Return the seconds of every repeat of each width, taking turns, over the end of a text whose beginning the cache
    holds.  ids: (1, context + the largest width). One more turn, the first one, meets the shapes and does not count.
    """
    ids, context = ids.to(model.device), ids.shape[1] - max(widths)
    model.prefill(ids[:, :context])
    length, times = model.length, {width: list[float]() for width in widths}
    for turn in range(1 + repeats):
        for width in widths if turn % 2 == 0 else widths[::-1]:  # steady drift cancels
            tokens = ids[:, context : context + width]
            times[width].append(seconds(functools.partial(model.forward, tokens), model.device))
            model.crop(length)
    return [of_width[1:] for of_width in times.values()]


def measure_model(args: argparse.Namespace, role: Role, name: str, cached: CachedModel, block: int) -> ModelPasses:
    """Measure passes of one model, and the bandwidth over a block as large as its weights, `block` bytes at most."""
    model, weight_bytes = cached.model, weights_read(cached.model)[1] - getattr(cached.fast, "bytes_spared", 0)
    generator = torch.Generator().manual_seed(args.seed)
    text = torch.randint(0, cached.vocab_size, (1, args.context + args.widths[-1]), generator=generator)
    runs = time_passes(cached, text, args.widths, args.repeats)
    passes = [
        Pass(
            width=width,
            seconds=statistics.median(times),
            bytes=weight_bytes + cache_bytes(model, args.context + width),
            operations=operations(model, width, args.context),
        )
        for width, times in zip(args.widths, runs, strict=True)
    ]
    return ModelPasses(
        name=name,
        role=role,
        engine=cached.engine,
        parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=weight_bytes,
        context=args.context,
        bandwidth=max(bandwidth(min(block, max(weight_bytes, 2**16)), cached.device, model.dtype).values()),
        passes=passes,
    )


# --- views of the record ----------------------------------------------------------------------------------------------


LEGEND = [
    "t(m) is the median time of a pass over m tokens, and v(m) the same in passes of the narrowest width. floor is the "
    "larger of bytes / bandwidth and operations / rate; reached is floor / t(m).",
    "Where reading is the floor, a wider pass could be free; where arithmetic is the floor, it must cost more. More "
    "than 100 % reached means that something else used the machine while the ceiling was measured.",
]


def best_bandwidth(model: ModelPasses, ceilings: dict[str, float]) -> float:
    return max(model.bandwidth, *(ceilings[way] for way in READING))


def ceilings_table(run: RooflineRun) -> Table:
    ceilings, size = run.ceilings, f"{run.block_bytes / 2**20:.0f} MiB"
    rows = [(f"{way.replace('_', ' x ')}, {size}", f"{ceilings[way] / 1e9:.1f} GB/s") for way in READING]
    rows.append((f"matrix x matrix, {run.settings['dtype']}", f"{ceilings['matrix'] / 1e9:.0f} GFLOP/s"))
    return Table(rows, {"ceiling": lambda row: row[0], "measured": lambda row: row[1]})


def passes_table(model: ModelPasses, ceilings: dict[str, float]) -> Table:
    """A table with a line for every width, and its floor: seconds that no code can beat, and what takes them."""
    speed, rate, first = best_bandwidth(model, ceilings), ceilings["matrix"], model.passes[0].seconds
    floors = {p.width: max((p.bytes / speed, "reading"), (p.operations / rate, "arithmetic")) for p in model.passes}
    cells: dict[str, Cell] = {
        "m": lambda p: str(p.width),
        "t(m) ms": lambda p: f"{p.seconds * 1e3:.3g}",
        "v(m)": lambda p: f"{p.seconds / first:.2f}",
        "floor ms": lambda p: f"{floors[p.width][0] * 1e3:.3g}",
        "floor": lambda p: floors[p.width][1],
        "reached": lambda p: f"{floors[p.width][0] / p.seconds:.0%}",
    }
    return Table(model.passes, cells, n_words=0)


def model_title(model: ModelPasses, ceilings: dict[str, float]) -> str:
    size = f"{model.parameters / 1e6:.1f} M parameters, {model.weight_bytes / 1e6:.0f} MB read in a pass"
    size += ", padded" * model.name.startswith(padding.PREFIX)
    speed = f"bandwidth {best_bandwidth(model, ceilings) / 1e9:.1f} GB/s"
    where = f"{model.context} tokens in the cache, {model.engine} engine, {speed}"
    return f"{model.role.capitalize()} {model.name}: {size}, {where}"


def page(run: RooflineRun) -> list[Block]:
    blocks = [*common.begin("Passes against the machine's ceilings", run), Heading("The machine"), ceilings_table(run)]
    for model in run.models:
        blocks += [Heading(model_title(model, run.ceilings)), passes_table(model, run.ceilings)]
    return [*blocks, Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    parser.add_argument("--draft", metavar="KIND", help="time this draft model, too: model, a folder or a hub name")
    group = parser.add_argument_group("benchmark")
    group.add_argument("--widths", default="1,2,3,5,9,17", metavar="M,M", help="(default: %(default)s)")
    group.add_argument("--context", type=parsing.at_least(1), default=256, help="tokens in the cache (default: 256)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=15, help="of every width (default: 15)")
    common.add_result_flags(parser, "roofline")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    args.widths = parsing.numbers(args.widths, int, 1, "--widths")
    output = common.check_result_flags(args)
    setup = flags.setup_from(args, flags.sampling_from(args))
    models: list[tuple[Role, str, CachedModel]] = [("target", setup.target_name, setup.target)]
    if args.draft is not None:
        drafter = common.model_drafter(args.draft, setup, args.seed, "only a model has passes")
        models.append(("draft", loading.short_name(args.draft), drafter.draft))
    for _, _, cached in models:
        room = (cached.room.text or sys.maxsize) - args.widths[-1]
        if args.context > room:
            raise UsageProblem(f"--context {args.context} and the widest pass do not fit; use --context {room} or less")
    note(setup.describe())
    block = block_bytes(setup.device)
    before = ceilings_of(setup, block)
    measured = [measure_model(args, *model, block) for model in models]
    after = ceilings_of(setup, block)  # once more: the machine may be faster now
    ceilings = {way: max(speed, after[way]) for way, speed in before.items()}
    settings = {name: getattr(args, name) for name in ("widths", "context", "repeats")}
    fields = common.head_of(args, setup, targets=[setup.target_name], **settings)
    run = RooflineRun(**fields, block_bytes=block, ceilings=ceilings, models=measured)
    common.finish(output, run, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
