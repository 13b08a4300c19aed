"""What do three methods of 2026 add to the lab's drafts? Rounds are counted, all arms side by side.

    python -m benchmarks.tried                       # all of them, minutes
    python -m benchmarks.tried --methods again --limit 6

- again: a second block behind a sure one, before verification (again.py)
- carried: states of rejected tokens as further context of the next draft (carried.py)
- copies: a hybrid that asks the target's state whether the text is a copy (copies.py)

Every text is compared with the baseline's: greedy, so they must be equal. Counts alone, no clock is looked at.
Files: results/NAME-tried.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from baseline_autoregressive import autoregressive_decode
from benchmarks.shared import common
from benchmarks.tried import again, carried, copies
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.drafts import registry
from speclab.drafts.hybrid import USUAL
from speclab.lab.harness import kept_when_stopped
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Heading, Lines, Table, interval, number, speedup
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.terminal import progress
from speclab.theory.formulas import ratio_interval

METHODS = ("again", "carried", "copies")
FIRST_ARMS = ("block", "feature", "hybrid")  # what the other arms of a method are compared with, by their first word

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class TriedRow(RecordPart):
    """The rounds of one prompt with one arm. n_passes: of the head, where they were counted. accepted_at, tested_at: by
    the token's number in its draft. steps: what the rounds of a hybrid cost, in the target's steps (`USUAL`)."""

    method: str
    arm: str
    prompt_index: Count
    kind: str
    n_rounds: Count
    n_drafted: Count
    n_accepted: Count
    n_looked_up: Count
    n_passes: Count
    accepted_at: list[Count]
    tested_at: list[Count]
    steps: Amount


@dataclass(kw_only=True)
class Judged(RecordPart):
    """How well a rule tells right tokens of a lookup from wrong ones, on the prompts' texts."""

    rule: str
    n_tokens: Count
    n_right: Count
    area: Amount


