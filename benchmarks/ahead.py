"""What would it gain to draft the next round while the target verifies this one? A simulation on measured costs.

It needs a second device (speculative speculative decoding, arXiv 2603.03251), and nothing here runs on one. While the
target verifies, a second device would prepare drafts for outcomes of this round: n tokens accepted, and one of the
draft's next best guesses. Where the outcome is among them, the next draft is there at once.

What is counted: of every greedy round of a draft along the target's own texts, how many tokens are accepted, and which
of the draft's guesses the next token is. What is taken from a committed comparison: what drafting, verifying and the
rest of a round cost in steps, and its tokens per round. What is simulated from both: how long a round on two devices
takes.

What is assumed: the same outcomes are prepared in every round, those that came most often on other prompts; preparing
them all takes as long as one draft; talking to each other takes SYNC steps a round, which is no measured number. The
draft reads tokens alone: a head that reads the target's hidden states cannot be simulated so, since the states of an
outcome are there only after the verification.

    python -m benchmarks.ahead                       # a minute
    python -m benchmarks.ahead --costs results/cpu-2-cores-compiled.json --draft model -k 4

Files: results/NAME-ahead.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from speclab.cli import flags, parsing
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.lab.harness import kept_when_stopped
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Heading, Lines, Table, number, speedup
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.files import read_bytes
from speclab.system.paths import ROOT
from speclab.system.terminal import progress

GUESSES = 16  # next tokens that are told apart after each number of accepted ones
BUDGETS = (1, 2, 4, 8, 16)  # prepared drafts
SYNC = 0.1  # steps of the target a round for talking to each other: assumed, since no second device was there
COSTS = ROOT / "results" / "cpu-2-cores-compiled.json"
MOST_BYTES = 2**26  # of a record

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Outcomes(RecordPart):
    """The rounds of one prompt with one draft. counts: by the number of accepted tokens, 0 to k, and by the guess that
    the next token was, 0 to GUESSES - 1; the last entry of each row has all other tokens."""

    draft: str
    prompt_index: Count
    counts: list[list[Count]]


@dataclass(kw_only=True)
class RoundCosts(RecordPart):
    """The costs of a round in steps of the target, from a comparison. draft: for all tokens of a round. verify: with
    everything else that a round takes."""

    name: str
    tokens_per_round: Amount
    draft: Amount
    verify: Amount


@dataclass(kw_only=True)
class AheadRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.ahead`."""

    costs: list[RoundCosts]
    raw: list[Outcomes]


# --- counting ---------------------------------------------------------------------------------------------------------


def outcomes(rows: Tensor, text: list[int], k: int) -> list[list[int]]:
    """Count the outcomes of the rounds along a text, the first of which begins after its first token.

    rows: (starts, k + 1, vocabulary), what the draft says in a round that begins after so many tokens of the text and
    goes along it. text: at least starts + k + 1 tokens. -> (k + 1) rows as in `Outcomes`
    """
    counts = [[0] * (GUESSES + 1) for _ in range(k + 1)]
    start = 1
    while start < len(rows):
        ranked = rows[start].argsort(dim=-1, descending=True, stable=True)  # (k + 1, vocabulary)
        n = next((i for i in range(k) if int(ranked[i, 0]) != text[start + i]), k)
        guess = ranked[n].tolist().index(text[start + n]) - (n < k)  # the rejected token is no guess
        counts[n][min(guess, GUESSES)] += 1
        start += n + 1
    return counts


@torch.inference_mode()
def counted(setup: Setup, draft: registry.Choice, prompt: Prompt, text: list[int], k: int) -> list[list[int]]:
    """Count the outcomes of one prompt's rounds."""
    law = draft.make(setup).law(setup.target, prompt.id_list, text, Sampling(1.0), k + 1)
    starts = range(len(text) - k)
    rows = [law.drawn_from([(start, depth, k + 1) for depth in range(k + 1)]) for start in starts]
    return outcomes(torch.stack(rows), text, k)


Counts = list[list[int]]

# --- simulating -------------------------------------------------------------------------------------------------------


def prepared(counts: Counts, budget: int) -> list[tuple[int, int]]:
    """Return the `budget` outcomes that came most often, as (accepted tokens, guess). One that never came is not
    prepared, and of equally frequent ones the one with fewer accepted tokens is."""
    seen = [(-count, n, guess) for n, row in enumerate(counts) for guess, count in enumerate(row[:GUESSES]) if count]
    return [(n, guess) for _, n, guess in sorted(seen)[:budget]]


