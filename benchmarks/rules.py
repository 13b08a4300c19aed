"""How many more tokens does block verification keep than the token rule? The same draft, the same prompts, counts
alone.

Both rules give the target's distribution, so both arms make texts of the same law; the block rule needs fewer rounds.
Every prompt is decoded --repeats times with each rule, with other random numbers each time. No clock is looked at.

    python -m benchmarks.rules                                   # the lab pair at temperatures 0.8 and 1, minutes
    python -m benchmarks.rules --draft feature:HEAD -k 4 --repeats 4

Files: results/NAME-rules.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import itertools
import sys
from dataclasses import dataclass

from benchmarks import common
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.core.counts import Counts
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings
from speclab.core.rule_table import rule_of
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.lab.harness import kept_when_stopped
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table, interval, number, speedup
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import progress
from speclab.theory.formulas import ratio_interval

RULES = ("token", "block")

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class RuleCounts(RecordPart):
    """The counts of one prompt with one rule, all repeats together; the token from the prompt's own pass is left
    out."""

    rule: str
    temperature: Amount
    draft_length: Count
    prompt_index: Count
    n_rounds: Count
    n_drafted: Count
    n_accepted: Count
    n_tokens: Count


@dataclass(kw_only=True)
class RulesRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.rules`."""

    raw: list[RuleCounts]


# --- measuring --------------------------------------------------------------------------------------------------------


def counts(
    setup: Setup, drafter: Drafter, prompt: Prompt, k: int, sampling: Sampling, rule: str, budget: int, seeds: list[int]
) -> Counts:
    """The counts of the decodings of one prompt, one for each seed."""
    total = Counts()
    for seed in seeds:
        settings = DecodeSettings(budget, sampling, seed=seed)
        ids = prompt.ids.to(setup.device)
        for round_ in speculative_decode(setup.target, drafter, ids, k, settings, rule_of(rule).accept):
            if not round_.prefill:
                total.add(round_)
    return total


def measure(
    args: argparse.Namespace, setup: Setup, prompts: list[Prompt], lengths: list[int], temperatures: list[float]
) -> tuple[list[RuleCounts], BaseException | None]:
    """Measure prompt by prompt.  -> counts of the prompts that every arm has finished, what ended it early"""
    # One for each case: hybrids learn, and no case teaches another.
    drafter = registry.make(args.draft, setup, args.seed)
    drafters = {case: copy.deepcopy(drafter) for case in itertools.product(temperatures, lengths, RULES)}
    for own in drafters.values():
        own.forget()
    raw: list[RuleCounts] = []
    registry.check_prompts(setup.target, [drafter], prompts, args.max_new_tokens)
    with (
        kept_when_stopped(lambda: "what is measured is kept" if raw else "") as stops,
        progress(len(prompts), "prompt", "counting") as bar,
    ):
        for index, prompt in enumerate(prompts):
            of_prompt = []
            for (temperature, k, rule), own in drafters.items():
                first = ((args.seed * len(RULES) + RULES.index(rule)) * 1009 + index) * args.repeats
                seeds = list(range(first, first + args.repeats))
                n = counts(setup, own, prompt, k, setup.sampling_at(temperature), rule, args.max_new_tokens, seeds)
                of_prompt.append(
                    RuleCounts(
                        rule=rule,
                        temperature=temperature,
                        draft_length=k,
                        prompt_index=index,
                        n_rounds=n.n_rounds,
                        n_drafted=n.n_drafted,
                        n_accepted=n.n_accepted,
                        n_tokens=n.n_emitted,
                    )
                )
            raw += of_prompt
            bar.update()
    return raw, stops[0] if stops else None


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "token and block are the tokens per round with the token rule and with block verification. more is the second over "
    "the first, with its interval over prompts.",
    "Greedy decoding and one-hot drafts (n-grams) give the same with both rules.",
]


def page(run: RulesRun) -> list[Block]:
    """The whole page, from the record alone."""
    cases = list(dict.fromkeys((row.temperature, row.draft_length) for row in run.raw))

    def of(case: tuple[float, int], rule: str) -> list[RuleCounts]:
        return [row for row in run.raw if (row.temperature, row.draft_length) == case and row.rule == rule]

    def per_round(case: tuple[float, int], rule: str) -> float:
        return sum(row.n_tokens for row in of(case, rule)) / sum(row.n_rounds for row in of(case, rule))

    def ends(case: tuple[float, int]) -> str:
        # Both arms make as many tokens of a prompt, so the ratio of tokens per round is that of rounds, upside down.
        by_token, by_block = ([float(row.n_rounds) for row in of(case, rule)] for rule in RULES)
        return interval(*(ratio_interval(by_token, by_block) or (None, None)))

    cells: dict[str, Cell] = {
        "T": lambda case: f"{case[0]:g}",
        "k": lambda case: str(case[1]),
        "token": lambda case: number(per_round(case, "token")),
        "block": lambda case: number(per_round(case, "block")),
        "more": lambda case: speedup(per_round(case, "block") / per_round(case, "token")),
        "95 %": ends,
    }
    n = len({row.prompt_index for row in run.raw})
    about = f"draft {run.settings['draft']}; {n} prompts, {run.settings['repeats']} texts of each with each rule"
    return [*common.begin("Block verification against the token rule", run), about, Table(cases, cells), Lines(LEGEND)]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser.add_argument_group("draft"))
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="2,4,8", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--temperature", default="0.8,1", metavar="T,T", help="above 0 (default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=3, help="(default: %(default)s)")
    common.add_result_flags(parser, "rules")
    parser.set_defaults(limit=10, max_new_tokens=64)
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    lengths = parsing.numbers(args.draft_length, int, 1, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    if 0 in temperatures:
        raise UsageProblem("greedy decoding is the same with both rules; give --temperature above 0")
    common.check_result_flags(args)
    registry.read(args.draft).check_greedy(False)
    setup, prompts = flags.load(args, temperature=0.0)
    raw, stop = measure(args, setup, prompts, lengths, temperatures)
    fields = common.head_of(
        args,
        setup,
        stop,
        prompts,
        draft=registry.read(args.draft).name,
        draft_lengths=lengths,
        temperatures=temperatures,
        max_new_tokens=args.max_new_tokens,
        repeats=args.repeats,
    )
    return common.finish(args, RulesRun(**fields, raw=raw), page, stop)


if __name__ == "__main__":
    sys.exit(main())
