"""The record of a comparison with vLLM: every arm beside the plain server, every prompt beside the lab's own rounds."""

import statistics
from typing import NamedTuple

from speclab.extensions.servers import counters, load
from speclab.extensions.servers.own import looks_up, reconcile
from speclab.extensions.servers.served import Loaded, Served
from speclab.extensions.servers.server_checks import samples_of, sent_by, verdict_of
from speclab.extensions.servers.server_record import (
    LoadRow,
    Reconciled,
    ServedNoise,
    ServedRequest,
    ServedRow,
    ServingRun,
)
from speclab.extensions.servers.server_turns import Sent
from speclab.lab.harness import Measurement
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.records.knees import KneeEntry
from speclab.system.errors import Problem
from speclab.theory import attribution
from speclab.theory.formulas import book_formula, ratio_interval
from speclab.theory.knees import knee_of

Key = tuple[Arm, float]  # an arm at a temperature


def record(served: Served, measured: Measurement) -> ServingRun:
    """All of it."""
    config, plan = served.config, served.plan
    head = config.head(measured)
    head["settings"] |= {
        "engine": f"vLLM {served.facts.get('version') or ''}".strip(),
        "own_engine": config.setup.engine,
        "tensor_parallel": plan.settings.tensor_parallel,
        "concurrency": plan.concurrency,
        "started_here": not plan.urls,
    }
    failure = served.stop if isinstance(served.stop, Problem) else None
    noise, compared = noise_floors(served), reconciled(served, measured)
    return ServingRun(
        **head,
        server=served.facts,
        correctness=measured.correctness,
        noise=list(noise.values()),
        refused=served.refused,
        failure=getattr(failure, "reason", None) or (str(failure) if failure else None),
        knees=_knees(served),
        served=rows(served, measured, noise, compared),
        load=served.load,
        limits=served.limits,
        schedules=served.schedules,
        reconciled=list(compared.values()),
        requests=[_request(served, one) for one in served.sent],
    )


# --- one request at a time --------------------------------------------------------------------------------------------


def noise_floors(served: Served) -> dict[Key, ServedNoise]:
    """The plain server against itself in the turns of each arm at each temperature."""
    found = {}
    for temperature in served.config.temperatures:
        for arm in served.arms:
            if not arm.speculative:
                continue
            both = (list(samples_of(served, of, temperature, arm).values()) for of in (BASELINE, BASELINE_REPEAT))
            if floor := attribution.noise_floor(*both):
                found[arm, temperature] = ServedNoise(
                    temperature=temperature,
                    ratio=floor.ratio,
                    low=floor.low,
                    high=floor.high,
                    method=arm.method,
                    draft_length=arm.draft_length,
                )
    return found


def rows(
    served: Served,
    measured: Measurement,
    noise: dict[Key, ServedNoise],
    compared: dict[tuple[Arm, int], Reconciled],
) -> list[ServedRow]:
    """Every arm at every temperature beside the plain server on the same prompts, in the same turns."""
    found = []
    for temperature in served.config.temperatures:
        for arm in served.arms:
            if arm != BASELINE_REPEAT and (sent := sent_by(served, arm, temperature)):
                found.append(_row(served, measured, arm, sent, noise.get((arm, temperature)), compared))
    return found


def _row(
    served: Served,
    measured: Measurement,
    arm: Arm,
    sent: list[Sent],
    floor: ServedNoise | None,
    compared: dict[tuple[Arm, int], Reconciled],
) -> ServedRow:
    temperature = sent[0].temperature
    after = samples_of(served, arm, temperature)
    before = samples_of(served, BASELINE, temperature, arm if arm.speculative else None)
    pairs = [(before[index], sample) for index, sample in after.items()]
    before_seconds, seconds = ([sample.seconds for sample in one] for one in zip(*pairs, strict=True))
    low, high = (ratio_interval(before_seconds, seconds) or (None, None)) if arm.speculative else (None, None)
    speedup = sum(before_seconds) / sum(seconds)
    whole = [sum(s.seconds + sum(s.prefill_seconds) for s in one) for one in zip(*pairs, strict=True)]
    n_tokens = sum(len(one.answer.tokens) - one.answer.n_first for one in sent)
    counts = counters.total([one.counts for one in sent if one.counts]) if arm.speculative else None
    acceptance_rate = counters.acceptance_rate(counts, arm.draft_length) if counts else None
    every_round = arm.speculative and not looks_up(served.config.drafters[arm.draft])
    decode = sum(one.answer.decode_seconds for one in sent)
    per_token = sum(before_seconds) / sum(len(text) - 1 for s in after.values() for text in s.texts)
    own = own_price(served, arm, compared) if temperature == 0 else None
    fixed = max(0.0, per_token - own.token_seconds) if own else 0.0
    return ServedRow(
        method=arm.method,
        draft=arm.draft or None,
        draft_length=arm.draft_length,
        temperature=temperature,
        n_prompts=len(pairs),
        n_tokens=n_tokens,
        seconds=decode,
        first_seconds=sum(one.answer.first_seconds for one in sent),
        tokens_per_second=n_tokens / decode,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        speedup_with_prefill=whole[0] / whole[1],
        verdict=attribution.verdict(speedup, low, high, None, floor) if arm.speculative else None,
        same_text=_same(measured, arm) if temperature == 0 else None,
        counts=counts,
        acceptance_rate=acceptance_rate,
        drafted_fraction=counters.as_counts(counts, arm.draft_length).drafted_fraction if counts else None,
        acceptance_length=counters.acceptance_length(counts) if counts else None,
        book_formula=book_formula(acceptance_rate, arm.draft_length) if acceptance_rate is not None else None,
        # A lookup has rounds that draft nothing, which no counter counts.
        round_cost=sum(seconds) / counts.n_drafts / per_token if counts and counts.n_drafts and every_round else None,
        tokens_per_round=own.tokens_per_round if own else None,
        own_round_cost=own.round_cost if own else None,
        own_token_seconds=own.token_seconds if own else None,
        fixed_seconds=fixed if own else None,
        forecast=own.forecast(fixed) if own else None,
    )


