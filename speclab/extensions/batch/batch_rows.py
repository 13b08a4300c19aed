"""The rows of a batch run: every way to decode, compared with plain decoding of as many texts at a time.

What is compared is the time of a token of each prompt. Prompts are what is resampled for an interval, as in all runs of
the lab (chapter 13): of a prompt's requests together, tokens and equal parts of the passes that they shared.
"""

from collections.abc import Iterable
from typing import NamedTuple

from speclab.extensions.batch.batch_record import BatchNoise, BatchRow, Chosen, PromptTimes
from speclab.extensions.batch.decoding.decodings import Part
from speclab.extensions.batch.expectations import Expectations
from speclab.extensions.batch.knees import KneeEntry, knee_of
from speclab.extensions.batch.turns import BatchArm, Batches, requests_of
from speclab.lab.run_config import RunConfig
from speclab.records.arms import BASELINE, BASELINE_REPEAT
from speclab.records.rows import Verdict
from speclab.records.runs import Noise
from speclab.theory import attribution
from speclab.theory.formulas import ratio_interval


class Gain(NamedTuple):
    """The speedup of one way to decode over another one, on the same prompts. low, high: 95 %; None below three
    prompts."""

    n_prompts: int
    rate: float  # tokens a second
    of_other: float
    ratio: float
    low: float | None
    high: float | None


def of_prompts(decoded: Batches, one: BatchArm) -> dict[int, Part]:
    """The tokens of each prompt, and its parts of the passes in which every row had a text, by the prompt's number."""
    numbers = requests_of(decoded.config, one.n_texts)
    parts: dict[int, Part] = {}
    for index, part in sorted(decoded.decodings[one].by_request(one.n_texts).items()):
        before = parts.get(numbers[index], Part(0, 0.0))
        parts[numbers[index]] = Part(before.n_tokens + part.n_tokens, before.seconds + part.seconds)
    return parts


def gain(decoded: Batches, one: BatchArm, other: BatchArm, prompts: Iterable[int] | None = None) -> Gain | None:
    """The speedup of one way to decode over another. Every prompt counts alike, however many of its tokens were timed.

    prompts: these alone. None where no prompt was timed in both ways.
    """
    of_one, of_other = of_prompts(decoded, one), of_prompts(decoded, other)
    both = [n for n in (of_one if prompts is None else prompts) if n in of_one and n in of_other]
    if not both:
        return None
    mine, others = ([parts[n].seconds / parts[n].n_tokens for n in both] for parts in (of_one, of_other))
    low, high = ratio_interval(others, mine) or (None, None)
    rates = len(both) / sum(mine), len(both) / sum(others)
    return Gain(len(both), *rates, sum(others) / sum(mine), low, high)


def floor(decoded: Batches, n_texts: int, prompts: Iterable[int] | None = None) -> BatchNoise | None:
    """The ratio of plain decoding of so many texts at a time to its own second run."""
    itself = gain(decoded, BatchArm(BASELINE_REPEAT, n_texts), BatchArm(BASELINE, n_texts), prompts)
    temperature = decoded.config.temperatures[0]
    if itself is None:
        return None
    return BatchNoise(temperature=temperature, n_texts=n_texts, ratio=itself.ratio, low=itself.low, high=itself.high)


