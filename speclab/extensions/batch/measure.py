"""The same requests, 1, 2, 4, ... at a time, token by token and with every draft at every length.

All ways to decode take turns, a pass at a time, so that a slow second meets all of them alike. Speedups are over plain
decoding of as many texts at a time. What is expected is simulated from one text at a time: fixed lengths from their
rounds, chosen ones from the baseline's text and what the draft says along it.
"""

import copy
import functools
import itertools
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from speclab.core.clock import old_objects_frozen
from speclab.core.counts import Counts
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.batch import expectations
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.budget import OWN, Budget, Budgeted, StepCosts
from speclab.extensions.batch.decoding.drafters import BatchDrafter, batch_drafter, shared_model
from speclab.extensions.batch.decoding.loops import BatchDecoding, autoregressive_decode_batch, speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.extensions.batch.expectations import FIXED, ORACLE, Trace
from speclab.lab import comparison, known_texts
from speclab.lab.comparison import RunConfig
from speclab.lab.harness import Measurement, kept_when_stopped, take_turns
from speclab.lab.rows import noise_floors, rows_of
from speclab.records.files import ComparisonRun
from speclab.records.rows import BASELINE, BASELINE_REPEAT, Arm, Decoded, RoundCounts, as_written
from speclab.system.terminal import progress

TIMES_FULL = 3  # how often a batch is filled at least
WARM_UP_TOKENS = 12


class BatchArm(NamedTuple):
    """A way to decode, `n_texts` at a time."""

    arm: Arm
    n_texts: int


FIRST = BatchArm(BASELINE, 1)  # plain decoding of one text at a time, which all others are judged by
# Of a way to decode, and kept from the warm-up on: nothing is recorded again while the clock counts.
Engine = tuple[BatchedModel, BatchDrafter | None]


@dataclass
class Batches:
    """The decodings of a run.

    load: texts come at random, this share of those that plain decoding could serve; None: all are there. times: by
    model, the seconds of passes over one text. plain: by number of texts, what steps of plain decoding cost.
    """

    config: RunConfig
    load: float | None
    times: dict[str, dict[expectations.Pass, float]]
    plain: dict[int, StepCosts] = field(default_factory=dict)
    decodings: dict[BatchArm, BatchDecoding] = field(default_factory=dict)


def compare_batches(
    config: RunConfig, batches: list[int], load: float | None = None
) -> tuple[ComparisonRun, Measurement]:
    """Measure, check, predict.  -> the record, with a noise floor for each number of texts, and the judged texts"""
    sizes = sorted({1, *batches})
    mean = statistics.mean(prompt.ids.shape[1] for prompt in config.prompts)
    context = round(mean + config.max_new_tokens / 2)  # tokens before a pass of plain decoding
    decoded = Batches(config, load, expectations.time_passes(config, context, sizes))

    def complete() -> str:
        every = decoded.decodings.items()
        full = [decoding.passes if load else decoding.full(one.n_texts) for one, decoding in every]
        return "the rounds so far are complete" if full and all(full) else ""

    with kept_when_stopped(complete) as stops:
        decode(decoded, arms(config, sizes))
    measured = judge(decoded)
    measured.stop = next(iter(stops), None)
    lines, n_ways = list(lines_of(decoded)), Counter(one.n_texts for one in decoded.decodings)
    done = Counter((one.n_texts, one.prompt_index) for one in lines)  # fewer where the run was stopped
    lines = [one for one in lines if done[one.n_texts, one.prompt_index] == n_ways[one.n_texts]]
    rows = rows_of(lines)
    expected = {} if measured.stop else expected_speedups(decoded)
    for row in rows:
        if row.draft and row.prompt_kind == "all":
            row.forecast = expected.get((row.draft, row.draft_length, row.n_texts))
    kinds = list(dict.fromkeys(line.prompt_kind for line in lines))
    run = ComparisonRun(
        **config.head(measured),
        prompts={"n": len({line.prompt_index for line in lines}), "kinds": kinds, "n_cut": None},
        correctness=measured.correctness,
        noise=noise_floors(lines),
        costs=[],
        rows=rows,
        raw=[line.recorded() for line in lines],
    )
    drafters = config.drafters.items()
    by_row = [name for name, drafter in drafters if not drafter.chooses_length and not shared_model(drafter)]
    oracles = [[name, n, as_written(one)] for (name, _, n), one in expected.items() if name.endswith(ORACLE)]
    run.settings |= {"row_by_row": by_row, "load": load, "oracle": oracles}
    return run, measured


def arms(config: RunConfig, sizes: list[int]) -> list[BatchArm]:
    """Return all ways to decode, FIRST first; plain decoding twice: its distance from itself is noise."""
    own = [
        Arm(config.method(name), name, k, drafter.chooses_length)
        for name, drafter in config.drafters.items()
        for k in filter(None, drafter.lengths(config.draft_lengths))
    ]
    middle = len(own) // 2  # half a round of turns away from the first, as the other arms are on average
    return [BatchArm(arm, n) for arm in [BASELINE, *own[:middle], BASELINE_REPEAT, *own[middle:]] for n in sizes]


