"""`compare.py --plan`: how fast will speculation be here, at which draft length? Answered without a speculative run.

The baseline's texts, one pass of each draft over them, and calibrated costs give the expected time at every draft
length (theory/forecast.py). The instrumented decodings that calibrate the costs do draft and verify, because a pass
costs what it costs only in that rhythm; what they accept is used only to know how many tokens a draft had to catch up.

`--verify-plan` makes the plan on half of the prompts and then measures on the other half.
"""

from collections.abc import Iterable
from typing import Any

from speclab.core.sampling import Sampling
from speclab.lab.acceptance_chances import CostTable, calibrated, chances
from speclab.lab.comparison import build_rows, explained, halves, measure_and_judge
from speclab.lab.harness import Bench, Measurement, is_model, keeping, measure
from speclab.lab.run_config import RunConfig
from speclab.models.prompts import Prompt
from speclab.records.runs import DraftFacts, LengthSpeedup, PlanEntry, PlanFacts, PlanRun, Verified, VerifiedDraft
from speclab.records.samples import BASELINE, Arm, Sample
from speclab.system.errors import UsageProblem
from speclab.theory import attribution
from speclab.theory.costs import Costs
from speclab.theory.forecast import forecast, oracle
from speclab.theory.formulas import break_even_acceptance

LENGTHS = ",".join(map(str, range(17)))
MEASURED_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # on the other half, and what the plan chose


def check_prompts(config: RunConfig) -> None:
    """UsageProblem where a plan cannot be verified on these prompts."""
    if not _held_out(config):
        raise UsageProblem("a plan is checked on prompts it has not seen; give at least two prompts of a kind")


def _held_out(config: RunConfig) -> set[int]:
    return halves((prompt.kind, index) for index, prompt in enumerate(config.prompts))


def make(config: RunConfig, verify: bool = False) -> tuple[PlanRun, Measurement]:
    """The plan and, with `verify`, how it did on prompts that it had not seen.  -> the record, what it is made from"""
    held_out = _held_out(config) if verify else set()
    planned_on = [prompt for i, prompt in enumerate(config.prompts) if i not in held_out]
    bench = config.bench()
    measured = measure(
        bench,
        [BASELINE],
        config.temperatures,
        planned_on,
        config.repeats,
        config.setup.sampling,
        config.instruments(config.arms()),
        "calibrating",
    )
    entries, facts = make_plan(config, bench, measured, planned_on)
    verified = None
    if verify and not measured.interrupted:
        with keeping(measured, "the plan is complete, its check is not"):
            reported_on = [prompt for i, prompt in enumerate(config.prompts) if i in held_out]
            verified, checked = _verify(config, facts, reported_on, calibrated(measured))
            measured.extend(checked)
    made = PlanRun(**config.head(measured), facts=PlanFacts(drafts=facts), verified=verified, plan=entries)
    return made, measured


def make_plan(
    config: RunConfig, bench: Bench, found: Measurement, prompts: list[Prompt]
) -> tuple[list[PlanEntry], list[DraftFacts]]:
    """Expected speedup of every draft at every length, and for every draft what to do about it."""
    entries, facts = [], []
    if not calibrated(found):
        raise UsageProblem("too few tokens to calibrate with; use a larger --max-new-tokens")
    with keeping(found, "the measurements are complete, the plans of some drafts are missing"):
        for (draft, temperature), costs in calibrated(found).items():
            mine, fact = _plan(config, bench, found, prompts, draft, temperature, costs)
            entries += mine
            facts.append(fact)
    if not facts:
        raise found.stop or AssertionError("nothing stopped it")
    return entries, facts