@dataclass(kw_only=True)
class TriedRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.tried`."""

    raw: list[TriedRow]
    judged: list[Judged]


# --- measuring --------------------------------------------------------------------------------------------------------

Arms = dict[tuple[str, str], tuple[Drafter, int]]


def arms_of(args: argparse.Namespace, setup: Setup, gates: dict[str, copies.Regression]) -> Arms:
    """Return the drafters by method and name, each with its draft length."""
    block: Any = registry.make("block", setup, args.seed)
    feature: Any = registry.make("feature", setup, args.seed)
    made = {
        "again": lambda: again.arms(setup, block),
        "carried": lambda: carried.arms(setup, block, feature),
        "copies": lambda: copies.arms(setup, feature, gates),
    }
    return {(method, name): arm for method in args.methods for name, arm in made[method]().items()}


def decoded(setup: Setup, drafter: Drafter, k: int, prompt: Prompt, budget: int, plain: list[int]) -> dict[str, Any]:
    """Decode a prompt, and count.  Raises EnvironmentProblem where the text is not the baseline's."""
    passes = getattr(drafter, "n_passes", 0)
    made = speculative_decode(setup.target, drafter, prompt.ids, k, DecodeSettings(budget))
    rounds = [drafter.described(round_) for round_ in made]
    if tokens_of(rounds) != plain:
        raise EnvironmentProblem("a text is not the baseline's")
    counted = [r for r in rounds if not r.prefill]
    depth = range(max([r.n_drafted for r in counted], default=0))
    return {
        "n_rounds": len(counted),
        "n_drafted": sum(r.n_drafted for r in counted),
        "n_accepted": sum(r.n_accepted for r in counted),
        "n_looked_up": sum(r.looked_up for r in counted),
        "n_passes": getattr(drafter, "n_passes", 0) - passes,
        "accepted_at": [sum(r.n_accepted > i for r in counted) for i in depth],
        "tested_at": [sum(r.n_accepted + r.n_rejected > i for r in counted) for i in depth],
        "steps": sum(cost(r) for r in counted),
    }


def cost(round_: Round) -> float:
    """Return what a round of a hybrid costs, in steps: a lookup is free. A longer draft counts as the longest one."""
    n = min(round_.n_drafted, USUAL.longest)
    return USUAL.rest[n] if round_.looked_up else USUAL.seconds(n)


def measure(
    args: argparse.Namespace, setup: Setup, prompts: list[Prompt], raw: list[TriedRow], judged: list[Judged]
) -> BaseException | None:
    """Decode prompt by prompt.  -> what ended it early"""
    k = 6
    feature: Any = registry.make("feature", setup, args.seed)
    layers = feature.head.config.layers
    gates = copies.fitted(setup, layers, k, args.seed + 1) if "copies" in args.methods else {}
    arms = arms_of(args, setup, gates)
    tested = []
    with (
        kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops,
        progress(len(prompts), "prompt", "decoding") as bar,
    ):
        for index, prompt in enumerate(prompts):
            settings = DecodeSettings(args.max_new_tokens)
            plain = tokens_of(autoregressive_decode(setup.target, prompt.ids, settings, 1))
            of_prompt = []
            for (method, name), (drafter, length) in arms.items():
                found = decoded(setup, drafter, length, prompt, args.max_new_tokens, plain)
                of_prompt.append(TriedRow(method=method, arm=name, prompt_index=index, kind=prompt.kind, **found))
            raw += of_prompt
            if gates:
                tested.append(copies.Tested.along(setup, layers, prompt.id_list, plain, k))
            bar.update()
    if tested:
        of_all = copies.Tested.together(tested)
        scores = {"match": of_all.matched.float()}
        scores |= {name: gate.chance(of_all.states, of_all.matched) for name, gate in gates.items()}
        n, n_right = len(of_all.right), int(of_all.right.sum())
        judged += [
            Judged(rule=name, n_tokens=n, n_right=n_right, area=copies.area(score, of_all.right))
            for name, score in scores.items()
        ]
    return stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

TITLES = {
    "again": "A second block behind a sure one",
    "carried": "States of rejected tokens as context",
    "copies": "A hybrid that asks the state",
}
LEGEND = [
    "passes counts the head's passes in a round. by position has, from the eighth token on, the share of tested tokens "
    "that was accepted, with the number of tested ones.",
    "rounds ÷ is the number of rounds with the plain draft over that with this one, with its interval over prompts. "
    "steps ÷ is the same of what the rounds cost, where a drafted token costs an eighth of a step, a token more to "
    "verify a fifteenth, and a lookup nothing.",
    "All texts were equal to the baseline's.",
]


def page(run: TriedRun) -> list[Block]:
    """The whole page, from the record alone."""
    blocks = common.begin("Methods that were tried", run)
    n = len({row.prompt_index for row in run.raw})
    blocks.append(f"{n} of the lab's prompts, greedy, {run.settings['max_new_tokens']} tokens each.")
    for method in dict.fromkeys(row.method for row in run.raw):
        blocks += [Heading(TITLES[method], 2), _table([row for row in run.raw if row.method == method])]
    if run.judged:
        cells: dict[str, Cell] = {
            "rule": lambda one: one.rule,
            "tested tokens": lambda one: str(one.n_tokens),
            "right": lambda one: str(one.n_right),
            "area under the curve": lambda one: number(one.area, 3),
        }
        blocks.append(Table(run.judged, cells))
    return [*blocks, Lines(LEGEND)]


def _table(rows: list[TriedRow]) -> Table:
    names = list(dict.fromkeys(row.arm for row in sorted(rows, key=lambda row: row.prompt_index)))
    names = sorted(names, key=lambda name: (name not in FIRST_ARMS, name))
    of = {name: [row for row in rows if row.arm == name] for name in names}

    def first(name: str) -> str:
        word = name.split(",")[0].split()[0]
        return word if word in of else names[0]

    def total(name: str, what: str) -> float:
        return sum(getattr(row, what) for row in of[name])

    def ratio(name: str, what: str) -> str:
        if name == first(name):
            return "-"
        pairs = zip(of[first(name)], of[name], strict=True)
        both = [(float(getattr(a, what)), float(getattr(b, what))) for a, b in pairs]
        top, bottom = map(list, zip(*both, strict=True))
        return f"{speedup(sum(top) / sum(bottom))} ({interval(*(ratio_interval(top, bottom) or (None, None)))})"

    def beyond(name: str) -> str:
        longest = max(len(row.tested_at) for row in of[name])
        tested = [sum(row.tested_at[i] for row in of[name] if i < len(row.tested_at)) for i in range(longest)]
        accepted = [sum(row.accepted_at[i] for row in of[name] if i < len(row.accepted_at)) for i in range(longest)]
        shown = [f"{a / t:.2f} of {t}" for a, t in zip(accepted[7:11], tested[7:11], strict=True) if t]
        return ", ".join(shown) or "-"

    cells: dict[str, Cell] = {
        "arm": lambda name: name,
        "tok/rnd": lambda name: number(1 + total(name, "n_accepted") / total(name, "n_rounds")),
        "drafted": lambda name: number(total(name, "n_drafted") / total(name, "n_rounds")),
        "passes": lambda name: number(total(name, "n_passes") / total(name, "n_rounds")),
        "looked up": lambda name: f"{total(name, 'n_looked_up') / total(name, 'n_rounds'):.0%}",
        "by position": beyond,
        "rounds ÷": lambda name: ratio(name, "n_rounds"),
        "steps ÷": lambda name: ratio(name, "steps"),
    }
    if not any(total(name, "n_looked_up") for name in names):
        cells.pop("steps ÷")
    for column, what in (("passes", "n_passes"), ("looked up", "n_looked_up")):
        if not any(total(name, what) for name in names):
            cells.pop(column)
    if all(beyond(name) == "-" for name in names):
        cells.pop("by position")
    return Table(names, cells)


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--methods", default=",".join(METHODS), metavar="NAME,NAME", help="(default: %(default)s)")
    common.add_result_flags(parser, "tried")
    parser.set_defaults(limit=0, max_new_tokens=96)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    args.methods = [name for name in args.methods.split(",") if name]
    if not args.methods or not set(args.methods) <= set(METHODS):
        raise UsageProblem(f"--methods: give some of {', '.join(METHODS)}, with commas between them")
    common.check_result_flags(args)
    setup, prompts = flags.load(args, temperature=0.0)
    raw, judged = list[TriedRow](), list[Judged]()
    stop = measure(args, setup, prompts, raw, judged)
    fields = common.head_of(args, setup, stop, prompts, methods=args.methods, max_new_tokens=args.max_new_tokens)
    return common.finish(args, TriedRun(**fields, raw=raw, judged=judged), page, stop)


if __name__ == "__main__":
    sys.exit(main())