class OwnPrice(NamedTuple):
    """What the lab's own loop takes: seconds are medians over prompts, a round's cost the median of its ratios."""

    tokens_per_round: float
    token_seconds: float  # without speculation
    round_seconds: float
    round_cost: float  # in tokens without speculation

    def forecast(self, fixed: float) -> float:
        """The speedup of an engine each of whose steps, wide or not, takes so many seconds longer than on this loop."""
        return self.tokens_per_round * (self.token_seconds + fixed) / (self.round_seconds + fixed)


def own_price(served: Served, arm: Arm, compared: dict[tuple[Arm, int], Reconciled]) -> OwnPrice | None:
    """Of the prompts whose counts are reconciled: there the engine makes the same rounds. None where none are."""
    own = {
        index: served.own[arm, index]
        for (of, index), one in compared.items()
        if of == arm and one.verdict != "different" and served.own[arm, index].n_rounds
    }
    prices = [
        (one.seconds / one.n_rounds, served.texts[index].token_seconds)
        for index, one in own.items()
        if one.seconds and served.texts[index].token_seconds
    ]
    if not prices:
        return None
    n_tokens, n_rounds = sum(len(one.tokens) - 1 for one in own.values()), sum(one.n_rounds for one in own.values())
    of_round, of_token = (statistics.median(seconds) for seconds in zip(*prices, strict=True))
    costs = statistics.median(a_round / a_token for a_round, a_token in prices)
    return OwnPrice(n_tokens / n_rounds, of_token, of_round, costs)


def _same(measured: Measurement, arm: Arm) -> int | None:
    """How many prompts have the lab's own text in every repeat; None where that was not checked."""
    entry = verdict_of(measured, arm, 0)
    return entry["n_prompts"] - len(entry["differences"]) if entry else None


def reconciled(served: Served, measured: Measurement) -> dict[tuple[Arm, int], Reconciled]:
    """The engine's counts of every greedy prompt beside the lab's; of several repeats the first one."""
    found = {}
    for one in served.sent:
        key = (one.arm, one.index)
        if one.temperature == 0 and one.counts and key in served.own and key not in found:
            differences = (verdict_of(measured, one.arm, 0) or {}).get("differences", [])
            near_tie = (one.index, "near-tie") in [(other["prompt"], other["verdict"]) for other in differences]
            prompt = served.config.prompts[one.index]
            found[key] = reconcile(*key, prompt, one.counts, served.own[key], one.answer.tokens, near_tie)
    places = {arm: place for place, arm in enumerate(served.arms)}
    return {key: found[key] for key in sorted(found, key=lambda key: (places[key[0]], key[1]))}


def _request(served: Served, one: Sent) -> ServedRequest:
    prompt, answer = served.config.prompts[one.index], one.answer
    return ServedRequest(
        method=one.arm.method,
        draft=one.arm.draft or None,
        draft_length=one.arm.draft_length,
        temperature=one.temperature,
        prompt_index=one.index,
        prompt_kind=prompt.kind,
        n_prompt=prompt.ids.shape[1],
        n_tokens=len(answer.tokens),
        n_first=answer.n_first,
        n_chunks=answer.n_chunks,
        first_seconds=answer.first_seconds,
        decode_seconds=answer.decode_seconds,
        counts=one.counts if one.arm.speculative else None,
    )


# --- under load -------------------------------------------------------------------------------------------------------


def load_row(served: Served, loaded: Loaded) -> LoadRow:
    """One level in numbers."""
    arm, level = loaded.arm, loaded.level
    assert served.limits
    own = [served.texts[index].tokens for index in loaded.indexes] if loaded.temperature == 0 else None
    counts = counters.total([one.counts for one in level.other if one.counts])
    return LoadRow(
        method=arm.method,
        draft=arm.draft,
        draft_length=arm.draft_length,
        temperature=loaded.temperature,
        schedule=[list(one) for one in loaded.ranges] if loaded.ranges else None,
        concurrency=loaded.concurrency,
        n_requests=len(loaded.indexes) * len(level.plain),
        speedup=level.speedup,
        speedups=level.speedups,
        verdict=level.verdict,
        drafted_fraction=counters.as_counts(counts, arm.draft_length).drafted_fraction,
        plain=load.side(level.plain, served.limits, own),
        speculative=load.side(level.other, served.limits, own),
    )


def _knees(served: Served) -> list[KneeEntry]:
    """At how many requests at a time each draft stops paying."""
    found = []
    context = round(sum(p.ids.shape[1] for p in served.config.prompts) / len(served.config.prompts))
    fixed = [row for row in served.load if row.schedule is None]
    for method in dict.fromkeys(row.method for row in fixed):
        rows = [row for row in fixed if row.method == method]
        speedups = {(row.concurrency, row.draft_length): row.speedup for row in rows}
        found.append(knee_of(method, context, "measured", speedups))
    return found