def _plan(
    config: RunConfig,
    bench: Bench,
    found: Measurement,
    prompts: list[Prompt],
    draft: str,
    temperature: float,
    costs: Costs,
) -> tuple[list[PlanEntry], DraftFacts]:
    """The same for one draft at one temperature."""
    baseline = found.of(BASELINE, temperature)
    sampling = config.sampling(temperature)
    context = sum(s.n_prompt + len(s.texts[0]) // 2 for s in baseline) // len(baseline)
    name: dict[str, Any] = {"method": config.method(draft), "draft": draft, "temperature": temperature}
    texts = _Texts(bench, draft, baseline, prompts, sampling, max(config.draft_lengths))
    mine = [PlanEntry(**name, **_expect(texts, costs, k, context)) for k in config.draft_lengths]
    best = max(mine, key=lambda e: e.speedup)
    k = best.draft_length or 1
    c = costs.draft_cost(k, context)
    pays = is_model(bench.drafters[draft])
    fact = DraftFacts(
        **name,
        best_draft_length=best.draft_length,
        speedup=best.speedup,
        acceptance_rate=best.acceptance_rate,
        oracle=texts.oracle(costs),
        break_even=_break_even(costs, c, k, context, max(config.draft_lengths)) if pays else None,
        draft_cost=c,
        verify_cost=costs.verify_cost(best.draft_length + 1, context),
        step_seconds=costs.step_seconds(context),
        n_tokens=texts.n_tokens,
        costs=costs.to_json(),
        yours=_readers_choice(config, best, costs, context),
    )
    return mine, fact


def _readers_choice(config: RunConfig, best: PlanEntry, costs: Costs, context: int) -> int | None:
    """What a reader's own exercise 6 chooses for the same draft, where it is in use and something was tested."""
    alpha, k = best.acceptance_rate, best.draft_length or 1
    if config.reader.choose_length is None or alpha is None:
        return None
    prices = (costs.draft_cost(k, context), lambda width: costs.verify_cost(width, context), costs.overhead(k, context))
    return config.reader.choose_length(alpha, *prices, max(config.draft_lengths))


def _break_even(costs: Costs, draft_cost: float, k: int, context: int, longest: int) -> float | None:
    """The acceptance from which on drafting pays, at this draft's cost; a lookup that may find nothing has none."""
    return break_even_acceptance(
        draft_cost, lambda width: costs.verify_cost(width, context), costs.overhead(k, context), longest
    )


class _Texts:
    """The baseline's texts with their acceptance chances for one draft."""

    def __init__(
        self,
        bench: Bench,
        draft: str,
        baseline: Iterable[Sample],
        prompts: list[Prompt],
        sampling: Sampling,
        longest: int,
    ):
        self.longest = longest
        self.known = []  # (prompt tokens, new tokens, chances)
        for sample in baseline:
            of = chances(bench, draft, prompts[sample.prompt_index], sampling, longest)
            texts = sample.texts[:1] if sampling.greedy else sample.texts  # greedy repeats are the same text
            self.known += [(sample.n_prompt, len(text), of(text)) for text in texts]
        self.n_tokens = sum(n - 1 for _, n, _ in self.known)

    def baseline_seconds(self, costs: Costs) -> float:
        return sum(costs.step_seconds(prompt + i) for prompt, n, _ in self.known for i in range(n - 1))

    def oracle(self, costs: Costs) -> float:
        """Speedup with the best draft length at every place, known in advance: what no adaptive rule can pass."""
        best = [
            oracle(rows, n, self.longest, attribution.round_cost(costs, prompt)).cost for prompt, n, rows in self.known
        ]
        return self.baseline_seconds(costs) / sum(best)


def _expect(texts: _Texts, costs: Costs, k: int, context: int) -> dict[str, Any]:
    expected = [
        forecast(rows, n, k, attribution.round_cost(costs, prompt), costs.draft_catch)
        for prompt, n, rows in texts.known
    ]
    tested = sum(e.n_tested for e in expected)
    return {
        "draft_length": k,
        "speedup": texts.baseline_seconds(costs) / sum(e.cost for e in expected),
        "tokens_per_round": texts.n_tokens / sum(e.n_rounds for e in expected),
        "drafted_per_round": sum(e.n_drafted for e in expected) / sum(e.n_rounds for e in expected),
        "acceptance_rate": sum(e.n_accepted for e in expected) / tested if tested else None,
        "draft_cost": costs.draft_cost(k, context) if k else None,
        "verify_cost": costs.verify_cost(k + 1, context),
        "overhead": costs.overhead(k, context),
    }


def _verify(
    config: RunConfig, facts: list[DraftFacts], prompts: list[Prompt], costs: CostTable
) -> tuple[Verified, Measurement]:
    """Measure the planned length and its rivals on prompts the plan has not seen.  -> for the record, what was found"""
    arms = [BASELINE]
    for draft in config.drafters:
        planned = {fact.best_draft_length for fact in facts if fact.draft == draft}
        lengths = sorted({k for k in MEASURED_LENGTHS if k in config.draft_lengths} | planned)
        arms += [Arm(config.method(draft), draft, k) for k in lengths]
    bench, found = measure_and_judge(config, arms, {}, prompts)
    built = explained(found, lambda priced: build_rows(config, bench, found, priced, prompts), costs)
    rows = [row for row in built if row.prompt_kind == "all" and row.draft]
    drafts = []
    for fact in facts:
        mine = [r for r in rows if (r.draft, r.temperature) == (fact.draft, fact.temperature)]
        if not mine:
            continue
        chosen = next(r for r in mine if r.draft_length == fact.best_draft_length)
        best = max(mine, key=lambda r: r.speedup)
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
    return Verified(n_prompts=n_prompts, drafts=drafts, rows=rows, correctness=found.correctness), found