def hit_rate(chosen_on: Counts, scored_on: Counts, budget: int) -> float | None:
    """Return the share of the rounds of `scored_on` whose outcome is among the `budget` most frequent ones of
    `chosen_on`; None where one of them has no rounds."""
    n_chosen, n_scored = (sum(map(sum, counts)) for counts in (chosen_on, scored_on))
    if not n_chosen or not n_scored:
        return None
    return sum(scored_on[n][guess] for n, guess in prepared(chosen_on, budget)) / n_scored


def speed(costs: RoundCosts, hit: float | None) -> float:
    """Return the tokens in a step of two devices whose outcome is prepared with this chance; None: of one device."""
    if hit is None:
        return costs.tokens_per_round / (costs.verify + costs.draft)
    waiting = (1 - hit) * costs.draft + hit * max(0.0, costs.draft - costs.verify)
    return costs.tokens_per_round / (costs.verify + waiting + SYNC)


def needed(costs: RoundCosts) -> float | None:
    """Return the hit rate at which two devices are as fast as one, None where no rate is enough."""
    saved = min(costs.draft, costs.verify)  # by a hit
    return SYNC / saved if saved >= SYNC else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "SIMULATED: no second device took part. one device is tokens per round over the costs of a round. Two devices "
    "prepare so many drafts while the target verifies. always is with all outcomes prepared. needed is the hit rate "
    "at which two devices are as fast as one.",
    "hit rate is the share of the rounds whose outcome was among those that are prepared: the outcomes that came most "
    "often on the prompts with an even number, the same ones in every round. It is counted on the prompts with an odd "
    "number.",
    "Costs are in steps of the target: draft of all tokens of a round, verify with everything else in it. They and the "
    "tokens per round are those of the comparison, which had other lengths of text.",
    f"Assumed, not measured: preparing all drafts takes as long as one draft; talking to each other takes {SYNC:g} "
    "step a round in every column of two devices, hit or miss; a draft costs the second device what it costs the "
    "first one.",
    "Only drafts that read tokens alone are here. A head that reads the target's hidden states cannot prepare the same "
    "draft: the states of an outcome are there only after the verification.",
    "two texts: with the target and the draft on both devices and one text on each, as a server has it, the same two "
    "devices make twice the tokens of one device. They do not talk to each other.",
]


def halves(run: AheadRun) -> dict[str, tuple[Counts, Counts]]:
    """Return the outcomes of each draft, over the prompts with an even number and over those with an odd one."""
    names = list(dict.fromkeys(row.draft for row in run.raw))
    k = run.settings["k"]
    found = {}
    for name in names:
        rows = [row for row in run.raw if row.draft == name]
        even, odd = (added([row.counts for row in rows if row.prompt_index % 2 == half], k) for half in (0, 1))
        found[name] = even, odd
    return found


def added(counts: Sequence[Counts], k: int) -> Counts:
    """Add the outcomes of several prompts."""
    none = [[0] * (GUESSES + 1) for _ in range(k + 1)]
    return [[sum(cell) for cell in zip(*rows, strict=True)] for rows in zip(none, *counts, strict=True)]


def page(run: AheadRun) -> list[Block]:
    """The whole page, from the record alone."""
    k = run.settings["k"]
    total = halves(run)
    priced = [one for one in run.costs if one.name in total]
    rates: dict[str, Cell] = {
        "draft": lambda name: name,
        "rounds, even": lambda name: f"{sum(map(sum, total[name][0])):,}",
        "rounds, odd": lambda name: f"{sum(map(sum, total[name][1])):,}",
    }
    for budget in BUDGETS:
        rates[f"{budget} prepared"] = functools.partial(rate_in_words, total, budget)
    speeds: dict[str, Cell] = {
        "draft": lambda one: one.name,
        "draft cost": lambda one: number(one.draft),
        "verify cost": lambda one: number(one.verify),
        "tok/rnd": lambda one: number(one.tokens_per_round),
        "one device": lambda one: speedup(speed(one, None)),
    }
    for budget in BUDGETS:
        speeds[f"{budget} prepared"] = functools.partial(speed_in_words, total, budget)
    speeds |= {
        "always": lambda one: speedup(speed(one, 1.0)),
        "needed": lambda one: number(needed(one)),
        "two texts": lambda one: speedup(2 * speed(one, None)),
    }
    return [
        *common.begin("Drafting while the target verifies: a simulation", run),
        f"{len({row.prompt_index for row in run.raw})} prompts, greedy, k = {k}; costs of {run.settings['costs']}.",
        Heading("How often the outcome of a round is among so many", 2),
        Table(list(total), rates),
        Heading("Simulated speedup over plain decoding on one device", 2),
        Table(priced, speeds),
        Lines(LEGEND),
    ]


