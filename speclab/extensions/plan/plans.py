"""How fast will speculation be here, at which draft length? A plan answers without a speculative run.

The baseline's texts, one pass of each draft over them, and calibrated costs give the expected time at every draft
length (theory/forecast.py). The instrumented decodings that calibrate the costs do draft and verify, because a pass
costs what it costs only in that rhythm; what they accept is used only to know how many tokens a draft had to catch up.

The length with the highest expected speedup is taken. Every expectation gets an interval, and so does every length's
time over that of the best, so that the plan says which lengths may be as fast (intervals.py).

`--verify` makes the plan on half of the prompts and then measures on the other half.
"""

import functools
import operator
from typing import Any

import numpy as np

from speclab.extensions.plan import intervals
from speclab.extensions.plan.break_even import break_even_acceptance
from speclab.extensions.plan.given import probs_of_profile
from speclab.extensions.plan.plan_record import (
    DraftFacts,
    LengthSpeedup,
    PlanEntry,
    PlanFacts,
    PlanRun,
    Verified,
    VerifiedDraft,
)
from speclab.extensions.plan.profiles import Profile
from speclab.lab.comparison import build_rows, measure_and_judge, noise_at, with_costs
from speclab.lab.harness import Measurement
from speclab.lab.known_texts.acceptance_probs import CostTable, ProbsOfText, calibrated, probs_of_texts
from speclab.lab.rows import halves
from speclab.lab.run_config import RunConfig
from speclab.models.prompts import Prompt
from speclab.records.arms import BASELINE, Arm
from speclab.records.log import Line
from speclab.system.errors import UsageProblem
from speclab.theory import attribution
from speclab.theory.costs import Costs
from speclab.theory.fitting import fit
from speclab.theory.forecast import forecast

MEASURED_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # on the other half, and what the plan chose


def check(config: RunConfig, verify: bool = False) -> None:
    """Raise UsageProblem where a draft cannot be planned, or where a plan cannot be verified on these prompts."""
    for name, drafter in config.drafters.items():
        if len(drafter.parts) > 1:
            raise UsageProblem(
                f"--draft {name}: what it drafts depends on the rounds before, so no plan knows it; leave it out"
            )
    if verify and not _held_out(config):
        raise UsageProblem("a plan is checked on prompts it has not seen; give at least two prompts of a kind")


def _held_out(config: RunConfig) -> set[int]:
    return halves((prompt.kind, index) for index, prompt in enumerate(config.prompts))


def make(config: RunConfig, verify: bool = False, given: Profile | None = None) -> tuple[PlanRun, Measurement]:
    """Return the plan and, with `verify`, how it did on prompts that it had not seen.

    given: a profile whose acceptance is taken in the place of the draft's own.  -> the record, what it is made from
    """
    held_out = _held_out(config) if verify else set()
    planned_on = [prompt for i, prompt in enumerate(config.prompts) if i not in held_out]
    instruments = config.instruments(config.arms())
    measured = measure_and_judge(config, [BASELINE], instruments, planned_on, title="calibrating")
    costs: CostTable = {}
    with measured.kept("the measurements are complete, their costs are not"):
        costs = calibrated(measured)
    entries, facts = make_plan(config, measured, costs, given)
    noise = [floor for temperature in config.temperatures if (floor := noise_at(measured, temperature))]
    verified = None
    if verify and not measured.interrupted:
        with measured.kept("the plan is complete, its check is not"):
            reported_on = [prompt for i, prompt in enumerate(config.prompts) if i in held_out]
            verified, checked = _verify(config, facts, reported_on, costs)
            measured.extend(checked)
    record = PlanRun(
        **config.head(measured),
        facts=PlanFacts(drafts=facts, acceptance_profile=given and given._asdict()),
        verified=verified,
        noise=noise,
        plan=entries,
    )
    return record, measured


