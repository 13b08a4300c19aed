"""One comparison from end to end: measure, check, price, and make the rows of the record."""

import itertools
from collections.abc import Callable
from typing import TypeVar

from draft_models import ModelDrafter
from speclab.core.rounds import Drafter
from speclab.core.sampling import Sampling
from speclab.lab.acceptance_chances import CostTable, calibrated, chances
from speclab.lab.harness import Bench, Measurement, is_model, keeping, measure, mixed
from speclab.lab.output_checks import exit_code, judge
from speclab.lab.run_config import Job, instruments, with_generate
from speclab.models import memory
from speclab.models.prompts import Prompt
from speclab.present import plots, report
from speclab.records import rows
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm, Sample
from speclab.system import terminal
from speclab.system.errors import Problem
from speclab.system.files import do_all
from speclab.theory import attribution, drift

Made = TypeVar("Made")


def compare(job: Job) -> int:
    """`python compare.py`: the whole comparison, its files and its words.  -> exit code"""
    arms, base = with_generate(job, job.arms()), job.setup.sampling
    bench = job.bench()
    with job.talk():
        terminal.say(job.describe())
        found = measure(bench, arms, job.temperatures, job.prompts, job.args.repeats, base, instruments(job, arms))
        judge(bench, found, job.prompts, base, job.setup.tokenizer)
        run = explained(found, lambda prices: comparison_record(job, bench, found, prices))
        fault = None
        with keeping(found, "the rows are complete, your own predictions of them are not"):
            fault = add_yours(job, found, run)
        run["interrupted"] = found.interrupted
        tables = [lambda: terminal.say(report.comparison(run, by_kind=job.args.by_kind))]
        if job.args.verbose:
            tables.append(lambda: terminal.say(describe_bytes(job)))
        files = job.writes(run, lambda: report.comparison(run, by_kind=True, markdown=True))
        code = do_all(itertools.chain(tables, files, plots.comparison(run, job.plots, job.name)))
    wrong = exit_code(found)
    if fault:
        raise fault
    return code or wrong


def explained(found: Measurement, make: Callable[[CostTable], Made], prices: CostTable | None = None) -> Made:
    """What `make` makes of the calibrated prices; of none, which explains nothing and is quick, where that is stopped.

    prices: of another measurement, in place of this one's.
    """
    for with_prices in (True, False, False):
        with keeping(found, "the measurements are complete, their explanations are not"):
            return make({} if not with_prices else calibrated(found) if prices is None else prices)
    raise found.stop


def add_yours(job: Job, found: Measurement, run: dict) -> Problem | None:
    """Put the predictions of a reader's own exercise 5 into the record, if they are in use.  -> what went wrong"""
    if 5 not in job.theirs.modules:
        return None
    run["yours"] = []
    for row in run["rows"]:
        if row["draft"] and row["prompt_kind"] == "all":
            arm = Arm(row["method"], row["draft"], row["draft_length"])
            rounds = [pair for s in found.of(arm, row["temperature"]) for text in s.rounds for pair in text]
            try:
                run["yours"].append(job.theirs.predicted(row, rounds))
            except Problem as problem:  # the measurement is made: keep it
                return problem
    return None


def describe_bytes(job: Job) -> str:
    """What the first model draft's rounds read, at the longest k and the longest prompt."""
    target, k = job.setup.target.model, max(job.draft_lengths)
    context = max(prompt.ids.shape[1] for prompt in job.prompts)
    drafts = [d.draft.model for d in job.drafters.values() if isinstance(d, ModelDrafter)]
    return memory.describe(target, drafts[0] if drafts else None, k, context)


def comparison_record(job: Job, bench: Bench, found: Measurement, prices: CostTable) -> dict:
    """Everything that tables and pictures are views of."""
    greedy = [s for s in found.samples if s.arm == BASELINE and s.temperature == 0]
    noise = []
    for temperature in job.temperatures:
        floor = attribution.noise_floor(found.of(BASELINE, temperature), found.of(BASELINE_REPEAT, temperature))
        if floor:
            noise.append({"temperature": temperature, **floor})
    return {
        **job.head(found),
        "prompts": {
            "n": len({s.prompt_index for s in found.samples}),
            "kinds": list(dict.fromkeys(s.prompt_kind for s in found.samples)),
            "n_looping": sum(map(rows.loops, greedy)) if greedy else None,
        },
        "correctness": found.correctness,
        "noise": noise,
        "costs": [
            {"drafter": job.method(name), "temperature": temperature, "costs": costs.to_json()}
            for (name, temperature), costs in prices.items()
        ],
        "phases": {
            "seconds": found.wall_seconds,
            "share": found.phase_seconds / found.wall_seconds if found.wall_seconds else None,
        },
        "headline": headline(found, bench.drafters, job.common),
        "rows": build_rows(bench, found, job.prompts, prices, job.setup.sampling, job.common),
        "raw": [rows.raw(s) for s in found.samples],
    }


