"""How fast will speculation be here, at which draft length? A run of the baseline and calibrated costs give the answer.

    python -m speclab.extensions.plan               # for every draft a table of k = 0 to 16, and which k to take
    python -m speclab.extensions.plan --quick       # k up to 8, two prompts of a kind
    python -m speclab.extensions.plan --target FOLDER --draft FOLDER,ngram

The baseline's texts, one pass of each draft over them, and calibrated costs give the expected time at every draft
length (speclab/theory/formulas.py); the length with the highest expected speedup is taken.
What comes out: verdicts and tables, a run record (JSON), a page in Markdown, and a picture. See docs/why-not-faster.md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import operator
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speclab.cli import compare, flags, parsing
from speclab.cli.compare import Output, show
from speclab.drafts import registry
from speclab.lab.comparison import RunConfig, exit_code, measure_and_judge
from speclab.lab.harness import Measurement
from speclab.lab.known_texts import calibrated, probs_along
from speclab.lab.rows import noise_floors
from speclab.present import pictures, tables
from speclab.present.pictures import STYLES, Panel, Series, draw, plain
from speclab.present.report import COSTS
from speclab.present.screen import noise_lines, provenance, remarks, rough_line
from speclab.present.tables import Block, Cell, Lines, Markdown, Table, cells, speedup, temperature_name
from speclab.records.files import LabRun, Noise
from speclab.records.rows import BASELINE, Amount, Count, Facts, RecordPart
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import say
from speclab.theory import attribution
from speclab.theory.costs import Costs

# The defaults of what the command line leaves open. limit 0 means all prompts.
SIZES = {
    "a plan": {"limit": 4, "max_new_tokens": 64, "repeats": 3, "longest": 16},
    "quick": {"limit": 2, "max_new_tokens": 48, "repeats": 2, "longest": 8},
    "full": {"limit": 0, "max_new_tokens": 128, "repeats": 3, "longest": 16},
}


@dataclass(kw_only=True)
class PlanEntry(RecordPart):
    """The expectation for one draft at one length."""

    method: str
    draft: str
    temperature: Amount
    draft_length: Count
    speedup: Amount
    tokens_per_round: Amount
    acceptance_rate: float | None
    draft_cost: float | None
    verify_cost: float
    overhead: float


@dataclass(kw_only=True)
class DraftFacts(RecordPart):
    """A plan's verdict on one draft, at the length with the highest expected speedup."""

    method: str
    draft: str
    temperature: Amount
    best_draft_length: Count
    speedup: Amount
    step_seconds: Amount
    n_tokens: Count
    costs: Facts  # no view reads them


@dataclass(kw_only=True)
class PlanRun(LabRun):
    """The record of the command."""

    drafts: list[DraftFacts]
    noise: list[Noise]
    plan: list[PlanEntry]


# --- the plan ---------------------------------------------------------------------------------------------------------


def make(config: RunConfig) -> tuple[PlanRun, Measurement]:
    """Return the plan, and what it is made from."""
    # They do draft and verify: a pass right after other passes takes another time than the same pass alone. What they
    # accept is used only to know how many tokens a draft had to catch up.
    instruments = config.instruments(config.arms())
    measured = measure_and_judge(config, [BASELINE], instruments, "calibrating")
    costs = calibrated(measured)
    if not costs:
        raise measured.stop or UsageProblem("too few tokens to calibrate with; use a larger --max-new-tokens")
    entries: list[PlanEntry] = []
    facts: list[DraftFacts] = []
    for (draft, temperature), own in costs.items():
        drafter = config.drafters[draft]
        most = min(drafter.longest_draft, max(config.draft_lengths))
        # Beyond the tokens of a block nothing changes; of lengths that are all beyond it the first one stays.
        lengths = sorted(k for k in config.draft_lengths if k <= most) or [min(config.draft_lengths)]
        name = {"method": config.method(draft), "draft": draft, "temperature": temperature}
        by_length, fact = planned(measured, own, lengths, name)
        entries += by_length
        facts.append(fact)
    return PlanRun(**config.head(measured), drafts=facts, noise=noise_floors(measured.lines), plan=entries), measured


