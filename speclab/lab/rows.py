"""From seconds and counts to the rows of a record: the only place where a measurement becomes a ratio."""

from collections.abc import Iterable
from typing import Any

from speclab.core.counts import Counts
from speclab.records.rows import OwnRate, Row, Timing
from speclab.records.samples import BASELINE, Arm, Sample
from speclab.theory.formulas import book_formula, ratio_interval

PERIOD, REPEATED = 8, 32  # tokens: the longest period that counts as repetition, and how many tokens must repeat


def build_row(arm: Arm, samples: list[Sample], baseline: list[Sample], common: dict[str, Any], kind: str) -> Row:
    """What was measured of one arm, beside the baseline on the same prompts.

    samples: of `arm`, all at one temperature. common: target, device and dtype. kind: the name of this group of
    prompts. A prompt that one side has not decoded does not count.
    """
    by_prompt = {s.prompt_index: s for s in samples}
    pairs = [(b, by_prompt[b.prompt_index]) for b in baseline if b.prompt_index in by_prompt]
    counts = Counts()
    for _, sample in pairs:
        counts.merge(sample.counts)
    # model.generate cannot be split into prefill and decoding, so it is compared end to end.
    end_to_end = arm.method == "generate"
    baseline_seconds = [b.decode_seconds + end_to_end * b.prefill_seconds for b, _ in pairs]
    arm_seconds = [s.decode_seconds + end_to_end * s.prefill_seconds for _, s in pairs]
    before, seconds = sum(baseline_seconds), sum(arm_seconds)
    low, high = ratio_interval(baseline_seconds, arm_seconds) or (None, None)
    baseline_prefill, prefill = (sum(s.prefill_seconds for s in side) for side in zip(*pairs, strict=True))
    acceptance_rate, fraction = counts.acceptance_rate, counts.drafted_fraction
    of_book = None if arm.auto or arm.branches else arm.draft_length  # the formula knows one length, and no branches
    distances = [s.distance for _, s in pairs if s.distance is not None]
    own = [s.own_rates for _, s in pairs if s.own_rates]
    sums = {name: sum(one[name] for one in own) for name in own[0]} if 0 < len(own) == len(pairs) else {}
    return Row(
        method=arm.method,
        draft=arm.draft or None,
        draft_length=arm.draft_length,
        temperature=samples[0].temperature,
        prompt_kind=kind,
        **rounds_of(counts),
        **common,
        n_prompts=len(pairs),
        n_tokens=counts.n_emitted,
        seconds=seconds,
        prefill_seconds=prefill,
        tokens_per_second=counts.n_emitted / seconds,
        speedup=before / seconds,
        speedup_low=low,
        speedup_high=high,
        speedup_with_prefill=before / seconds if end_to_end else (before + baseline_prefill) / (seconds + prefill),
        accepted_lengths=[counts.accepted_lengths[i] for i in range(arm.draft_length + 1)] if arm.draft else None,
        n_without_drafts=counts.n_without_drafts if arm.draft else None,
        acceptance_rate=acceptance_rate,
        drafted_fraction=fraction,
        tokens_per_round=counts.tokens_per_round if arm.speculative else None,
        book_formula=book_formula(acceptance_rate, of_book) if acceptance_rate is not None and of_book else None,
        book_formula_drafted_fraction=book_formula(fraction, of_book) if fraction is not None and of_book else None,
        lossy_rule=samples[0].lossy_rule,
        total_variation=sum(distances) / counts.n_emitted if len(distances) == len(pairs) else None,
        own_rates=[OwnRate(name=name, mean=one / counts.n_emitted) for name, one in sums.items()] or None,
        same_as_baseline=all(b.texts == s.texts for b, s in pairs) if samples[0].temperature == 0 else None,
    )


def timing(sample: Sample) -> Timing:
    """A sample without its text."""
    return Timing(
        method=sample.arm.method,
        draft=sample.arm.draft or None,
        draft_length=sample.arm.draft_length,
        temperature=sample.temperature,
        prompt_kind=sample.prompt_kind,
        **rounds_of(sample.counts),
        prompt_index=sample.prompt_index,
        n_prompt=sample.n_prompt,
        prefill_seconds=sample.prefill,
        decode_seconds=sample.decode,
    )


def rounds_of(counts: Counts) -> dict[str, Any]:
    """The sums that rows and timings share."""
    names = ("n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted")
    return {name: getattr(counts, name) for name in names} | {"n_replays": counts.n_replays or None}


def ends_in_repetition(tokens: list[int]) -> bool:
    """True if the last REPEATED tokens repeat with some period of at most PERIOD."""
    tail = tokens[-REPEATED:]
    return len(tail) == REPEATED and any(tail[p:] == tail[:-p] for p in range(1, PERIOD + 1))


def groups(samples: list[Sample]) -> dict[str, set[int]]:
    """Names of the groups of prompts that get rows of their own, and the indexes of their prompts."""
    kinds = {s.prompt_index: s.prompt_kind for s in samples}
    members = {"all": set(kinds)}
    if len(set(kinds.values())) > 1:
        for index, kind in kinds.items():
            members.setdefault(kind, set()).add(index)
    greedy = [s for s in samples if s.arm == BASELINE and s.temperature == 0]
    looping = {s.prompt_index for s in greedy if ends_in_repetition(s.texts[0])}
    if looping and members["all"] - looping:
        members["not looping"] = members["all"] - looping
    return members


def halves(prompts: Iterable[tuple[str, int]]) -> set[int]:
    """Of (kind, index) pairs, the indexes of the prompts that are held out: every second one of each kind."""
    by_kind: dict[str, dict[int, None]] = {}
    for kind, index in prompts:
        by_kind.setdefault(kind, {})[index] = None
    return {index for indexes in by_kind.values() for index in list(indexes)[1::2]}