Totals = dict[str, tuple[Counts, Counts]]


def rate_in_words(total: Totals, budget: int, name: str) -> str:
    """Write the hit rate of a draft."""
    rate = hit_rate(*total[name], budget)
    return "-" if rate is None else f"{rate:.0%}"


def speed_in_words(total: Totals, budget: int, costs: RoundCosts) -> str:
    """Write the simulated speedup of a draft."""
    rate = hit_rate(*total[costs.name], budget)
    return "-" if rate is None else speedup(speed(costs, rate))


# --- the command ------------------------------------------------------------------------------------------------------


def costs_of(path: Path, k: int) -> list[RoundCosts]:
    """Return the costs in a comparison's record, greedy, of all drafts with this k. Raises EnvironmentProblem where it
    has none."""
    try:
        rows = json.loads(read_bytes(path, MOST_BYTES))["rows"]
        found = [
            RoundCosts(
                name=str(row["draft"]),
                tokens_per_round=float(row["tokens_per_round"]),
                draft=k * float(row["draft_cost"]),
                verify=float(row["verify_cost"]) + float(row["overhead"]),
            )
            for row in rows
            if row["draft_length"] == k and row["temperature"] == 0 and row["prompt_kind"] == "all"
            if row["draft_cost"] is not None
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentProblem(f"--costs {path}: it is no record of a comparison ({error}); give another") from None
    if not all(0 < one.verify < math.inf and 0 <= one.draft < math.inf for one in found):
        raise EnvironmentProblem(f"--costs {path}: it has a round that takes no time or no finite one; give another")
    if not found:
        raise EnvironmentProblem(f"--costs {path}: it has no greedy rows of k = {k}; give another file, or another -k")
    return found


def check_drafts(choices: list[registry.Choice]) -> None:
    """Raise UsageProblem where a draft is no draft model. Others read what an outcome lacks before the verification, or
    give no distribution that ranks their guesses."""
    for choice in choices:
        if not choice.is_model:
            raise UsageProblem(
                f"--draft {choice.text}: only a draft model reads tokens alone and gives a distribution at every "
                "place; give --draft model"
            )


def priced_of(choices: list[registry.Choice], costs: list[RoundCosts], path: Path, k: int) -> list[RoundCosts]:
    """Return the costs of these drafts. Raises UsageProblem where they lack one."""
    by_name = {one.name: one for one in costs}
    for choice in choices:
        if choice.name not in by_name:
            raise UsageProblem(
                f"--draft {choice.text}: {path.name} has no greedy costs of it at k = {k}, only of "
                f"{', '.join(by_name)}; give a draft model of these, or another --costs"
            )
    return [by_name[choice.name] for choice in choices]


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--draft", default="model", metavar="NAME,NAME", help="draft models (default: %(default)s)")
    group.add_argument("-k", type=parsing.at_least(1), default=4, help="drafted tokens (default: %(default)s)")
    group.add_argument(
        "--costs", type=parsing.some_path, default=COSTS, help="a comparison's record (default: %(default)s)"
    )
    common.add_result_flags(parser, "ahead")
    parser.set_defaults(limit=0, max_new_tokens=96)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args: argparse.Namespace = make_parser().parse_args(argv)
    common.check_result_flags(args)
    choices = registry.read_all(name for name in args.draft.split(",") if name)
    check_drafts(choices)
    costs = priced_of(choices, costs_of(args.costs, args.k), args.costs, args.k)
    if args.max_new_tokens < args.k + 3:
        raise UsageProblem(f"--max-new-tokens {args.max_new_tokens}: give at least {args.k + 3} for drafts of {args.k}")
    setup, prompts = flags.load(args, temperature=0.0)
    raw: list[Outcomes] = []
    with (
        kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops,
        progress(len(prompts), "prompt", "counting") as bar,
    ):
        for index, prompt in enumerate(prompts):
            plain = autoregressive_decode(setup.target, prompt.ids, DecodeSettings(args.max_new_tokens), 1)
            text = tokens_of(plain)
            if len(text) > args.k + 2:
                raw += [
                    Outcomes(draft=one.name, prompt_index=index, counts=counted(setup, one, prompt, text, args.k))
                    for one in choices
                ]
            bar.update()
    stop = stops[0] if stops else None
    fields = common.head_of(args, setup, stop, k=args.k, costs=args.costs.name, max_new_tokens=args.max_new_tokens)
    return common.finish(args, AheadRun(**fields, costs=costs, raw=raw), page, stop)


if __name__ == "__main__":
    sys.exit(main())