def planned(
    measured: Measurement, costs: Costs, lengths: list[int], name: dict[str, Any]
) -> tuple[list[PlanEntry], DraftFacts]:
    """Return one draft's expectation at every length, and the verdict, at one temperature on the baseline's texts.

    name: the fields that both have in common.
    """
    draft, temperature, bench = name["draft"], name["temperature"], measured.bench
    samples, sampling = measured.of(BASELINE, temperature), bench.setup.sampling_at(temperature)
    context = sum(s.n_prompt + len(s.texts[0]) // 2 for s in samples) // len(samples)
    texts = [  # tokens of the prompt, acceptance probabilities along the text
        (s.n_prompt, probs_along(bench, max(lengths), draft, sampling, measured.prompts[s.prompt_index], text))
        for s in samples
        for text in (s.texts if temperature else s.texts[:1])  # greedy repeats are the same text
    ]
    n_tokens = sum(len(rows) - 1 for _, rows in texts)
    baseline = sum(costs.step_seconds(n_prompt + i) for n_prompt, rows in texts for i in range(len(rows) - 1))
    step = costs.step_seconds(context)
    replay = costs.replay / step
    entries = []
    for k in lengths:
        found = [attribution.expected(rows, k, costs, n_prompt) for n_prompt, rows in texts]
        n_tested, n_rounds = sum(e.n_tested for e in found), sum(e.n_rounds for e in found)
        entries.append(
            PlanEntry(
                **name,
                draft_length=k,
                speedup=baseline / sum(e.cost for e in found),
                tokens_per_round=n_tokens / n_rounds,
                acceptance_rate=sum(e.n_accepted for e in found) / n_tested if n_tested else None,
                draft_cost=costs.draft_seconds(k, context) / k / step if k else None,
                verify_cost=costs.verify_seconds(k + 1, context) / step,
                overhead=costs.overhead_seconds(k) / step + sum(e.n_rejected for e in found) / n_rounds * replay,
            )
        )
    best = max(entries, key=operator.attrgetter("speedup"))  # the shortest among equals
    fact = DraftFacts(
        **name,
        best_draft_length=best.draft_length,
        speedup=best.speedup,
        step_seconds=step,
        n_tokens=n_tokens,
        costs=asdict(costs),
    )
    return entries, fact


# --- showing ----------------------------------------------------------------------------------------------------------


def verdict(fact: DraftFacts) -> str:
    """One line says what to do with one draft. Plain decoding is advised where no length is expected to be faster."""
    taken = "leave speculation off, no k is expected to be faster"
    if fact.best_draft_length > 0 and fact.speedup > 1:
        taken = f"take k = {fact.best_draft_length}, expected {speedup(fact.speedup)}"
    step = f"decode step {fact.step_seconds * 1e3:.2f} ms"
    return f"{fact.method}, {temperature_name(fact.temperature)}: {taken}; {step}"


def text(run: PlanRun, markdown: bool = False) -> str:
    """Return for every draft the verdict and a line per draft length; as a page in Markdown also where it is from."""
    first = Lines([*remarks(run), rough_line(run)])
    blocks: list[Block] = [Markdown("# The plan"), provenance(run), first] if markdown else [first]
    for fact in run.drafts:
        mark = functools.partial(_mark, fact)
        columns: dict[str, Cell] = {"draft": _method} | cells("k", "tok/rnd", "α", "c", "v", "o")
        columns |= {"expected": _expected, "plan": mark}
        blocks += [Lines([verdict(fact)]), Table(_of_draft(run, fact), columns)]
    alone = "loop alone: the speculative loop without a draft; plain decoding is 1.00x"
    return tables.show([*blocks, Lines([COSTS, alone, *noise_lines(run.noise)])], markdown)


def _method(entry: PlanEntry) -> str:
    return entry.method if entry.draft_length else "loop alone"


def _expected(entry: PlanEntry) -> str:
    return speedup(entry.speedup)


def _mark(fact: DraftFacts, entry: PlanEntry) -> str:
    if entry.draft_length != fact.best_draft_length:
        return "-"
    return "take" if entry.draft_length and fact.speedup > 1 else "best"


def _of_draft(run: PlanRun, fact: DraftFacts) -> list[PlanEntry]:
    return [one for one in run.plan if (one.method, one.temperature) == (fact.method, fact.temperature)]


def picture(run: PlanRun, folder: Path, name: str) -> Path:
    """Draw the speedup against k: as it is expected."""
    series = []
    for i, fact in enumerate(run.drafts):
        label = fact.method + f", T = {fact.temperature:g}" * (fact.temperature > 0)
        found = plain((entry.draft_length, entry.speedup) for entry in _of_draft(run, fact))
        series.append(Series(f"{label}, expected", found, i, STYLES[i % 2]))
    return pictures.save(draw([Panel(series, "draft length k")], 6.8, 4.8), run, folder, name)


# --- the command ------------------------------------------------------------------------------------------------------


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Make a plan, show and write it.  -> exit code"""
    config, output = _prepare(filled(make_parser().parse_args(argv)))
    say(compare.head(config))
    record, measured = make(config)
    page = functools.partial(text, record, markdown=True)
    drawn = functools.partial(picture, record, output.plots, output.name)
    show(output, record, functools.partial(text, record), page, [drawn])
    return exit_code(measured)  # raises what ended the run early, if that can be mended


def make_parser() -> argparse.ArgumentParser:
    """Return all flags of the command."""
    parser = parsing.make_parser(__doc__ or "", "python -m speclab.extensions.plan")
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("plan and results")
    kinds = "no branches, hybrids or early exit (default: %(default)s)"
    flags.add_draft_flag(group, "model,ngram", kinds)
    flags.add_run_flags(group, "lengths to try (default: 0 to 16; --quick 0 to 8)", "0 is greedy (default: 0)")
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, k = 0 to 8")
    size.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    flags.add_output_flags(group)
    parser.set_defaults(max_new_tokens=None, temperature="0")
    return parser


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments, with the defaults of the size that was asked for wherever the command line gives none."""
    size = dict(SIZES["quick" if args.quick else "full" if args.full else "a plan"])
    lengths = ",".join(map(str, range(size.pop("longest") + 1)))
    return flags.with_defaults(args, {"draft_length": lengths} | size)


def _prepare(args: argparse.Namespace) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths = parsing.numbers(args.draft_length, int, 0, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    registry.check_chains("a plan", registry.read_all(args.draft.split(",")))
    config, output = compare.prepare(args, f"{args.name}-plan", lengths, temperatures)
    for name, drafter in config.drafters.items():
        if len(drafter.parts) > 1 or drafter.runs_target:
            raise UsageProblem(f"--draft {name}: no plan knows what its rounds draft and cost; leave it out")
    return config, output


if __name__ == "__main__":
    sys.exit(main())
