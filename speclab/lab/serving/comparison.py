"""`compare.py --engine vllm`: the lab's question asked of vLLM. Same text? How fast? And why not faster?

One server without speculation runs from the beginning to the end. Beside it runs one server at a time with a draft, and
both answer the same prompts in turns, so that a slow second of the machine meets both. All servers of a run are started
with the same flags but for the draft.

What the servers count is held against the rounds that the lab's own loop makes of the same prompts with the same draft.
No forecast is made: what a drafted token and a wider pass cost inside the engine is not measured here.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from speclab.lab.batching.expectations import knee_of
from speclab.lab.harness import Measurement, mixed
from speclab.lab.output_checks import judge_greedy
from speclab.lab.run_config import RunConfig
from speclab.lab.serving import counters, turns
from speclab.lab.serving.client import Client, Order
from speclab.lab.serving.installed import Installed, ServerSettings, speculative_config
from speclab.lab.serving.own import OwnRounds, greedy_texts, looks_up, own_rounds, reconcile
from speclab.lab.serving.servers import Server, ServerProblem, log_folder, running
from speclab.lab.serving.turns import Sent
from speclab.records.batches import KneeEntry
from speclab.records.runs import Facts, Noise
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm, Sample
from speclab.records.serving import (
    LoadRow,
    Reconciled,
    Refused,
    ServedRequest,
    ServedRow,
    ServingRun,
)
from speclab.system.errors import EnvironmentProblem, Problem
from speclab.system.terminal import note, progress
from speclab.theory import attribution, losslessness
from speclab.theory.formulas import book_formula, ratio_interval


@dataclass(frozen=True)
class Plan:
    """What to start, or whom to ask. urls: of a server without speculation and of one with it, which run already."""

    installed: Installed | None
    settings: ServerSettings
    concurrency: list[int]
    urls: tuple[str, ...] = ()


@dataclass
class Served:
    """What was measured of a run."""

    config: RunConfig
    plan: Plan
    texts: list[list[int]] = field(default_factory=list)  # the lab's own greedy ones
    own: dict[tuple[Arm, int], OwnRounds] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    load: list[LoadRow] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    facts: Facts = field(default_factory=dict)
    stop: BaseException | None = None  # what ended it early

    @property
    def arms(self) -> list[Arm]:
        """All arms that sent something, the baseline first."""
        return list(dict.fromkeys([BASELINE] * bool(self.sent) + [one.arm for one in self.sent]))

    def orders(self, temperature: float) -> dict[int, Order]:
        """What is asked for every prompt, the kinds of prompts taking turns."""
        config = self.config
        sampling = config.setup.sampling_at(temperature)
        return {
            index: Order(config.prompts[index].id_list, config.max_new_tokens, sampling, config.seed * 1009 + index)
            for index in mixed(config.prompts)
        }


def compare_serving(config: RunConfig, plan: Plan) -> tuple[ServingRun, Measurement]:
    """Measure, check, reconcile.  -> the record, and the texts with what their checks say

    What ends the run early is in the record and in the measurement, where some arm is complete; else it is raised.
    """
    served = Served(config, plan)
    arms = [Arm(config.method(name), name, k) for name in config.drafters for k in config.draft_lengths]
    served.texts = greedy_texts(config.setup, config.prompts, config.max_new_tokens)
    if 0 in config.temperatures:
        served.own = own_rounds(config.setup, config.drafters, arms, config.prompts, config.max_new_tokens)
    try:
        with servers(served, arms) as pairs:
            for arm, plain, start in pairs:
                measure(served, arm, plain, start)
    except (KeyboardInterrupt, Problem) as stop:
        if not served.sent:
            raise
        served.stop = stop
    measured = judged(served)
    return record(served, measured), measured


# --- servers ----------------------------------------------------------------------------------------------------------

Start = Callable[[], contextlib.AbstractContextManager[Server]]
Pair = tuple[Arm, Server, Start]


@contextlib.contextmanager
def servers(served: Served, arms: list[Arm]) -> Iterator[Iterator[Pair]]:
    """For every arm the plain server, and how to get the one with the draft. All are stopped at the end."""
    plan = served.plan
    if plan.urls:
        of_base, of_draft = plan.urls
        both = Server("baseline", Client(of_base)), Server(arms[0].label, Client(of_draft))
        yield iter([(arms[0], *_checked(served, *both))])
        return
    assert plan.installed
    with log_folder() as folder:
        start = functools.partial(_start, plan, folder)
        with start("baseline", None) as plain:
            served.facts = {"flags": plan.settings.words(None), **plan.installed.facts}
            served.facts["start_seconds"] = {"baseline": round(plain.start_seconds or 0, 1)}
            yield ((arm, plain, functools.partial(start, arm.label, arm)) for arm in arms)


def _start(plan: Plan, folder: Path, name: str, arm: Arm | None) -> contextlib.AbstractContextManager[Server]:
    assert plan.installed
    settings = plan.settings
    words = settings.words(speculative_config(arm.draft, arm.draft_length) if arm else None)
    return running(name, plan.installed, settings.target, words, settings.environment(), folder)


def _checked(served: Served, plain: Server, other: Server) -> tuple[Server, Start]:
    """Two servers of somebody else's, which must be what they are taken for."""
    for server in (plain, other):
        client = server.client
        server.client = Client(client.url, client.served_model())
        served.facts.setdefault("version", client.version())
    if plain.client.look().speculation is not None:
        raise EnvironmentProblem(f"{plain.client.url} speculates; give the server without speculation first")
    if other.client.look().speculation is None:
        raise EnvironmentProblem(f"{other.client.url} does not speculate; give the server with speculation second")
    return plain, lambda: contextlib.nullcontext(other)