def requests_of(config: RunConfig, n_texts: int) -> list[int]:
    """Return the numbers of the prompts: all of them, as often as it takes to fill the batch TIMES_FULL times."""
    n_prompts = len(config.prompts)
    return [*range(n_prompts)] * -(-TIMES_FULL * n_texts // n_prompts)


def decode(decoded: Batches, ways: list[BatchArm]) -> None:
    """Run every way to decode over its requests."""
    config = decoded.config
    engines = {one: _warmed(decoded, one) for one in ways}
    with old_objects_frozen():
        for one, engine in engines.items():
            numbers = requests_of(config, one.n_texts)
            come = arrivals(decoded, one.n_texts, len(numbers))
            decoded.decodings[one] = _decoding(config, one, engine, numbers, config.max_new_tokens, come)
        every = list(decoded.decodings.values())
        with progress(sum(one.n_requests for one in every), "text", "decoding") as bar:
            take_turns(every, lambda _: bar.update(sum(one.n_requests - one.n_left for one in every) - bar.n))


def _warmed(decoded: Batches, one: BatchArm) -> Engine:
    """Return the engine of this way to decode. Every shape is met once before the clock counts; on CUDA graphs all
    passes that will come are recorded. Where lengths are chosen, it is known then what steps cost."""
    config, setup, k = decoded.config, decoded.config.setup, one.arm.draft_length
    requests = requests_of(config, one.n_texts)
    longest = max(config.prompts[number].ids.shape[1] for number in requests) + config.max_new_tokens
    longest += k + 1 if one.arm.speculative else setup.chunk
    target, drafter = BatchedModel(setup.target, one.n_texts), None
    target.start(longest, range(1, k + 2))
    if one.arm.speculative:
        drafter = batch_drafter(copy.deepcopy(config.drafters[one.arm.draft]), one.n_texts)
        drafter.start(target, setup.sampling_at(config.temperatures[0]), longest)
    budget = min(max(WARM_UP_TOKENS, k + 2), config.max_new_tokens)
    warm_up = _decoding(config, one, (target, drafter), requests[: 2 * one.n_texts], budget)
    take_turns([warm_up])
    chooses = config.drafters.get(one.arm.draft)
    if one.arm == BASELINE:
        decoded.plain[one.n_texts] = _costs(decoded, one, warm_up)
    elif isinstance(chooses, Budgeted) and drafter:
        drafter.budget = Budget(_costs(decoded, one, warm_up), chooses.rule, k)
    return target, drafter


def _costs(decoded: Batches, one: BatchArm, made: BatchDecoding, most: int = 0) -> StepCosts:
    """Return what steps of this way cost, with what its rounds took in `made`; for up to `most` texts."""
    config, k, n = decoded.config, one.arm.draft_length, one.n_texts
    drafter = config.drafters.get(one.arm.draft)
    model = getattr(drafter, "name", one.arm.draft)  # of a budget, the draft without it
    costs = expectations.step_costs(decoded.times, model, max(n, most), k, config.setup.engine != "c")
    # What draws makes probabilities, so it is a network; without a pass for all rows it works for each of them.
    by_row = drafter and not shared_model(drafter) and any(part.draws for part in drafter.parts)
    return expectations.with_rounds(costs, made, n, k, decoded.plain[n].outside if by_row else None)


def _decoding(
    config: RunConfig, one: BatchArm, engine: Engine, numbers: list[int], budget: int, come: Sequence[float] = ()
) -> BatchDecoding:
    """Make a way to decode ready to work on these requests; each has random numbers of its own, the same in every
    way. come: when they come, in seconds from the start; empty: all are there then."""
    setup, sampling, (target, drafter) = config.setup, config.setup.sampling_at(config.temperatures[0]), engine
    settings = (DecodeSettings(budget, sampling, seed=config.seed * 1009 + i) for i in range(len(numbers)))
    prompts = [config.prompts[number].ids.to(setup.device) for number in numbers]
    requests = list(map(Request, prompts, settings, come or itertools.repeat(0.0)))
    loop = functools.partial(autoregressive_decode_batch, target, requests, setup.chunk)
    if drafter:
        how = one.arm.draft_length, config.functions.accept
        loop = functools.partial(speculative_decode_batch, target, drafter, requests, *how)
    return BatchDecoding(loop, len(requests))


def arrivals(decoded: Batches, n_texts: int, n: int) -> list[float]:
    """Return when n texts come, in seconds from the start (a Poisson process), the same in every way; empty where all
    are there then."""
    seconds = decoded.plain[n_texts].of_length(n_texts, 0)[0] * (decoded.config.max_new_tokens - 1)
    random, load = np.random.default_rng((decoded.config.seed, 1)), decoded.load  # not the coins of a forecast
    return random.exponential(seconds / (load * n_texts), n).cumsum().tolist() if load else []


def lines_of(decoded: Batches) -> Iterator[Decoded]:
    """Yield what every way to decode did with each prompt: the first of its texts, at the pace of all of them in the
    rounds in which every row had a text. So prompts count alike, however many of their tokens were decoded there."""
    config = decoded.config
    for (arm, n_texts), decoding in decoded.decodings.items():
        shares = decoding.by_request(n_texts, shared=not decoded.load)
        for number in range(len(config.prompts)):
            own = [i for i, asked in enumerate(requests_of(config, n_texts)) if asked == number and i in shares]
            if not (ended := [i for i in own if i in decoding.ended]):
                continue
            n_tokens, seconds = (sum(shares[i][place] for i in own) for place in (0, 1))
            times = decoding.prefills[ended[0]], seconds / n_tokens
            line = _line(config, arm, number, number, decoding.rounds[ended[0]], *times)
            line.n_texts = n_texts
            yield line


def _line(
    config: RunConfig, arm: Arm, index: int, number: int, rounds: list[Round], prefill: float = 0.0, pace: float = 0.0
) -> Decoded:
    """Book a text of this prompt. prefill, pace: seconds of its first token and of each further one."""
    prompt, counts = config.prompts[number], Counts()
    line = Decoded.begin(arm, config.temperatures[0], index, prompt.kind, prompt.ids.shape[1])
    for made in rounds:
        counts.add(made)
    drafted = [RoundCounts(made.n_drafted, made.n_accepted) for made in rounds if not made.prefill]
    line.add(prefill, pace * counts.n_emitted, tokens_of(rounds), counts, drafted)
    return line


def judge(decoded: Batches) -> Measurement:
    """Judge the texts: greedy ones must be those of plain decoding, one at a time; sampled ones follow the target."""
    config = decoded.config
    temperature = config.temperatures[0]
    most = max((requests_of(config, one.n_texts) for one in decoded.decodings), key=len)
    measured = Measurement(config.bench(), [config.prompts[number] for number in most])
    asked: list[tuple[Arm, float]] = []
    of_first = decoded.decodings[FIRST]
    for one, decoding in decoded.decodings.items():
        arm = BASELINE if one == FIRST else replace(one.arm, method=f"{one.arm.method}, {one.n_texts} at a time")
        for index, number in enumerate(most):
            own = number if one == FIRST else index  # greedily, copies of a prompt have the same text
            if number not in of_first.ended or own not in decoding.ended:
                continue
            line = _line(config, arm, index, number, decoding.rounds[own])
            line.lossy_rule = measured.bench.lossy_rule(arm)
            measured.lines.append(line)
        if one != FIRST and (temperature == 0 or arm.speculative):
            asked.append((arm, temperature))
    comparison.judge(measured, asked)
    return measured


def expected_speedups(decoded: Batches) -> dict[tuple[str, int, int], float]:
    """Return what each draft should gain, by its name, its longest draft and the number of texts; of a draft on a
    budget also what an oracle would gain."""
    config, found = decoded.config, dict[tuple[str, int, int], float]()
    sizes = sorted({one.n_texts for one in decoded.decodings})
    for one, of_one in decoded.decodings.items():
        if one.n_texts == 1 and one.arm != BASELINE_REPEAT:
            name, k, chooses = one.arm.draft, one.arm.draft_length, config.drafters.get(one.arm.draft)
            if isinstance(chooses, Budgeted) and len(chooses.parts) > 1:
                continue  # along a known text only one part of a hybrid is known
            costs = _costs(decoded, one, of_one, sizes[-1])
            rules, traces = {FIXED: name}, [expectations.trace_of(of_one.rounds[i]) for i in sorted(of_one.rounds)]
            if isinstance(chooses, Budgeted):
                rules, traces = {chooses.rule: name}, [*known_traces(decoded, name, k)]
                rules |= {ORACLE: f"{chooses.name} {ORACLE}"} if chooses.rule == OWN else {}
            for n, (rule, named) in itertools.product(sizes, rules.items()):
                asked = requests_of(config, n)
                come, read = arrivals(decoded, n, len(asked)), [of_one.prefills[number] for number in asked]
                texts = [traces[number] for number in asked]
                of_rule = expectations.simulate(texts, costs, rule, k, n, come, read)
                found[named, k, n] = of_rule.of_user if decoded.load else of_rule.tokens_per_second
    return {way: rate / found["", 0, way[-1]] for way, rate in found.items()}


def known_traces(decoded: Batches, draft: str, k: int) -> Iterator[Trace]:
    """Yield, of each prompt, what the draft would do along the baseline's text."""
    config, temperature = decoded.config, decoded.config.temperatures[0]
    bench, sampling = config.bench(), config.setup.sampling_at(temperature)
    for number, prompt in enumerate(config.prompts):
        text = tokens_of(decoded.decodings[FIRST].rounds[number])
        accepts = known_texts.probs_along(bench, k, draft, sampling, prompt, text)
        if not shared_model(config.drafters[draft]):  # nobody asks what it gives to a token
            yield Trace(accepts)
            continue
        wide = sampling if temperature else Sampling(1.0)  # greedily, too, it is surest of what it gives most
        said = config.drafters[draft].law(config.setup.target, prompt.id_list, text, wide, k)
        by_depth = [said.rows(depth).amax(-1).tolist() for depth in range(k)]
        yield Trace(accepts, [[tops[at] for tops in by_depth if at < len(tops)] for at in range(len(text))])
