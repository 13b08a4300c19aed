"""Makes the rows of a record from what was decoded. Seconds become a speedup here and nowhere else."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from speclab.core.counts import Counts
from speclab.records.rows import BASELINE, BASELINE_REPEAT, SUMS, Arm, Decoded, Facts, Noise, Row
from speclab.theory.attribution import PredictedSeconds, predictions, verdict
from speclab.theory.formulas import book_formula, ratio_interval

Predicted = Mapping[tuple[Arm, float, int], PredictedSeconds]  # by arm, temperature and index of the prompt


def rows_of(decoded: list[Decoded], predicted: Predicted | None = None) -> list[Row]:
    """Return the row of every arm at every temperature, for all prompts and for each kind of them, beside the baseline
    of as many texts at a time. predicted: what the costs say of each arm and prompt."""
    rows = []
    for alike in _groups(decoded):
        kinds = list(dict.fromkeys(one.prompt_kind for one in alike))
        for kind in ["all", *kinds] if len(kinds) > 1 else ["all"]:
            of_kind = [one for one in alike if kind in ("all", one.prompt_kind)]
            by_arm: dict[Arm, list[Decoded]] = {}
            for one in of_kind:
                by_arm.setdefault(one.arm, []).append(one)
            by_arm.pop(BASELINE_REPEAT, None)
            baseline, floor = by_arm[BASELINE], next(iter(noise_floors(of_kind)), None)
            rows += [row_of(own, baseline, kind, floor, predicted) for own in by_arm.values()]
    return rows


def noise_floors(decoded: list[Decoded]) -> list[Noise]:
    """Return the distance of the baseline from itself, for each temperature and number of texts at a time."""
    floors = []
    for alike in _groups(decoded):
        baseline, again = ([one for one in alike if one.arm == arm] for arm in (BASELINE, BASELINE_REPEAT))
        if again:
            row = row_of(again, baseline)
            its: Facts = {"ratio": row.speedup, "low": row.speedup_low, "high": row.speedup_high}
            floors.append(Noise(temperature=row.temperature, n_texts=row.n_texts, **its))
    return floors


def _groups(decoded: list[Decoded]) -> Iterable[list[Decoded]]:
    """Return what was decoded, group by group: at each temperature, as many texts at a time."""
    groups: dict[tuple[float, int], list[Decoded]] = {}
    for one in decoded:
        groups.setdefault((one.temperature, one.n_texts), []).append(one)
    return groups.values()


def row_of(
    decoded: list[Decoded],
    baseline: list[Decoded],
    kind: str = "all",
    floor: Noise | None = None,
    predicted: Predicted | None = None,
) -> Row:
    """Return the row of one arm beside the baseline on the same prompts, all at one temperature.

    kind: the name of this group of prompts; only those count that both sides have decoded. floor: its noise floor.
    """
    by_prompt = {one.prompt_index: one for one in decoded}
    pairs = [(b, by_prompt[b.prompt_index]) for b in baseline if b.prompt_index in by_prompt]
    own, counts, total = [s for _, s in pairs], Counts(), PredictedSeconds()
    arm, temperature = decoded[0].arm, decoded[0].temperature
    priced = [(predicted or {}).get((arm, temperature, one.prompt_index), PredictedSeconds()) for one in own]
    for one, part in zip(own, priced, strict=True):
        counts.merge(one.counts)
        total += part
    total.expected *= all(part.expected for part in priced)  # what some prompts take says nothing of all
    # The seconds of model.generate cannot be split and hold its prefill, so it is compared end to end.
    end_to_end = arm.method == "generate"
    baseline_seconds = [b.seconds + end_to_end * sum(b.prefill_seconds) for b, _ in pairs]
    arm_seconds = [s.seconds for s in own]
    before, seconds = sum(baseline_seconds), sum(arm_seconds)
    low, high = ratio_interval(baseline_seconds, arm_seconds) or (None, None)
    baseline_prefill, prefill = (sum(sum(s.prefill_seconds) for s in side) for side in zip(*pairs, strict=True))
    one_length = 0 if arm.auto or arm.branches else arm.draft_length  # the formula knows one length, and no branches
    rates = (counts.acceptance_rate, counts.drafted_fraction)
    of_book = [book_formula(rate, one_length) if one_length and rate is not None else None for rate in rates]
    distances = [s.distance for s in own if s.distance is not None]
    has_texts = temperature == 0 and all(one.texts for pair in pairs for one in pair)
    row = Row(
        method=arm.method,
        draft=arm.draft or None,
        draft_length=arm.draft_length,
        temperature=temperature,
        prompt_kind=kind,
        **{name: getattr(counts, name) for name in SUMS},
        n_replays=counts.n_replays or None,
        n_texts=decoded[0].n_texts,
        n_prompts=len(pairs),
        seconds=seconds,
        tokens_per_second=(counts.n_emitted + end_to_end * sum(len(s.prefill_seconds) for s in own)) / seconds,
        speedup=before / seconds,
        speedup_low=low,
        speedup_high=high,
        speedup_with_prefill=before / seconds if end_to_end else (before + baseline_prefill) / (seconds + prefill),
        acceptance_rate=rates[0],
        drafted_fraction=rates[1],
        tokens_per_round=counts.tokens_per_round if arm.speculative else None,
        book_formula=of_book[0],
        book_formula_drafted_fraction=of_book[1],
        lossy_rule=decoded[0].lossy_rule,
        total_variation=sum(distances) / counts.n_emitted if len(distances) == len(pairs) else None,
        same_as_baseline=all(b.texts == s.texts for b, s in pairs) if has_texts else None,
        verdict=verdict(before / seconds, low, high, floor) if arm.speculative else None,
    )
    return replace(row, **predictions(row, total)) if all(part.baseline for part in priced) else row