def measure(served: Served, arm: Arm, plain: Server, start: Start) -> None:
    """Everything about one arm, which is refused where its server does not start."""
    config, plan = served.config, served.plan
    if plan.installed and (why := plan.installed.lacks(arm.draft)):
        _refuse(served, arm, why)
        return
    orders = {temperature: served.orders(temperature) for temperature in config.temperatures}
    first = list(orders[config.temperatures[0]].values())
    try:
        with start() as other:
            served.facts.setdefault("start_seconds", {})[arm.label] = round(other.start_seconds or 0, 1)
            turns.warm_up((plain, other), first)
            n = len(config.prompts) * config.repeats * len(config.temperatures)
            sent: list[Sent] = []
            with progress(n, "prompt", arm.label) as bar:
                for of_temperature in orders.values():
                    sent += turns.in_turns(plain, other, arm, of_temperature, config.repeats, bar.update)
            served.sent += sent  # all of an arm, or nothing
            _load(served, arm, plain, other, first)
    except ServerProblem as problem:
        if not (problem.starting and problem.reason):
            raise
        _refuse(served, arm, problem.reason)


def _refuse(served: Served, arm: Arm, why: str) -> None:
    note(f"  {arm.label}: this vLLM does not run it: {why}")
    served.refused.append(Refused(method=arm.method, draft_length=arm.draft_length, reason=why))


def _load(served: Served, arm: Arm, plain: Server, other: Server, orders: list[Order]) -> None:
    """Both servers with ever more requests at a time; who goes first takes turns."""
    levels = served.plan.concurrency
    with progress(len(levels), "level", f"{arm.label}, under load") as bar:
        for number, concurrency in enumerate(levels):
            asked = turns.orders_for(served.config.prompts, orders, concurrency)
            both = [plain, other] if number % 2 == 0 else [other, plain]
            found = {id(server): turns.under_load(server, asked, concurrency) for server in both}
            (before, _), (after, counts) = found[id(plain)], found[id(other)]
            fraction = counters.as_counts(counts, arm.draft_length).drafted_fraction if counts else None
            served.load.append(
                LoadRow(
                    method=arm.method,
                    draft=arm.draft,
                    draft_length=arm.draft_length,
                    concurrency=concurrency,
                    n_requests=len(asked),
                    speedup=(after.n_tokens / after.seconds) / (before.n_tokens / before.seconds),
                    drafted_fraction=fraction,
                    plain=before,
                    speculative=after,
                )
            )
            bar.update()


