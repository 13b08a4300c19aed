"""One comparison from end to end: measure, check, price, and make the rows of the record."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from speclab.core.rounds import Drafter
from speclab.core.sampling import Sampling
from speclab.lab.acceptance_chances import CostTable, calibrated, chances
from speclab.lab.harness import Bench, Measurement, is_model, keeping, measure, mixed
from speclab.lab.output_checks import judge
from speclab.lab.rows import build_row, ends_in_repetition, timing
from speclab.lab.run_config import RunConfig
from speclab.models.prompts import Prompt
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm, Sample
from speclab.system.errors import Problem
from speclab.theory import attribution, drift

Made = TypeVar("Made")


def compare(config: RunConfig) -> tuple[ComparisonRun, Measurement, Problem | None]:
    """Measure, check and explain.  -> the record, what it is made from, what went wrong in a reader's predictions"""
    arms = config.arms()
    bench, measured = measure_and_judge(config, config.with_generate(), config.instruments(arms))
    run = explained(measured, lambda costs: comparison_record(config, bench, measured, costs))
    fault = None
    with keeping(measured, "the rows are complete, your own predictions of them are not"):
        fault = _add_predictions(config, measured, run)
    run.interrupted = measured.interrupted
    return run, measured, fault


def measure_and_judge(
    config: RunConfig,
    arms: list[Arm],
    instruments: dict[str, list[int]],
    prompts: list[Prompt] | None = None,
    max_new_tokens: int | None = None,
    title: str = "measuring",
) -> tuple[Bench, Measurement]:
    """All arms over the prompts (None: the run's), and whether their texts are right."""
    bench, prompts, base = config.bench(max_new_tokens), prompts or config.prompts, config.setup.sampling
    measured = measure(bench, arms, config.temperatures, prompts, config.repeats, base, instruments, title)
    judge(bench, measured, prompts, base, config.setup.tokenizer)
    return bench, measured


def explained(found: Measurement, make: Callable[[CostTable], Made], prices: CostTable | None = None) -> Made:
    """What `make` returns for the calibrated costs, or for none, which is quick, where something stops it.

    prices: costs of another measurement, in place of this one's. A second Ctrl-C may stop the quick way too, so that
    is tried twice.
    """
    for with_prices in (True, False, False):
        with keeping(found, "the measurements are complete, their explanations are not"):
            return make({} if not with_prices else calibrated(found) if prices is None else prices)
    raise found.stop or AssertionError("nothing stopped it")


def _add_predictions(config: RunConfig, measured: Measurement, run: ComparisonRun) -> Problem | None:
    """Put the predictions of a reader's own exercise 5 into the record, if they are in use.  -> what went wrong"""
    if config.reader.predict is None:
        return None
    run.yours = []
    for row in run.rows:
        if row.draft and row.prompt_kind == "all":
            arm = Arm(row.method, row.draft, row.draft_length)
            rounds = [pair for s in measured.of(arm, row.temperature) for text in s.rounds for pair in text]
            try:
                run.yours.append(config.reader.predict(row, rounds))
            except Problem as problem:  # the measurement is made: keep it
                return problem
    return None


def comparison_record(config: RunConfig, bench: Bench, found: Measurement, prices: CostTable) -> ComparisonRun:
    """Everything that tables and pictures are views of."""
    greedy = [s for s in found.samples if s.arm == BASELINE and s.temperature == 0]
    noise = []
    for temperature in config.temperatures:
        floor = attribution.noise_floor(found.of(BASELINE, temperature), found.of(BASELINE_REPEAT, temperature))
        if floor:
            noise.append(floor)
    return ComparisonRun(
        **config.head(found),
        prompts={
            "n": len({s.prompt_index for s in found.samples}),
            "kinds": list(dict.fromkeys(s.prompt_kind for s in found.samples)),
            "n_looping": sum(ends_in_repetition(s.texts[0]) for s in greedy) if greedy else None,
        },
        correctness=found.correctness,
        noise=noise,
        costs=[
            {"drafter": config.method(name), "temperature": temperature, "costs": costs.to_json()}
            for (name, temperature), costs in prices.items()
        ],
        phases={
            "seconds": found.wall_seconds,
            "share": found.phase_seconds / found.wall_seconds if found.wall_seconds else None,
        },
        headline=headline(found, bench.drafters, config.common),
        rows=build_rows(config, bench, found, prices),
        raw=[timing(s) for s in found.samples],
    )