def row(decoded: Batches, one: BatchArm, expected: Expectations | None) -> BatchRow:
    """The row of one way to decode, compared with plain decoding of as many texts at a time."""
    decoding, arm, counts = decoded.decodings[one], one.arm, decoded.decodings[one].counts
    full = decoding.full(one.n_texts)
    n_tokens, seconds = sum(made.n_tokens for made in full), sum(made.seconds for made in full)
    itself, over = gain(decoded, one, one), gain(decoded, one, BatchArm(BASELINE, one.n_texts))
    drafts = arm.speculative and counts.n_drafted > 0
    predicted = expected.rate(arm.draft, arm.draft_length, one.n_texts) if expected else None
    of_baseline = expected.rate("", 0, one.n_texts) if expected else None
    return BatchRow(
        n_texts=one.n_texts,
        method=arm.method,
        draft=arm.draft or None,
        draft_length=arm.draft_length,
        n_passes=len(full),
        n_tokens=n_tokens,
        seconds=seconds,
        tokens_per_second=itself.rate if itself else n_tokens / seconds,
        speedup=over.ratio if over else 1.0,
        speedup_low=over.low if over and drafts else None,
        speedup_high=over.high if over and drafts else None,
        predicted_tokens_per_second=predicted,
        predicted_speedup=predicted / of_baseline if predicted and of_baseline else None,
        acceptance_rate=counts.acceptance_rate if arm.speculative else None,
        tokens_per_round=counts.tokens_per_round if arm.speculative else None,
        latency=decoding.latency,
        between_tokens=decoding.between_tokens,
        n_requests=len(decoding.texts),
        total_seconds=decoding.seconds,
        n_drafted=counts.n_drafted,
        verdict=_verdict(over, floor(decoded, one.n_texts)) if over and drafts else None,
    )


def chosen(decoded: Batches) -> list[Chosen]:
    """The best length for every draft and batch, chosen on one half of the prompts and reported on the other one."""
    reported_on = held_out(decoded.config)
    chosen_on = [n for n in range(len(decoded.config.prompts)) if n not in reported_on] or reported_on
    groups: dict[tuple[str, int], list[BatchArm]] = {}
    for one, decoding in decoded.decodings.items():
        if one.arm.speculative and decoding.counts.n_drafted:
            groups.setdefault((one.arm.draft, one.n_texts), []).append(one)
    entries = []
    for (draft, n_texts), ways in groups.items():
        plain = BatchArm(BASELINE, n_texts)
        gains = {one: over.ratio for one in ways if (over := gain(decoded, one, plain, chosen_on))}
        best = max(gains, key=lambda one: gains[one], default=None)
        if best is None or (over := gain(decoded, best, plain, reported_on)) is None:
            continue
        entries.append(
            Chosen(
                draft=draft,
                n_texts=n_texts,
                draft_length=best.arm.draft_length,
                n_prompts=over.n_prompts,
                tokens_per_second=over.rate,
                plain_tokens_per_second=over.of_other,
                speedup=over.ratio,
                speedup_low=over.low,
                speedup_high=over.high,
                verdict=_verdict(over, floor(decoded, n_texts, reported_on)),
            )
        )
    return entries


def held_out(config: RunConfig) -> list[int]:
    """Numbers of the prompts that speedups at the best length are reported on: every second one of each kind, or of
    all where no kind has two."""
    by_kind: dict[str, list[int]] = {}
    for number, prompt in enumerate(config.prompts):
        by_kind.setdefault(prompt.kind, []).append(number)
    of_kinds = sorted(number for numbers in by_kind.values() for number in numbers[1::2])
    numbers = range(len(config.prompts))
    return of_kinds or list(numbers[1::2]) or list(numbers)


def measured_knees(entries: list[Chosen], context: int) -> list[KneeEntry]:
    """The measured knee of every draft."""
    knees = []
    for draft in dict.fromkeys(one.draft for one in entries):
        speedups = {(one.n_texts, one.draft_length): one.speedup for one in entries if one.draft == draft}
        knees.append(knee_of(draft, context, "measured", speedups))
    return knees


def raw(decoded: Batches) -> list[PromptTimes]:
    """The times from which all rows are computed."""
    entries = []
    for one in decoded.decodings:
        parts = of_prompts(decoded, one)
        every = [parts.get(n, Part(0, 0.0)) for n in range(len(decoded.config.prompts))]
        entries.append(
            PromptTimes(
                n_texts=one.n_texts,
                method=one.arm.method,
                draft_length=one.arm.draft_length,
                n_tokens=[part.n_tokens for part in every],
                seconds=[part.seconds for part in every],
            )
        )
    return entries


def _verdict(over: Gain, own_floor: Noise | None) -> Verdict:
    return attribution.verdict(over.ratio, over.low, over.high, own_floor)