def make_plan(
    config: RunConfig, measured: Measurement, cost_table: CostTable, given: Profile | None = None
) -> tuple[list[PlanEntry], list[DraftFacts]]:
    """Return expected speedup of every draft at every length, and for every draft what its best length promises.

    given: a profile; no draft is asked then what it would have proposed, and no length is beyond the profile's.
    """
    entries, facts = [], []
    if not cost_table:
        raise measured.stop or UsageProblem("too few tokens to calibrate with; use a larger --max-new-tokens")
    probs = _probs_of(given) if given else probs_of_texts(measured, max(config.draft_lengths))
    others: dict[int, CostTable] = {}
    with measured.kept("the measurements are complete, the plan's intervals are not"):
        others = without_each_prompt(measured)
    with measured.kept("the measurements are complete, the plans of some drafts are missing"):
        for (draft, temperature), costs in cost_table.items():
            key = (draft, temperature)
            draft_plan = _DraftPlan(measured.of(BASELINE, temperature), draft, costs, probs)
            left_out = {prompt: table[key] for prompt, table in others.items() if key in table}
            name: dict[str, Any] = {"method": config.method(draft), "draft": draft, "temperature": temperature}
            drafter = config.drafters[draft]
            most = min(drafter.longest_draft, max(config.draft_lengths), *([given.draft_length] if given else []))
            # Beyond the tokens of a block nothing changes; of lengths that are all beyond it the first one stays.
            lengths = sorted(k for k in config.draft_lengths if k <= most) or [min(config.draft_lengths)]
            by_length = [PlanEntry(**name, **draft_plan.expected(k)) for k in lengths]
            best = max(by_length, key=operator.attrgetter("speedup"))  # the shortest among equals
            _add_intervals(by_length, best, *draft_plan.seconds_by_prompt(lengths, left_out))
            best_facts = draft_plan.facts(
                config, best, bool(drafter.models) and drafter.draws and not drafter.needs_text
            )
            facts.append(DraftFacts(**name, **best_facts, costs=costs.to_json()))
            entries += by_length
    if not facts:
        raise measured.stop or AssertionError("nothing stopped it")
    return entries, facts


def _probs_of(given: Profile) -> ProbsOfText:
    return lambda draft, temperature, prompt_index, text: probs_of_profile(given, len(text))


def without_each_prompt(measured: Measurement) -> dict[int, CostTable]:
    """Return a dict: prompt -> the costs that are calibrated without it.

    It is empty where the prompts are too few for an interval.
    """
    indexes = sorted({sample.prompt_index for sample in measured.lines})
    if len(indexes) < intervals.FEWEST:
        return {}
    tables = {}
    for index in indexes:
        rounds = [round_ for round_ in measured.rounds if round_.prompt != index]
        tables[index] = fit(rounds, [step for step in measured.steps if step.prompt != index])
    return tables


def _add_intervals(entries: list[PlanEntry], best: PlanEntry, baseline: np.ndarray, seconds: np.ndarray) -> None:
    """Put the intervals of one draft into its entries.

    baseline (prompts,), seconds (prompts, entries): what each prompt adds to them.
    """
    best_seconds = seconds[:, entries.index(best)]
    for entry, entry_seconds in zip(entries, seconds.T, strict=True):
        entry.band_low, entry.band_high = intervals.interval(baseline, entry_seconds)
        if entry is not best:
            entry.time_low, entry.time_high = intervals.interval(entry_seconds, best_seconds)


