"""`compare.py --batch`: the same requests, 1, 2, 4, ... at a time, token by token and with every draft at every length.

All ways to decode take turns, a pass at a time, so that a slow second of the machine meets all of them. Speedups are
over plain decoding of as many texts at a time on the same engine; they and the rates are of the rounds in which every
row had a text. What is predicted is made from passes over one text and from the loops without their models, never from
the batches that it is held against.
"""

import copy
import statistics
from dataclasses import dataclass, field, replace

import numpy as np

from speclab.batch.loops import autoregressive_decode_batch, in_lockstep, speculative_decode_batch
from speclab.batch.rows import Request
from speclab.batch.select import batch_drafter, check_drafter
from speclab.core.rounds import DecodeSettings
from speclab.drafts.select import lengths_of
from speclab.lab import output_checks
from speclab.lab.batching import library
from speclab.lab.batching.decodings import BatchDecoding
from speclab.lab.batching.expectations import Draft, Expectations, expectations, knee_of, known_of, make_timer
from speclab.lab.batching.passes import PassTimer
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.run_config import RunConfig
from speclab.models.batched import BatchedModel, check_batch
from speclab.records.batches import BatchRow, BatchRun, KneeEntry
from speclab.records.samples import BASELINE, Arm, Made, Sample
from speclab.system.terminal import progress
from speclab.theory.formulas import ratio_interval

BLOCKS = 8  # of consecutive rounds, over which intervals are taken
WARM_UP_TOKENS = 12
TURNS = 30  # in which passes are timed


@dataclass(frozen=True)
class BatchArm:
    """A way to decode, `n_texts` at a time."""

    arm: Arm
    n_texts: int
    lockstep: bool = False

    @property
    def name(self) -> str:
        """What checks and notes call it."""
        return f"{self.arm.label}, {self.n_texts} at a time" + ", in lockstep" * self.lockstep


@dataclass
class Batches:
    """What was decoded of a run."""

    config: RunConfig
    requests: list[int] = field(default_factory=list)  # numbers of their prompts
    decodings: dict[BatchArm, BatchDecoding] = field(default_factory=dict)

    def of(self, arm: Arm, n_texts: int, lockstep: bool = False) -> BatchDecoding:
        """One way to decode."""
        return self.decodings[BatchArm(arm, n_texts, lockstep)]

    @property
    def complete(self) -> str:
        """What there is to keep when the run is stopped; empty: nothing."""
        full = [decoding.full(one.n_texts) for one, decoding in self.decodings.items()]
        return "the rounds so far are complete" if full and all(full) else ""

    def context(self, n_texts: int) -> float:
        """Tokens before a pass of plain decoding in the longest of so many texts, on average."""
        lengths = [self.config.prompts[number].ids.shape[1] for number in self.requests]
        longest = (max((lengths * 2)[i : i + n_texts]) for i in range(len(lengths)))
        return statistics.mean(longest) + self.config.max_new_tokens / 2


def compare_batches(config: RunConfig, batches: list[int], thorough: bool = False) -> tuple[BatchRun, Measurement]:
    """Measure, check, predict.  -> the record, and the texts with what their checks say

    thorough: in lockstep, too, and with long contexts, the library and other machines (--sweep batch).
    """
    check_batch(config.setup.target)
    for drafter in config.drafters.values():
        check_drafter(drafter)
    decoded = Batches(config, requests_of(config, batches))
    contexts = {n: decoded.context(n) for n in {1, *batches}}
    timer = make_timer(config, round(contexts[1]), sorted(contexts), thorough)
    with kept_when_stopped(lambda: decoded.complete) as stops:
        decode(decoded, arms(config, batches, thorough), timer)
    measured, expected, others = judge(decoded), None, []
    measured.stop = measured.stop or (stops[0] if stops else None)
    with measured.kept("the rows are complete, what is expected of them is not"):
        if not measured.interrupted:
            others = library.batched(config, batches) if thorough else []
            expected = expectations(config, contexts, known(decoded), timer.times)
    rows = [row(decoded, one, expected) for one in decoded.decodings]
    run = BatchRun(
        **config.head(measured),
        batches=batches,
        thorough=thorough,
        n_requests=len(decoded.requests),
        mean_context=contexts[1],
        correctness=measured.correctness,
        costs=expected.facts() if expected else {},
        library=others,
        knees=[*measured_knees(rows, round(contexts[1])), *(expected.knees() if expected else [])],
        machines=expected.machines() if expected and thorough else [],
        rows=rows,
        passes=expected.passes() if expected else [],
    )
    return run, measured