def build_rows(
    config: RunConfig, bench: Bench, found: Measurement, prices: CostTable, prompts: list[Prompt] | None = None
) -> list[Row]:
    """Rows for all prompts, for each kind, and for the prompts whose greedy text does not end in repetition."""
    prompts, common = prompts or config.prompts, config.common
    parts = _parts(bench, found, prompts, prices, config.setup.sampling)
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
                row = build_row(arm, mine, baseline, common, name)
                total = attribution.Part()
                for sample in mine:
                    total += parts.get((arm, temperature, sample.prompt_index), attribution.Part())
                if total.n_rounds:
                    row = replace(row, **attribution.explained(row, total))
                if arm.speculative:
                    row.repeat_noise = rerun.noise(row, arm, temperature, mine)
                    row.verdict = attribution.verdict(
                        row.speedup, row.speedup_low, row.speedup_high, row.repeat_noise, floor
                    )
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
        self._alike = drift.correlation(
            [[rest[i] for i in sorted(rest, key=self._places.__getitem__)] for rest in known]
        )

    def noise(self, row: Row, arm: Arm, temperature: float, samples: list[Sample]) -> float | None:
        rest = self._rest[arm, temperature]
        if rest is None:
            return None
        seconds = {s.prompt_index: s.decode_seconds for s in samples if s.prompt_index in rest}
        shares = {index: one / sum(seconds.values()) for index, one in seconds.items()}
        return drift.repeat_noise(row.speedup, rest, shares, self._places, self._alike)


def _parts(
    bench: Bench, found: Measurement, prompts: list[Prompt], prices: CostTable, base: Sampling
) -> dict[tuple[Arm, float, int], attribution.Part]:
    """Every speculative sample priced."""
    baseline = {(s.temperature, s.prompt_index): s for s in found.samples if s.arm == BASELINE}
    longest: dict[str, int] = {}
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
    greedy = [s for s in samples if s.arm == BASELINE and s.temperature == 0]
    looping = {s.prompt_index for s in greedy if ends_in_repetition(s.texts[0])}
    kinds = list(dict.fromkeys(s.prompt_kind for s in samples))
    found: dict[str, Callable[[Sample], bool]] = {"all": lambda s: True}
    if len(kinds) > 1:
        found |= {kind: functools.partial(_is_of_kind, kind) for kind in kinds}
    if looping and len(looping) < len({s.prompt_index for s in samples}):
        found["not looping"] = lambda s: s.prompt_index not in looping
    return found


def _is_of_kind(kind: str, sample: Sample) -> bool:
    return sample.prompt_kind == kind


def halves(prompts: Iterable[tuple[str, int]]) -> set[int]:
    """Of (kind, index) pairs, the indexes of the prompts that are held out: every second one of each kind."""
    by_kind: dict[str, dict[int, None]] = {}
    for kind, index in prompts:
        by_kind.setdefault(kind, {})[index] = None
    return {index for indexes in by_kind.values() for index in list(indexes)[1::2]}


def headline(found: Measurement, drafters: dict[str, Drafter], common: dict) -> Row | None:
    """The model draft at its best k: chosen on one half of the prompts, reported on the other."""
    greedy = [s for s in found.samples if s.temperature == 0]
    held_out = halves((s.prompt_kind, s.prompt_index) for s in greedy)
    arms = dict.fromkeys(s.arm for s in greedy if s.arm.speculative and s.arm.draft_length)

    def half(is_held_out: bool) -> dict[Arm, Row]:
        part = [s for s in greedy if (s.prompt_index in held_out) == is_held_out]
        baseline = [s for s in part if s.arm == BASELINE]
        return {
            arm: build_row(arm, [s for s in part if s.arm == arm], baseline, common, "held-out half")
            for arm in arms
            if is_model(drafters[arm.draft]) and any(s.arm == arm for s in part)
        }

    chosen_on, reported_on = half(False), half(True)
    if not chosen_on or not reported_on:
        return None
    return reported_on[max(chosen_on, key=lambda arm: chosen_on[arm].speedup)]
