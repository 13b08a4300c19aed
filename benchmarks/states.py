"""What reading the target's hidden states costs: passes with and without them, side by side.

A draft that reads the target's hidden states needs the outputs of some layers of every pass, side by side in one
tensor. The same pass is timed without them, and with them, on each engine; the exported engine's passes keep the
outputs of all layers, so it is exported once more without any.

    python -m benchmarks.states                                   # the lab's target, half a minute
    python -m benchmarks.states --target lab:200m --layers 3,7,10 --widths 1,5

Files: results/NAME-states.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import common
from speclab.cli import flags, parsing
from speclab.models.backends.eager import decoder_layers
from speclab.models.backends.exported import ExportedModel
from speclab.models.backends.protocols import FastModel
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.models.timing import time_passes
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.records.rows import Amount, Count, Part
from speclab.system.errors import UsageProblem, reports_problems


@dataclass(kw_only=True)
class StatesPasses(Part):
    """Passes of one width on one engine: medians, and the median of each pass with states over the one beside it."""

    engine: str
    width: Count
    seconds: Amount
    seconds_with_states: Amount
    ratio: Amount


@dataclass(kw_only=True)
class StatesRun(common.BenchmarkRun):
    """`python -m benchmarks.states`."""

    layers: list[Count]
    passes: list[StatesPasses]


def without_states(fast: FastModel | None) -> FastModel | None:
    """The same engine, exported once more with passes that give logits alone."""
    if not isinstance(fast, ExportedModel):
        return fast
    plain = ExportedModel(fast.model, layers=())
    plain.padded, plain.plain_up_to = fast.padded, fast.plain_up_to
    return plain


class Reading(CachedModel):
    """Every pass is followed by what a draft asks for."""

    def forward(self, tokens: Tensor, states: Tensor | None = None) -> Tensor:
        """(1, m) ids -> (1, m, vocab) logits"""
        logits = super().forward(tokens, states)
        self.hidden(self.hidden_layers)
        return logits


def measure(setup: Setup, layers: tuple[int, ...], widths: list[int], context: int, repeats: int) -> list[StatesPasses]:
    """On the eager engine, and on the fast one where the target has it."""
    target, measured = setup.target, []
    for fast in [None, target.fast] if target.fast else [None]:
        plain = CachedModel(target.model, target.vocab_size, without_states(fast))
        reading = Reading(target.model, target.vocab_size, fast)
        reading.hidden_layers = layers
        for width in widths:
            without, with_states = (
                times[1:] for times in time_passes([(plain, width), (reading, width)], context, repeats + 1)
            )
            measured.append(
                StatesPasses(
                    engine=plain.engine,
                    width=width,
                    seconds=statistics.median(without),
                    seconds_with_states=statistics.median(with_states),
                    ratio=statistics.median(b / a for a, b in zip(without, with_states, strict=True)),
                )
            )
    return measured


def page(run: StatesRun) -> list[Block]:
    """Everything a reader gets, from the record alone."""
    cells: dict[str, Cell] = {
        "engine": lambda p: p.engine,
        "tokens": lambda p: str(p.width),
        "pass ms": lambda p: number(1e3 * p.seconds, 3),
        "with states ms": lambda p: number(1e3 * p.seconds_with_states, 3),
        "ratio": lambda p: number(p.ratio, 3),
    }
    layers = ", ".join(map(str, run.layers))
    legend = (
        f"states: outputs of layers {layers} (from 0), side by side; ratio: median over passes that were neighbours"
    )
    return [*common.begin("What hidden states cost", run), Table(run.passes, cells), Lines([legend])]


def layers_of(text: str | None, setup: Setup) -> tuple[int, ...]:
    """--layers, or a third, two thirds and almost all the way up, as the lab's head reads them."""
    n = len(decoder_layers(setup.target.model))
    if text is None:
        return (max(0, n // 3 - 1), max(0, 2 * n // 3 - 1), max(0, n - 2))
    layers = tuple(parsing.numbers(text, int, 0, "--layers"))
    if layers[-1] >= n:
        raise UsageProblem(f"--layers {text}: the target has {n} layers; give numbers from 0 to {n - 1}")
    return layers


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument(
        "--layers", metavar="N,N", help="whose outputs (default: a third, two thirds, almost all the way)"
    )
    group.add_argument("--widths", default="1,5,9", metavar="M,M", help="tokens of a pass (default: %(default)s)")
    group.add_argument("--context", type=parsing.at_least(1), default=256, help="tokens in the cache (default: 256)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=100, help="passes of each (default: 100)")
    common.add_result_flags(parser, "states")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args: argparse.Namespace = make_parser().parse_args(argv)
    widths = parsing.numbers(args.widths, int, 1, "--widths")
    common.check_result_flags(args)
    setup = flags.setup_from(args)
    layers = layers_of(args.layers, setup)
    with torch.inference_mode():
        passes = measure(setup, layers, widths, args.context, args.repeats)
    fields: dict[str, Any] = common.head_of(args, setup)
    fields["settings"] |= {"context": args.context, "repeats": args.repeats}
    return common.finish(args, StatesRun(**fields, layers=list(layers), passes=passes), page)


if __name__ == "__main__":
    sys.exit(main())