def arms(config: RunConfig, batches: list[int], thorough: bool) -> list[BatchArm]:
    """All ways to decode; plain decoding of one text at a time comes first, which all others are judged by."""
    sizes = sorted({1, *batches})
    ways = [BatchArm(BASELINE, n) for n in sizes]
    for name, drafter in config.drafters.items():
        for k in lengths_of(drafter, config.draft_lengths):
            if k:
                arm = Arm(config.method(name), name, k)
                ways += [BatchArm(arm, n) for n in sizes]
                ways += [BatchArm(arm, n, True) for n in sizes if thorough and n > 1 and not arm.tree]
    return ways


def requests_of(config: RunConfig, batches: list[int]) -> list[int]:
    """Numbers of prompts: all of them, again until the largest batch is full three times."""
    n_prompts = len(config.prompts)
    return [*range(n_prompts)] * max(-(-3 * max(batches) // n_prompts), config.repeats)


def decode(decoded: Batches, ways: list[BatchArm], timer: PassTimer) -> None:
    """Every way to decode over the same requests; passes are timed in between, on the same state of the machine."""
    config, requests = decoded.config, decoded.requests
    for one in ways:  # every shape is met once before the clock counts
        warm = _decoding(config, one, requests[: 2 * one.n_texts], WARM_UP_TOKENS)
        while not warm.done:
            warm.advance()
    decoded.decodings = {one: _decoding(config, one, requests, config.max_new_tokens) for one in ways}
    n_texts, n_turns = len(ways) * len(requests), 0
    with progress(n_texts, "text", "decoding") as bar:
        while waiting := [decoding for decoding in decoded.decodings.values() if not decoding.done]:
            decoding = min(waiting, key=lambda one: one.n_tokens)  # the one with the fewest tokens goes next
            before = decoding.n_left
            decoding.advance()
            for _ in range(before - decoding.n_left):
                bar.update()
            share = sum(one.n_tokens for one in decoded.decodings.values()) / (n_texts * config.max_new_tokens)
            while n_turns < int(share * TURNS):
                timer.turn()
                n_turns += 1


def _decoding(config: RunConfig, one: BatchArm, numbers: list[int], budget: int) -> BatchDecoding:
    """A way to decode, ready to work on these requests; each has random numbers of its own, the same in every way."""
    setup, sampling = config.setup, config.setup.sampling_at(config.temperatures[0])
    requests = [
        Request(
            config.prompts[number].ids.to(setup.device), DecodeSettings(budget, sampling, seed=config.seed * 1009 + i)
        )
        for i, number in enumerate(numbers)
    ]
    target = BatchedModel(setup.target, one.n_texts)
    if not one.arm.speculative:
        return BatchDecoding(autoregressive_decode_batch(target, requests, setup.chunk), len(requests))
    drafter = batch_drafter(copy.deepcopy(config.drafters[one.arm.draft]), one.n_texts)
    accept = config.learner.loop.accept
    accept = in_lockstep(accept) if one.lockstep else accept
    found = speculative_decode_batch(target, drafter, requests, one.arm.draft_length, accept)
    return BatchDecoding(found, len(requests))


# --- checks -----------------------------------------------------------------------------------------------------------


def judge(decoded: Batches) -> Measurement:
    """Whether the texts are right: greedily those of plain decoding, one at a time; sampled, the target's law."""
    config = decoded.config
    temperature, prompts = config.temperatures[0], config.prompts
    measured = Measurement(config.bench(), [prompts[number] for number in decoded.requests])
    waiting: list[tuple[Arm, str]] = []
    ended = set.intersection(*(decoding.ended for decoding in decoded.decodings.values()))
    for one, decoding in decoded.decodings.items():
        first = one == BatchArm(BASELINE, 1)
        arm = BASELINE if first else replace(one.arm, method=f"{one.arm.method}, {one.n_texts} at a time")
        if one.lockstep:
            arm = replace(arm, method=f"{arm.method}, in lockstep")
        for index, number in enumerate(decoded.requests):
            if index not in ended:
                continue
            sample = Sample(arm, temperature, index, prompts[number].kind, prompts[number].ids.shape[1])
            rounds = [Made(r.n_drafted, r.n_accepted) for r in decoding.rounds[index] if not r.prefill]
            sample.add(0.0, 0.0, decoding.texts[index].tokens, None, rounds)
            sample.lossy_rule = measured.bench.lossy_rule(arm)
            measured.samples.append(sample)
        if not first and (temperature == 0 or arm.speculative):
            waiting.append((arm, one.name))
    with measured.kept("the measurements are complete, their checks are not"):
        while waiting:
            measured.correctness.append(output_checks.check(measured, waiting[0][0], temperature))
            waiting.pop(0)
    measured.unchecked = [name for _, name in waiting]
    return measured


# --- rows -------------------------------------------------------------------------------------------------------------


def known(decoded: Batches) -> dict[tuple[str, int], Draft]:
    """What decoding one text at a time says of every draft at every length."""
    found = {}
    for one, decoding in decoded.decodings.items():
        if one.arm.speculative and one.n_texts == 1:
            made = [round_ for rounds in decoding.rounds.values() for round_ in rounds if not round_.prefill]
            counts = [(round_.n_drafted, round_.n_accepted) for round_ in made]
            found[one.arm.draft, one.arm.draft_length] = known_of(counts, one.arm.draft_length)
    return found


def row(decoded: Batches, one: BatchArm, expected: Expectations | None) -> BatchRow:
    """One way to decode beside plain decoding of as many texts at a time."""
    decoding, plain = decoded.decodings[one], decoded.of(BASELINE, one.n_texts)
    full, of_plain = decoding.full(one.n_texts), plain.full(one.n_texts)
    n_tokens, seconds = sum(made.n_tokens for made in full), sum(made.seconds for made in full)
    rate = n_tokens / seconds
    plain_rate = sum(made.n_tokens for made in of_plain) / sum(made.seconds for made in of_plain)
    low, high = (None, None) if not one.arm.speculative else _interval(of_plain, full)
    arm, counts = one.arm, decoding.counts
    predicted = expected.rate(arm.draft, arm.draft_length, one.n_texts, one.lockstep) if expected else None
    of_baseline = expected.rate("", 0, one.n_texts) if expected else None
    return BatchRow(
        n_texts=one.n_texts,
        method=arm.method,
        draft=arm.draft or None,
        draft_length=arm.draft_length,
        lockstep=one.lockstep,
        n_passes=len(full),
        n_tokens=n_tokens,
        seconds=seconds,
        tokens_per_second=rate,
        speedup=rate / plain_rate,
        speedup_low=low,
        speedup_high=high,
        predicted_tokens_per_second=predicted,
        predicted_speedup=predicted / of_baseline if predicted and of_baseline else None,
        acceptance_rate=counts.acceptance_rate if arm.speculative else None,
        tokens_per_round=counts.tokens_per_round if arm.speculative else None,
        latency=decoding.latency,
        between_tokens=decoding.between_tokens,
        n_requests=len(decoding.texts),
        total_seconds=decoding.seconds,
    )


def measured_knees(rows: list[BatchRow], context: int) -> list[KneeEntry]:
    """Of every draft."""
    found = []
    for draft in dict.fromkeys(row.draft for row in rows if row.draft):
        of_draft = [row for row in rows if row.draft == draft and not row.lockstep]
        speedups = {(row.n_texts, row.draft_length): row.speedup for row in of_draft}
        found.append(knee_of(draft, context, "measured", speedups))
    return found


def _interval(plain: list, speculative: list) -> tuple[float | None, float | None]:
    """Of the speedup, 95 %, over blocks of consecutive rounds; the blocks of both are at the same parts of the run."""
    if min(len(plain), len(speculative)) < 2 * BLOCKS:
        return None, None

    def per_token(made: list) -> list[float]:
        blocks = np.array_split(np.array([(one.seconds, one.n_tokens) for one in made]), BLOCKS)
        return [float(block[:, 0].sum() / block[:, 1].sum()) for block in blocks]

    return ratio_interval(per_token(plain), per_token(speculative)) or (None, None)
