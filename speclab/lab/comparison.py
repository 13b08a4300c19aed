"""One comparison from end to end: measure, check, explain, and make the rows of the record."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from speclab.core.rules import TOKEN
from speclab.lab.harness import Measurement, measure, mixed
from speclab.lab.known_texts.acceptance_probs import CostTable, calibrated, note_own_rates, probs_of_texts
from speclab.lab.known_texts.replay import rounds_of_texts
from speclab.lab.output_checks import judge
from speclab.lab.rows import build_row, ended, groups_of, halves, rows_of, rows_of_group
from speclab.lab.run_config import RunConfig
from speclab.models.memory import is_mixture_of_experts, weights_read
from speclab.models.prompts import Prompt
from speclab.models.timing import bandwidth, block_bytes
from speclab.records.arms import BASELINE, BASELINE_REPEAT, LOOKUP, PLAIN, Arm
from speclab.records.log import Line
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun, Noise
from speclab.theory import attribution
from speclab.theory.formulas import ratio_interval

Result = TypeVar("Result")


def compare(config: RunConfig) -> tuple[ComparisonRun, Measurement]:
    """Measure, check and explain. -> the record, and the measurement that it is made from"""
    measured = measure_and_judge(config, config.with_plain(), config.instruments(config.arms()))
    return explain(config, measured), measured


def explain(config: RunConfig, measured: Measurement) -> ComparisonRun:
    """Return the record of what is measured and judged."""
    run = with_costs(measured, lambda costs: comparison_record(config, measured, costs))
    with measured.kept("the rows are complete, the machine's bandwidth is not measured"):
        if not measured.interrupted:
            device, dtype = config.setup.device, config.setup.dtype
            if not is_mixture_of_experts(model := config.setup.target.model):  # whose passes read more or fewer experts
                run.weight_bytes = weights_read(model)[1] - config.setup.target.bytes_spared
            run.bandwidth = max(bandwidth(block_bytes(device), device, dtype, repeats=3).values())
    add_best_plain(run, measured)
    run.interrupted = measured.interrupted
    return run


def measure_and_judge(
    config: RunConfig,
    arms: list[Arm],
    instruments: dict[str, list[int]],
    prompts: list[Prompt] | None = None,
    max_new_tokens: int | None = None,
    title: str = "measuring",
) -> Measurement:
    """Measure all arms over the prompts (None: the run's), and judge whether their texts are right."""
    bench = config.bench(max_new_tokens)
    measured = measure(bench, arms, config.temperatures, prompts or config.prompts, config.repeats, instruments, title)
    judge(measured)
    if not measured.unchecked:
        with measured.kept("the texts are checked, the drafts' own columns are not measured"):
            note_own_rates(measured)
    return measured


def with_costs(
    measured: Measurement, build: Callable[[CostTable], Result], other_costs: CostTable | None = None
) -> Result:
    """Call `build` with the calibrated costs. Where something stops it, call it without costs, which is quick.

    other_costs: costs of another measurement, in place of this one's. A second Ctrl-C may stop the quick way too, so it
    is tried twice.
    """
    for with_costs in (True, False, False):
        with measured.kept("the measurements are complete, their explanations are not"):
            return build({} if not with_costs else calibrated(measured) if other_costs is None else other_costs)
    raise measured.stop or AssertionError("nothing stopped it")


def comparison_record(config: RunConfig, measured: Measurement, costs: CostTable) -> ComparisonRun:
    """Return the record, which tables and pictures show. Without costs it is made at once, and nothing is explained."""
    greedy = measured.of(BASELINE, 0.0)
    return ComparisonRun(
        **config.head(measured),
        prompts={
            "n": len({s.prompt_index for s in measured.lines}),
            "kinds": list(dict.fromkeys(s.prompt_kind for s in measured.lines)),
            "n_cut": sum(bool(line.loops) for line in greedy) if greedy else None,
        },
        correctness=measured.correctness,
        noise=[noise for temperature in config.temperatures if (noise := noise_at(measured, temperature))],
        costs=[
            {"drafter": config.method(draft), "temperature": temperature, "costs": draft_costs.to_json()}
            for (draft, temperature), draft_costs in costs.items()
        ],
        phases={
            "seconds": measured.wall_seconds,
            "share": measured.phase_seconds / measured.wall_seconds if measured.wall_seconds else None,
        },
        headline=headline(measured, config.common),
        rows=build_rows(config, measured, costs),
        ended=rows_of(ended(measured.lines), config.common) or None,
        raw=[line.recorded() for line in measured.lines],
    )


def add_best_plain(run: ComparisonRun, measured: Measurement) -> None:
    """Put into every greedy row over all prompts its speedup over the best plain decoding of the run, end to end.

    The best one is chosen on half of the prompts; the ratio and its interval are of the others.
    """
    held_out = halves((s.prompt_kind, s.prompt_index) for s in measured.of(BASELINE, 0.0))

    def seconds(arm: Arm, held_out_half: bool) -> list[float]:
        samples = [s for s in measured.of(arm, 0.0) if (s.prompt_index in held_out) == held_out_half]
        return [sum(s.prefill_seconds) + s.seconds for s in samples]

    plain = [arm for arm in PLAIN if measured.of(arm, 0.0)]
    if not held_out or len(plain) < 2:
        return
    best = min(plain, key=lambda arm: sum(seconds(arm, False)))
    run.best_plain = best.method
    for row in run.rows:
        arm = Arm(row.method, row.draft or "", row.draft_length, row.auto)
        if row.temperature == 0 and row.prompt_kind == "all":
            best_seconds, arm_seconds = seconds(best, True), seconds(arm, True)
            row.speedup_best_plain = sum(best_seconds) / sum(arm_seconds)
            row.best_plain_low, row.best_plain_high = ratio_interval(best_seconds, arm_seconds) or (None, None)


def noise_at(measured: Measurement, temperature: float) -> Noise | None:
    """Return the baseline's distance from itself on all prompts; None where it did not run twice."""
    return attribution.noise_floor(measured.of(BASELINE, temperature), measured.of(BASELINE_REPEAT, temperature))


def build_rows(config: RunConfig, measured: Measurement, costs: CostTable) -> list[Row]:
    """Return the rows for all prompts, and for each kind."""
    predicted, rows = _predicted(measured, costs), []
    for temperature, kind, lines in groups_of(measured.lines):
        floor = attribution.noise_floor(lines[BASELINE], lines.get(BASELINE_REPEAT, []))
        for row, arm, its_lines in rows_of_group(lines, config.common, kind):
            if arm.speculative:
                total = attribution.PredictedSeconds()
                for line in its_lines:
                    total += predicted.get((arm, temperature, line.prompt_index), attribution.PredictedSeconds())
                if total.n_rounds:
                    row = replace(row, **attribution.predictions(row, total))
                row.verdict = attribution.verdict(row.speedup, row.speedup_low, row.speedup_high, floor)
            rows.append(row)
    return rows


def _predicted(measured: Measurement, costs: CostTable) -> dict[tuple[Arm, float, int], attribution.PredictedSeconds]:
    """Return the predicted seconds of every line of a draft that has costs."""
    baseline = {(s.temperature, s.prompt_index): s for s in measured.lines if s.arm == BASELINE}
    probs = probs_of_texts(measured, max((s.arm.draft_length for s in measured.lines), default=0))
    rounds_along, priced = rounds_of_texts(measured), {}
    # In the order of the first repeat: what a draft on auto or a hybrid learns from a text counts in the next ones.
    turns = {index: turn for turn, index in enumerate(mixed(measured.prompts))}
    for sample in sorted(measured.lines, key=lambda sample: turns[sample.prompt_index]):
        arm, place = sample.arm, (sample.temperature, sample.prompt_index)
        if (arm.draft, sample.temperature) not in costs or not is_judged_alone(measured, arm, sample.temperature):
            continue
        lookup_costs = costs.get((arm.draft + LOOKUP, sample.temperature))
        if lookup_costs is None and any(made.looked_up for rounds in sample.rounds for made in rounds):
            continue
        predicted: dict[str, Any] = {"lookup_costs": lookup_costs}
        if follows_text(measured, arm):
            predicted["accept_probs"] = functools.partial(probs, arm.draft, *place)
        elif sample.temperature == 0:
            predicted["rounds_along"] = functools.partial(rounds_along, arm, sample.prompt_index)
        draft_costs, line = costs[arm.draft, sample.temperature], baseline[place]
        priced[arm, *place] = part = attribution.price(sample, line, draft_costs, **predicted)
        if "accept_probs" in predicted:
            n, whole = len(line.texts), part
            if line.loops:  # what the whole text would have given is only forecast
                text = measured.bench.whole_text(measured.prompts[sample.prompt_index])
                uncut = replace(sample, rounds=[[]] * n), replace(line, texts=[text] * n)
                whole = attribution.price(*uncut, draft_costs, **predicted)
            part.baseline_whole, part.expected_whole = whole.baseline, whole.expected
    return priced


def is_judged_alone(measured: Measurement, arm: Arm, temperature: float) -> bool:
    """Tell whether each drafted token is judged by itself, and only tokens of the target's distribution are kept."""
    drawn = measured.bench.drafters[arm.draft].parts[-1].draws
    rule = measured.bench.functions.rule
    return rule.name == TOKEN.name or temperature == 0 or not (drawn or rule.law is not None)


def follows_text(measured: Measurement, arm: Arm) -> bool:
    """Tell whether the text alone decides what is proposed at a place.

    It does not on auto, or for a hybrid: the rounds before count.
    """
    drafter = measured.bench.drafters[arm.draft]
    return drafter.parts == (drafter,)


def headline(measured: Measurement, common: dict) -> Row | None:
    """Return the model draft at its best k: chosen on one half of the prompts, reported on the other."""
    held_out = halves((s.prompt_kind, s.prompt_index) for s in measured.of(BASELINE, 0.0))
    arms = [arm for arm in dict.fromkeys(s.arm for s in measured.lines) if arm.speculative and arm.draft_length]

    def half(is_held_out: bool) -> dict[Arm, Row]:
        def samples(arm: Arm) -> list[Line]:
            return [s for s in measured.of(arm, 0.0) if (s.prompt_index in held_out) == is_held_out]

        return {
            arm: build_row(arm, samples(arm), samples(BASELINE), common, "held-out half")
            for arm in arms
            if measured.bench.drafters[arm.draft].is_model and samples(arm)
        }

    chosen_on, reported_on = half(False), half(True)
    if not chosen_on or not reported_on:
        return None
    return reported_on[max(chosen_on, key=lambda arm: chosen_on[arm].speedup)]