# --- what it says -----------------------------------------------------------------------------------------------------


def judged(served: Served) -> Measurement:
    """The texts of all servers: greedily those of the lab's own baseline, when sampling the target's law."""
    config = served.config
    measured = Measurement(config.bench(), config.prompts, stop=served.stop)
    for index, text in enumerate(served.texts):
        own = Sample(BASELINE, 0.0, index, config.prompts[index].kind, config.prompts[index].ids.shape[1])
        own.add(0.0, 0.0, text)
        measured.samples.append(own)
    for arm in served.arms:
        if arm == BASELINE_REPEAT:
            continue
        name = Arm("served baseline") if arm == BASELINE else arm
        for temperature in config.temperatures:
            samples = [replace(sample, arm=name) for sample in _samples(served, arm, temperature).values()]
            if not samples:
                continue
            measured.samples += samples
            check = judge_greedy if temperature == 0 else _judge_sampled
            measured.correctness.append(check(measured, name, temperature))
    return measured


def _samples(served: Served, arm: Arm, temperature: float, turns_of: Arm | None = None) -> dict[int, Sample]:
    """What an arm sent, by prompt; turns_of: in the turns of this arm alone.

    Decoding is scaled to all tokens but one: a first chunk may carry several.
    """
    found: dict[int, Sample] = {}
    for one in _of(served, arm, temperature):
        if turns_of not in (None, one.turns_of):
            continue
        prompt, answer = served.config.prompts[one.index], one.answer
        sample = Sample(arm, temperature, one.index, prompt.kind, prompt.ids.shape[1])
        seconds = answer.seconds_per_token * (len(answer.tokens) - 1)
        found.setdefault(one.index, sample).add(answer.first_seconds, seconds, answer.tokens)
    return found


def _of(served: Served, arm: Arm, temperature: float) -> list[Sent]:
    return [one for one in served.sent if (one.arm, one.temperature) == (arm, temperature)]


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> Facts:
    """The two z statistics of sampled texts under the target's own law; the first one counts improbable tokens.

    Of every prompt one text: requests with the same seed are the same text again, and prove nothing.
    """
    setup, sums = measured.bench.setup, losslessness.ZSums()
    sampling, vocab = setup.sampling_at(temperature), setup.target.vocab_size
    for sample in measured.of(arm, temperature):
        prompt = measured.prompts[sample.prompt_index].id_list
        for text in sample.texts[:1]:
            law = losslessness.distributions(setup.target.model, prompt, text, sampling, vocab)
            sums.add(torch.tensor(text), law, torch.full_like(law, 1 / vocab))
    z = sums.result()
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": _finite(z.residual),
        "z_surprise": _finite(z.surprise),
        "bound": losslessness.Z_BOUND,
        "passed": z.passed,
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


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
    noise = noise_floors(served)
    return ServingRun(
        **head,
        server=served.facts,
        correctness=measured.correctness,
        noise=noise,
        refused=served.refused,
        failure=getattr(failure, "reason", None) or (str(failure) if failure else None),
        knees=_knees(served),
        served=rows(served, measured, noise),
        load=served.load,
        reconciled=reconciled(served),
        requests=[_request(served, one) for one in served.sent],
    )


def noise_floors(served: Served) -> list[Noise]:
    """The plain server against itself, at each temperature."""
    found = []
    for temperature in served.config.temperatures:
        both = (list(_samples(served, arm, temperature).values()) for arm in (BASELINE, BASELINE_REPEAT))
        if floor := attribution.noise_floor(*both):
            found.append(floor)
    return found