def build_rows(
    bench: Bench, found: Measurement, prompts: list[Prompt], prices: CostTable, base: Sampling, common: dict
) -> list[dict]:
    """Rows for all prompts, for each kind, and for the prompts whose greedy text does not end in a loop."""
    parts = _parts(bench, found, prompts, prices, base)
    built = []
    temperatures = list(dict.fromkeys(s.temperature for s in found.samples))
    rerun = _Rerun(found, prompts)
    for temperature in temperatures:
        for name, belongs in groups(found.samples).items():
            samples = [s for s in found.samples if s.temperature == temperature and belongs(s)]
            baseline = [s for s in samples if s.arm == BASELINE]
            floor = attribution.noise_floor(baseline, [s for s in samples if s.arm == BASELINE_REPEAT])
            for arm in dict.fromkeys(s.arm for s in samples if s.arm != BASELINE_REPEAT):
                mine = [s for s in samples if s.arm == arm]
                row = rows.row(arm, mine, baseline, common, name)
                total = attribution.Part()
                for sample in mine:
                    total += parts.get((arm, temperature, sample.prompt_index), attribution.Part())
                if total.n_rounds:
                    row |= attribution.explained(row, total)
                if arm.speculative:
                    row["repeat_noise"] = rerun.noise(row, arm, temperature, mine)
                    row["verdict"] = attribution.verdict(row, floor)
                built.append(row)
    return built


class _Rerun:
    """What the whole run says about running it again."""

    def __init__(self, found: Measurement, prompts: list[Prompt]):
        self._places = {index: place for place, index in enumerate(mixed(prompts))}
        self._rest = {}
        for arm, temperature in dict.fromkeys((s.arm, s.temperature) for s in found.samples if s.arm.speculative):
            self._rest[arm, temperature] = drift.residuals(found.of(arm, temperature), found.of(BASELINE, temperature))
        known = [rest for rest in self._rest.values() if rest]
        self._alike = drift.correlation([[rest[i] for i in sorted(rest, key=self._places.get)] for rest in known])

    def noise(self, row: dict, arm: Arm, temperature: float, samples: list[Sample]) -> float | None:
        rest = self._rest[arm, temperature]
        if rest is None:
            return None
        seconds = {s.prompt_index: s.decode_seconds for s in samples if s.prompt_index in rest}
        shares = {index: one / sum(seconds.values()) for index, one in seconds.items()}
        return drift.repeat_noise(row["speedup"], rest, shares, self._places, self._alike)


def _parts(
    bench: Bench, found: Measurement, prompts: list[Prompt], prices: CostTable, base: Sampling
) -> dict[tuple[Arm, float, int], attribution.Part]:
    """Every speculative sample priced."""
    baseline = {(s.temperature, s.prompt_index): s for s in found.samples if s.arm == BASELINE}
    longest = {}
    for sample in found.samples:
        if sample.arm.speculative:
            longest[sample.arm.draft] = max(longest.get(sample.arm.draft, 0), sample.arm.draft_length)
    parts, known = {}, {}
    for sample in found.samples:
        arm, temperature, index = sample.arm, sample.temperature, sample.prompt_index
        if not arm.speculative or (arm.draft, temperature) not in prices:
            continue
        key = (arm.draft, temperature, index)
        if key not in known:
            sampling = Sampling(temperature, base.top_k, base.top_p)
            known[key] = chances(bench, arm.draft, prompts[index], sampling, longest[arm.draft])
        costs = prices[arm.draft, temperature]
        parts[arm, temperature, index] = attribution.price(sample, baseline[temperature, index], costs, known[key])
    return parts


def groups(samples: list[Sample]) -> dict[str, Callable[[Sample], bool]]:
    """Names of the groups of prompts that get rows of their own, and who belongs to them."""
    looping = {s.prompt_index for s in samples if s.arm == BASELINE and s.temperature == 0 and rows.loops(s)}
    kinds = list(dict.fromkeys(s.prompt_kind for s in samples))
    found: dict[str, Callable[[Sample], bool]] = {"all": lambda s: True}
    if len(kinds) > 1:
        found |= {kind: (lambda s, kind=kind: s.prompt_kind == kind) for kind in kinds}
    if looping and len(looping) < len({s.prompt_index for s in samples}):
        found["not looping"] = lambda s: s.prompt_index not in looping
    return found


def halves(samples: list[Sample] | list[Prompt]) -> set[int]:
    """Indexes of the prompts that are held out: every second one of each kind."""
    seen: dict[str, list[int]] = {}
    for place, item in enumerate(samples):
        kind, index = (item.kind, place) if isinstance(item, Prompt) else (item.prompt_kind, item.prompt_index)
        order = seen.setdefault(kind, [])
        if index not in order:
            order.append(index)
    return {index for order in seen.values() for index in order[1::2]}


def headline(found: Measurement, drafters: dict[str, Drafter], common: dict) -> dict | None:
    """The model draft at its best k: chosen on one half of the prompts, reported on the other."""
    greedy = [s for s in found.samples if s.temperature == 0]
    held_out = halves(greedy)
    arms = dict.fromkeys(s.arm for s in greedy if s.arm.speculative and s.arm.draft_length)

    def half(is_held_out: bool) -> dict[Arm, dict]:
        part = [s for s in greedy if (s.prompt_index in held_out) == is_held_out]
        baseline = [s for s in part if s.arm == BASELINE]
        return {
            arm: rows.row(arm, [s for s in part if s.arm == arm], baseline, common, "held-out half")
            for arm in arms
            if is_model(drafters[arm.draft]) and any(s.arm == arm for s in part)
        }

    chosen_on, reported_on = half(False), half(True)
    if not chosen_on or not reported_on:
        return None
    return reported_on[max(chosen_on, key=lambda arm: chosen_on[arm]["speedup"])]
