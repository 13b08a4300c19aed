"""From seconds and counts to the rows of a table: the only place where a measurement becomes a ratio."""

from speclab.core.counts import Counts
from speclab.records.samples import Arm, Sample
from speclab.theory.formulas import book_formula, ratio_interval


def row(arm: Arm, samples: list[Sample], baseline: list[Sample], common: dict, kind: str) -> dict:
    """What was measured of one arm, beside the baseline on the same prompts; explain.py adds the predictions."""
    by_prompt = {s.prompt_index: s for s in samples}
    pairs = [(b, by_prompt[b.prompt_index]) for b in baseline if b.prompt_index in by_prompt]
    counts = Counts()
    for _, sample in pairs:
        counts.merge(sample.counts)
    # model.generate cannot be split into prefill and decoding, so it is compared end to end.
    whole = arm.method == "generate"
    theirs = [b.decode_seconds + whole * b.prefill_seconds for b, _ in pairs]
    ours = [s.decode_seconds + whole * s.prefill_seconds for _, s in pairs]
    low, high = ratio_interval(theirs, ours) or (None, None)
    alpha, fraction = counts.acceptance_rate, counts.drafted_fraction
    greedy = samples[0].temperature == 0
    prefill = [sum(s.prefill_seconds for s in side) for side in zip(*pairs, strict=True)]
    return {
        "method": arm.method,
        "target": common["target"],
        "draft": arm.draft,
        "device": common["device"],
        "dtype": common["dtype"],
        "draft_length": arm.draft_length,
        "temperature": samples[0].temperature,
        "prompt_kind": kind,
        "n_prompts": len(pairs),
        "n_tokens": counts.n_emitted,
        "seconds": sum(ours),
        "prefill_seconds": prefill[1],
        "tokens_per_second": counts.n_emitted / sum(ours),
        "speedup": sum(theirs) / sum(ours),
        "speedup_low": low,
        "speedup_high": high,
        "speedup_with_prefill": (sum(theirs) + prefill[0] * (not whole)) / (sum(ours) + prefill[1] * (not whole)),
        "n_rounds": counts.n_rounds,
        "n_drafted": counts.n_drafted,
        "n_accepted": counts.n_accepted,
        "n_rejected": counts.n_rejected,
        "n_emitted": counts.n_emitted,
        "accepted_lengths": [counts.accepted_lengths[i] for i in range(arm.draft_length + 1)] if arm.draft else None,
        "acceptance_rate": alpha,
        "drafted_fraction": fraction,
        "tokens_per_round": counts.tokens_per_round if arm.speculative else None,
        "book_formula": book_formula(alpha, arm.draft_length) if alpha is not None else None,
        "book_formula_drafted_fraction": book_formula(fraction, arm.draft_length) if fraction is not None else None,
        "same_as_baseline": all(b.texts == s.texts for b, s in pairs) if greedy else None,
        **NOT_EXPLAINED,
    }


# What speclab/theory/attribution.py fills in where the costs are known.
NOT_EXPLAINED = dict.fromkeys(
    (
        "draft_cost",
        "verify_cost",
        "overhead",
        "leviathan",
        "cost_model",
        "accounting",
        "forecast",
        "forecast_tokens_per_round",
        "ladder",
        "verdict",
        "repeat_noise",
    )
)


def raw(sample: Sample) -> dict:
    """A sample as plain JSON, without its text."""
    counts = sample.counts
    return {
        "method": sample.arm.method,
        "draft": sample.arm.draft,
        "draft_length": sample.arm.draft_length,
        "temperature": sample.temperature,
        "prompt_index": sample.prompt_index,
        "prompt_kind": sample.prompt_kind,
        "n_prompt": sample.n_prompt,
        "prefill_seconds": sample.prefill,
        "decode_seconds": sample.decode,
        "n_rounds": counts.n_rounds,
        "n_drafted": counts.n_drafted,
        "n_accepted": counts.n_accepted,
        "n_rejected": counts.n_rejected,
        "n_emitted": counts.n_emitted,
    }


def loops(sample: Sample) -> bool:
    """True if its first text ends in a loop."""
    return ends_in_loop(sample.texts[0])


def ends_in_loop(tokens: list[int], last: int = 32, longest_period: int = 8) -> bool:
    """True if the last `last` tokens repeat with some period up to `longest_period`."""
    tail = tokens[-last:]
    return len(tail) == last and any(tail[p:] == tail[:-p] for p in range(1, longest_period + 1))