def _knees(served: Served) -> list[KneeEntry]:
    """At how many requests at a time each draft stops paying."""
    found = []
    context = round(sum(p.ids.shape[1] for p in served.config.prompts) / len(served.config.prompts))
    for method in dict.fromkeys(row.method for row in served.load):
        rows = [row for row in served.load if row.method == method]
        speedups = {(row.concurrency, row.draft_length): row.speedup for row in rows}
        found.append(knee_of(method, context, "measured", speedups))
    return found


def rows(served: Served, measured: Measurement, noise: list[Noise]) -> list[ServedRow]:
    """Every arm at every temperature beside the plain server on the same prompts, in the same turns."""
    found = []
    for temperature in served.config.temperatures:
        floor = next((one for one in noise if one.temperature == temperature), None)
        for arm in served.arms:
            if arm != BASELINE_REPEAT and (sent := _of(served, arm, temperature)):
                found.append(_row(served, measured, arm, sent, floor))
    return found


def _row(served: Served, measured: Measurement, arm: Arm, sent: list[Sent], floor: Noise | None) -> ServedRow:
    temperature = sent[0].temperature
    after = _samples(served, arm, temperature)
    before = _samples(served, BASELINE, temperature, arm if arm.speculative else None)
    pairs = [(before[index], sample) for index, sample in after.items()]
    before_seconds, seconds = ([sample.decode_seconds for sample in one] for one in zip(*pairs, strict=True))
    low, high = (ratio_interval(before_seconds, seconds) or (None, None)) if arm.speculative else (None, None)
    speedup = sum(before_seconds) / sum(seconds)
    whole = [sum(s.decode_seconds + s.prefill_seconds for s in one) for one in zip(*pairs, strict=True)]
    n_tokens = sum(len(one.answer.tokens) - one.answer.n_first for one in sent)
    counts = counters.total([one.counts for one in sent if one.counts]) if arm.speculative else None
    alpha = counters.acceptance_rate(counts, arm.draft_length) if counts else None
    every_round = arm.speculative and not looks_up(served.config.drafters[arm.draft])
    decode = sum(one.answer.decode_seconds for one in sent)
    per_token = sum(before_seconds) / sum(len(text) - 1 for s in after.values() for text in s.texts)
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
        acceptance_rate=alpha,
        drafted_fraction=counters.as_counts(counts, arm.draft_length).drafted_fraction if counts else None,
        acceptance_length=counters.acceptance_length(counts) if counts else None,
        book_formula=book_formula(alpha, arm.draft_length) if alpha is not None else None,
        # A lookup has rounds that draft nothing, which no counter counts.
        round_cost=sum(seconds) / counts.n_drafts / per_token if counts and counts.n_drafts and every_round else None,
    )


def _same(measured: Measurement, arm: Arm) -> int:
    """How many prompts have the lab's own text in every repeat."""
    name = "served baseline" if arm == BASELINE else arm.label
    entry = next(one for one in measured.correctness if (one["arm"], one["temperature"]) == (name, 0))
    return entry["n_prompts"] - len(entry["differences"])


def reconciled(served: Served) -> list[Reconciled]:
    """The engine's counts of every greedy prompt beside the lab's; of several repeats the first one."""
    found = {}
    for one in served.sent:
        key = (one.arm, one.index)
        if one.temperature == 0 and one.counts and key in served.own and key not in found:
            prompt, lookup = served.config.prompts[one.index], looks_up(served.config.drafters[one.arm.draft])
            found[key] = reconcile(*key, prompt, one.counts, served.own[key], one.answer.tokens, lookup)
    places = {arm: place for place, arm in enumerate(served.arms)}
    return [found[key] for key in sorted(found, key=lambda key: (places[key[0]], key[1]))]


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
