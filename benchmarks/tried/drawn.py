"""Certain or drawn tokens in a tree: which keeps more when sampling? Counts alone.

A tree of the most probable tokens hands each over as certain, a distribution with a 1 in it. The target then keeps one
with the target's own probability of it. A tree whose tokens are drawn without replacement (SpecInfer, arXiv 2305.09781)
keeps more where the target is unsure, and wastes places on improbable tokens where it is sure.

    python -m benchmarks.tried.drawn                 # minutes

Every prompt is decoded with every draft at every temperature; all texts follow the target's distribution. Files:
results/NAME-drawn.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
from dataclasses import dataclass

from benchmarks.shared import common
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.core.rounds import DecodeSettings
from speclab.drafts import registry
from speclab.lab.harness import kept_when_stopped
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table, number
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import progress
from speclab.theory.formulas import ratio_interval

DEPTH = 2  # tokens of a branch
SHAPES = ("1x1", "2x1", "3x1")
CHAIN = "chain, drawn"


@dataclass(kw_only=True)
class DrawnCounts(RecordPart):
    """The rounds of one prompt with one draft. arm: the shape of the tree, and whether its tokens are certain."""

    arm: str
    temperature: Amount
    prompt_index: Count
    n_rounds: Count
    n_accepted: Count


@dataclass(kw_only=True)
class DrawnRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.tried.drawn`."""

    raw: list[DrawnCounts]


def arms(model: str) -> dict[str, str]:
    """Return what `--draft` says of each arm."""
    found = {CHAIN: model}
    for shape in SHAPES:
        found[f"{shape}, certain"] = f"tree:{shape}:{model}"
        found[f"{shape}, drawn"] = f"sampled-tree:{shape}:{model}"
    return found


def measure(
    args: argparse.Namespace, setup: Setup, prompts: list[Prompt], temperatures: list[float], raw: list[DrawnCounts]
) -> BaseException | None:
    """Decode prompt by prompt.  -> what ended it early"""
    drafters = {arm: registry.make(draft, setup, args.seed) for arm, draft in arms(args.draft).items()}
    with (
        kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops,
        progress(len(prompts), "prompt", "counting") as bar,
    ):
        for index, prompt in enumerate(prompts):
            of_prompt = []
            for temperature in temperatures:
                for number_, (arm, drafter) in enumerate(drafters.items()):
                    seed = (args.seed * len(drafters) + number_) * 1009 + index
                    settings = DecodeSettings(args.max_new_tokens, setup.sampling_at(temperature), seed=seed)
                    (length,) = drafter.lengths([DEPTH])
                    made = speculative_decode(setup.target, drafter, prompt.ids.to(setup.device), length, settings)
                    rounds = [one for one in made if not one.prefill]
                    of_prompt.append(
                        DrawnCounts(
                            arm=arm,
                            temperature=temperature,
                            prompt_index=index,
                            n_rounds=len(rounds),
                            n_accepted=sum(one.n_accepted for one in rounds),
                        )
                    )
            raw += of_prompt
            bar.update()
    return stops[0] if stops else None


LEGEND = [
    f"Each number is the tokens per round at a temperature, with {DEPTH} tokens in each branch. A tree 2x1 has two "
    "first tokens and one after each. certain: the draft's most probable tokens; drawn: drawn without replacement.",
    "÷ certain is the number of rounds with certain tokens over that with drawn ones, same shape, with its interval "
    "over prompts. The chain is 1x1, drawn, by another program.",
]


def page(run: DrawnRun) -> list[Block]:
    """The whole page, from the record alone."""
    temperatures = sorted({row.temperature for row in run.raw})
    names = list(dict.fromkeys(row.arm for row in run.raw))

    def of(arm: str, temperature: float) -> list[DrawnCounts]:
        return [row for row in run.raw if (row.arm, row.temperature) == (arm, temperature)]

    def per_round(temperature: float, arm: str) -> str:
        rows = of(arm, temperature)
        if not any(row.n_rounds for row in rows):
            return "-"  # all texts ended with the token of the prompt's own pass
        return number(1 + sum(row.n_accepted for row in rows) / sum(row.n_rounds for row in rows))

    def gain(temperature: float, arm: str) -> str:
        shape, _, kind = arm.partition(", ")
        certain = f"{shape}, certain"
        if kind != "drawn" or certain not in names:
            return "-"
        top, bottom = ([float(row.n_rounds) for row in of(one, temperature)] for one in (certain, arm))
        if not sum(top) or not sum(bottom):
            return "-"
        ends = ratio_interval(top, bottom) or (None, None)
        return f"{sum(top) / sum(bottom):.2f}x ({number(ends[0])} to {number(ends[1])})"

    cells: dict[str, Cell] = {"tokens": lambda arm: arm}
    for temperature in temperatures:
        cells[f"T = {temperature:g}"] = functools.partial(per_round, temperature)
    for temperature in temperatures:
        cells[f"÷ certain, T = {temperature:g}"] = functools.partial(gain, temperature)
    n = len({row.prompt_index for row in run.raw})
    return [
        *common.begin("Certain and drawn tokens in a tree", run),
        f"{n} prompts, {run.settings['max_new_tokens']} tokens each, draft {run.settings['draft']}.",
        Table(names, cells),
        Lines(LEGEND),
    ]


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--draft", default="model", metavar="NAME", help="model, feature or block (default: model)")
    group.add_argument("--temperatures", default="0.8,1.2", metavar="T,T", help="(default: %(default)s)")
    common.add_result_flags(parser, "drawn")
    parser.set_defaults(limit=0, max_new_tokens=64)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    common.check_result_flags(args)
    temperatures = parsing.numbers(args.temperatures, float, 0.01, "--temperatures")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    setup, prompts = flags.load(args, temperature=temperatures[0])
    raw: list[DrawnCounts] = []
    stop = measure(args, setup, prompts, temperatures, raw)
    fields = common.head_of(args, setup, stop, max_new_tokens=args.max_new_tokens, draft=args.draft)
    return common.finish(args, DrawnRun(**fields, raw=raw), page, stop)


if __name__ == "__main__":
    sys.exit(main())
