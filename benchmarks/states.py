"""What does a head lose that reads one state of the target in place of three? Heads learn side by side.

- feature: the lab's feature head, which reads the outputs of a low, a middle and a high layer
- feature, last layer: the same head, which reads the output of the last layer alone
- mtp: an MTP head, which reads that, too; it is one layer like the target's own, with the target's embedding and output
  layer, and so it has fewer weights that learn

All begin at random and learn by the recipe's loss (`python -m training.heads KIND`), on the same rows and for as many
steps, which they take in turn. Then greedy rounds are replayed. No clock is looked at.

    python -m benchmarks.states                        # an hour or more on one thread

Files: results/NAME-states.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
from dataclasses import dataclass, field

import torch

from benchmarks.shared import common, learning
from speclab.cli import parsing
from speclab.lab.harness import kept_when_stopped
from speclab.present.tables import Block, Cell, Heading, Lines, Table, interval, number
from speclab.records.rows import Count
from speclab.system.errors import reports_problems
from speclab.theory.formulas import ratio_interval
from training.kinds import KINDS

LAYERS, LAST = (3, 7, 10), 11  # that the lab's feature head reads, and the target's last one
ALL = "feature"
ARMS = {ALL: ["feature"], "feature, last layer": ["feature", "--layers", str(LAST)], "mtp": ["mtp"]}


@dataclass(kw_only=True)
class StatesRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.states`. weights: of each arm, those that learn."""

    weights: dict[str, Count]
    raw: list[learning.Replayed] = field(default_factory=list)


# --- training ---------------------------------------------------------------------------------------------------------


def loss_of(learner: learning.Learner, share: float) -> learning.LossOf:
    """Return the recipe's loss of a head, the same for all steps."""
    return KINDS[learner.kind].loss


def measure(
    args: argparse.Namespace, world: learning.World, raw: list[learning.Replayed], weights: dict[str, int]
) -> BaseException | None:
    """Train, and replay every --score-every steps.  -> what ended it early"""
    with kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops:
        words = ["--seed", str(args.seed)]
        learners = [learning.Learner.fresh(name, [*arm, *words], world, args.rate) for name, arm in ARMS.items()]
        weights.update({one.name: one.n_learning for one in learners})
        for first in range(0, args.steps, args.score_every):
            end = min(args.steps, first + args.score_every)
            learning.learn(world, learners, loss_of, range(first, end), args.steps, args.seed, args.rate)
            raw += [row for one in learners for row in learning.replayed(one, world, args.seed, end)]
    return stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "Each number of tokens per round is that of greedy rounds, replayed on texts that the target wrote: on held-out "
    "answers, and on the lab's prompts.",
    f"÷ {ALL} is the number of rounds of the head that reads three layers over that of this one, at k = 4, on the same "
    "texts, with its interval over texts. Each row is one training, and another seed would move it.",
]


def page(run: StatesRun) -> list[Block]:
    """The whole page, from the record alone."""
    arms, steps = list(run.weights), sorted({row.steps for row in run.raw})

    def of(arm: str, at: int) -> list[learning.Replayed]:
        return [row for row in run.raw if (row.arm, row.steps) == (arm, at)]

    def gain(arm: str) -> str:
        top, bottom = (learning.rounds_of_texts(of(one, steps[-1]), 1) for one in (ALL, arm))
        ends = interval(*(ratio_interval(top, bottom) or (None, None)))
        return "-" if arm == ALL else f"{sum(top) / sum(bottom):.2f}x ({ends})"

    def grown(arm: str, at: int) -> str:
        return number(learning.tokens_per_round(of(arm, at), 1))

    cells: dict[str, Cell] = {"head": lambda arm: arm, "weights (M)": lambda arm: number(run.weights[arm] / 1e6)}
    cells |= learning.replayed_columns(lambda arm: of(arm, steps[-1])) | {f"÷ {ALL}": gain}
    growth: dict[str, Cell] = {"steps": lambda at: f"{at:,}"}
    growth |= {arm: functools.partial(grown, arm) for arm in arms}
    said = run.settings
    about = (
        f"{steps[-1]} steps of {said['step_tokens']:,} tokens from random weights, peak rate {said['rate']:g}, "
        f"{learning.texts_line(run, run.raw)}"
    )
    return [
        *common.begin("Heads that read one state, and three", run),
        about,
        Table(arms, cells),
        Heading("Tokens per round at k = 4 by steps, all texts", 2),
        Table(steps, growth),
        Lines(LEGEND),
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--score-every", type=parsing.at_least(1), default=60, help="steps (default: %(default)s)")
    learning.add_training_flags(parser, steps=300, rate=4e-3)
    common.add_result_flags(parser, "states")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    world = learning.world_of(args, (*LAYERS, LAST))
    raw, weights = list[learning.Replayed](), dict[str, int]()
    stop = measure(args, world, raw, weights)
    run = StatesRun(**learning.fields_of(args, world, stop, ("score_every",)), raw=raw, weights=weights)
    return common.finish(args, run, page, stop)


if __name__ == "__main__":
    torch.set_flush_denormal(True)  # as in training/heads.py: products of numbers below 1e-38 are slow
    sys.exit(main())