class _DraftPlan:
    """One draft at one temperature on the baseline's texts: `samples`, whose repeats are the same text if greedy."""

    def __init__(self, samples: list[Line], draft: str, costs: Costs, probs: ProbsOfText):
        self.costs = costs
        self.context = sum(s.n_prompt + len(s.texts[0]) // 2 for s in samples) // len(samples)
        self.texts = [  # index and tokens of the prompt, acceptance probabilities along the text
            (s.prompt_index, s.n_prompt, probs(draft, s.temperature, s.prompt_index, tuple(text)))
            for s in samples
            for text in (s.texts if s.temperature else s.texts[:1])
        ]
        self.n_tokens = sum(len(rows) - 1 for _, _, rows in self.texts)
        self.baseline_seconds = self._baseline(self.costs)

    def _baseline(self, costs: Costs, left_out: int | None = None) -> float:
        return sum(
            costs.step_seconds(n_prompt + i)
            for index, n_prompt, rows in self.texts
            if index != left_out
            for i in range(len(rows) - 1)
        )

    def seconds_by_prompt(self, lengths: list[int], left_out: dict[int, Costs]) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds that each prompt adds to the baseline (prompts,) and to every length (prompts, lengths).

        left_out: for each prompt the costs that were calibrated without it.
        """
        longest = max(lengths)
        works: dict[tuple[int, int], intervals.Work] = {}
        for index, n_prompt, rows in self.texts:
            for k in lengths:
                work = intervals.work_of_text(rows, n_prompt, k, longest)
                works[index, k] = works[index, k] + work if (index, k) in works else work
        prompts = {index for index, _ in works}
        total = [functools.reduce(operator.add, (works[index, k] for index in prompts)) for k in lengths]
        without = [
            [self._baseline(costs, index)]
            + [(total_work - works[index, k]).seconds(costs) for k, total_work in zip(lengths, total, strict=True)]
            for index, costs in left_out.items()
            if index in prompts
        ]
        everything = [self.baseline_seconds, *(total_work.seconds(self.costs) for total_work in total)]
        added = intervals.added(everything, np.reshape(without, (-1, len(everything))))
        return added[:, 0], added[:, 1:]

    def expected(self, k: int) -> dict[str, Any]:
        """Return the fields of PlanEntry at draft length k."""
        costs, context = self.costs, self.context
        forecasts = [
            forecast(
                rows,
                len(rows),
                k,
                attribution.round_cost(costs, n_prompt),
                costs.draft_catch,
                rejected_round_extra=costs.replay,
            )
            for _, n_prompt, rows in self.texts
        ]
        n_tested, n_rounds = sum(e.n_tested for e in forecasts), sum(e.n_rounds for e in forecasts)
        replays = sum(e.n_rejected for e in forecasts)
        return {
            "draft_length": k,
            "speedup": self.baseline_seconds / sum(e.cost for e in forecasts),
            "tokens_per_round": self.n_tokens / n_rounds,
            "drafted_per_round": sum(e.n_drafted for e in forecasts) / n_rounds,
            "acceptance_rate": sum(e.n_accepted for e in forecasts) / n_tested if n_tested else None,
            "draft_cost": costs.draft_cost(k, context) if k else None,
            "verify_cost": costs.verify_cost(k + 1, context),
            "overhead": costs.overhead(k, context) + replays / n_rounds * costs.replay / costs.step_seconds(context),
        }

    def facts(self, config: RunConfig, best: PlanEntry, always_drafts: bool) -> dict[str, Any]:
        """Return the fields of DraftFacts.

        A lookup that may find nothing has no acceptance rate from which on it pays.
        """
        costs, context, longest = self.costs, self.context, max(config.draft_lengths)
        k = best.draft_length or 1
        prices = (
            costs.draft_cost(k, context),
            lambda width: costs.verify_cost(width, context),
            costs.overhead(k, context),
        )
        oracle_seconds = sum(attribution.cheapest(rows, longest, costs, n_prompt) for _, n_prompt, rows in self.texts)
        replay = costs.replay / costs.step_seconds(context)
        return {
            "best_draft_length": best.draft_length,
            "speedup": best.speedup,
            "acceptance_rate": best.acceptance_rate,
            "oracle": self.baseline_seconds / oracle_seconds,
            "break_even": break_even_acceptance(*prices, longest, replay) if always_drafts else None,
            "draft_cost": prices[0],
            "verify_cost": costs.verify_cost(best.draft_length + 1, context),
            "step_seconds": costs.step_seconds(context),
            "n_tokens": self.n_tokens,
            "n_prompts": len({index for index, _, _ in self.texts}),
        }


def _verify(
    config: RunConfig, facts: list[DraftFacts], prompts: list[Prompt], costs: CostTable
) -> tuple[Verified, Measurement]:
    """Measure the planned length and its rivals on prompts the plan has not seen.  -> for the record, what was timed"""
    arms = [BASELINE]
    for draft in config.drafters:
        planned = {fact.best_draft_length for fact in facts if fact.draft == draft}
        lengths = sorted({k for k in MEASURED_LENGTHS if k in config.draft_lengths} | planned)
        arms += [Arm(config.method(draft), draft, k) for k in lengths]
    measured = measure_and_judge(config, arms, {}, prompts)
    all_rows = with_costs(measured, lambda own: build_rows(config, measured, own), costs)
    rows = [row for row in all_rows if row.prompt_kind == "all" and row.draft]
    drafts = []
    for fact in facts:
        its_rows = [r for r in rows if (r.draft, r.temperature) == (fact.draft, fact.temperature)]
        if not its_rows:
            continue
        chosen = next(r for r in its_rows if r.draft_length == fact.best_draft_length)
        best = max(its_rows, key=lambda r: r.speedup)
        drafts.append(
            VerifiedDraft(
                method=fact.method,
                draft=fact.draft,
                temperature=fact.temperature,
                planned=LengthSpeedup(draft_length=chosen.draft_length, speedup=fact.speedup),
                measured=chosen.speedup,
                best_measured=LengthSpeedup(draft_length=best.draft_length, speedup=best.speedup),
                share_of_best=chosen.speedup / best.speedup,
            )
        )
    n_prompts = max((r.n_prompts for r in rows), default=0)
    return Verified(n_prompts=n_prompts, drafts=drafts, rows=rows, correctness=measured.correctness), measured
