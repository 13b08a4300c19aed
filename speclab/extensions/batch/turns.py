"""All ways to decode a run's requests take turns, a pass at a time, so that a slow second meets all of them alike."""

import copy
import statistics
from dataclasses import dataclass, field

from speclab.core.rounds import DecodeSettings
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.decoding.drafters import BatchDrafter, batch_drafter
from speclab.extensions.batch.decoding.loops import autoregressive_decode_batch, speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.extensions.batch.expectations import PassTimer
from speclab.lab.run_config import RunConfig
from speclab.lab.turns import Recorded, take_turns, timed_turns
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.system.terminal import progress

TIMES_FULL = 3  # how often a batch is filled at least


@dataclass(frozen=True)
class BatchArm:
    """A way to decode, `n_texts` at a time."""

    arm: Arm
    n_texts: int

    @property
    def name(self) -> str:
        """The name by which checks and notes call it."""
        return f"{self.arm.label}, {self.n_texts} at a time"


FIRST = BatchArm(BASELINE, 1)  # plain decoding of one text at a time, which all others are judged by


def arms(config: RunConfig, batches: list[int]) -> list[BatchArm]:
    """All ways to decode, FIRST first; plain decoding twice for every batch: its distance from itself is noise."""
    sizes = sorted({1, *batches})
    ways: list[BatchArm] = []
    for name, drafter in config.drafters.items():
        for k in drafter.lengths(config.draft_lengths):
            if k:
                arm = Arm(config.method(name), name, k)
                ways += [BatchArm(arm, n) for n in sizes]
    middle = len(ways) // 2  # half a round of turns away from the first, as the other arms are on average
    again = [BatchArm(BASELINE_REPEAT, n) for n in sizes]
    return [*(BatchArm(BASELINE, n) for n in sizes), *ways[:middle], *again, *ways[middle:]]


def n_distinct(config: RunConfig) -> int:
    """The number of different prompts."""
    return len({tuple(prompt.id_list) for prompt in config.prompts})


def requests_of(config: RunConfig, n_texts: int) -> list[int]:
    """The numbers of the prompts: all of them, as often as it takes to fill the batch TIMES_FULL times."""
    n_prompts = len(config.prompts)
    return [*range(n_prompts)] * max(-(-TIMES_FULL * n_texts // n_prompts), config.repeats)


# --- turns ------------------------------------------------------------------------------------------------------------

WARM_UP_TOKENS = 12
TURNS = 30  # turns in which passes are timed


@dataclass
class Engine:
    """The batch on which a way to decode runs, and its drafter where there is one. Both are kept from the warm-up on,
    so that nothing is recorded again while the clock counts."""

    target: BatchedModel
    drafter: BatchDrafter | None


@dataclass
class Batches:
    """The decodings of a run."""

    config: RunConfig
    decodings: dict[BatchArm, BatchDecoding] = field(default_factory=dict)
    engines: dict[BatchArm, Engine] = field(default_factory=dict)
    graphs: Recorded = field(default_factory=Recorded)

    @property
    def complete(self) -> str:
        """A line that says what is kept when the run is stopped; empty where nothing is."""
        full = [decoding.full(one.n_texts) for one, decoding in self.decodings.items()]
        return "the rounds so far are complete" if full and all(full) else ""


def mean_context(config: RunConfig) -> float:
    """The number of tokens before a pass of plain decoding, on average."""
    return statistics.mean(prompt.ids.shape[1] for prompt in config.prompts) + config.max_new_tokens / 2


def decode(decoded: Batches, ways: list[BatchArm], timer: PassTimer) -> None:
    """Run every way to decode over its requests; passes are timed in between, on the same state of the machine."""
    config = decoded.config

    def warm_up() -> None:
        for one in ways:
            decoded.engines[one] = _warmed(decoded, one)

    with timed_turns(decoded.graphs, warm_up):
        decoded.decodings = {
            one: _decoding(config, one, decoded.engines[one], requests_of(config, one.n_texts), config.max_new_tokens)
            for one in ways
        }
        every = list(decoded.decodings.values())
        n_texts = sum(one.n_requests for one in every)
        n_steps = n_ended = 0
        with progress(n_texts, "text", "decoding") as bar:

            def between(moved: BatchDecoding) -> None:
                nonlocal n_steps, n_ended
                while n_ended < sum(one.n_requests - one.n_left for one in every):
                    n_ended += 1
                    bar.update()
                whole = sum(one.n_tokens for one in every) / (n_texts * config.max_new_tokens)
                while n_steps < int(whole * TURNS * timer.n_steps):
                    n_steps += 1
                    timer.step()

            take_turns(every, between)


def _warmed(decoded: Batches, one: BatchArm) -> Engine:
    """The engine of this way to decode. Every shape is met once before the clock counts; on CUDA graphs all passes that
    will come are recorded."""
    config = decoded.config
    setup, k = config.setup, one.arm.draft_length
    requests = requests_of(config, one.n_texts)
    longest = max(config.prompts[number].ids.shape[1] for number in requests) + config.max_new_tokens
    longest += k + 1 if one.arm.speculative else setup.chunk
    target = BatchedModel(setup.target, one.n_texts)
    engine = Engine(target, None)
    target.start(longest)
    target.prepare(range(1, k + 2), longest)
    if one.arm.speculative:
        drafter = batch_drafter(copy.deepcopy(config.drafters[one.arm.draft]), one.n_texts)
        drafter.start(target, setup.sampling_at(config.temperatures[0]), longest)
        drafter.prepare(longest)
        engine = Engine(target, drafter)
    budget = min(max(WARM_UP_TOKENS, k + 2), config.max_new_tokens)
    warm = _decoding(config, one, engine, requests[: 2 * one.n_texts], budget)
    take_turns([warm])
    return engine


def _decoding(config: RunConfig, one: BatchArm, engine: Engine, numbers: list[int], budget: int) -> BatchDecoding:
    """A way to decode, ready to work on these requests; each has random numbers of its own, the same in every way."""
    setup, sampling = config.setup, config.setup.sampling_at(config.temperatures[0])
    requests = [
        Request(
            config.prompts[number].ids.to(setup.device), DecodeSettings(budget, sampling, seed=config.seed * 1009 + i)
        )
        for i, number in enumerate(numbers)
    ]
    if engine.drafter is None:
        return BatchDecoding(autoregressive_decode_batch(engine.target, requests, setup.chunk), len(requests))
    k, accept = one.arm.draft_length, config.functions.accept
    return BatchDecoding(speculative_decode_batch(engine.target, engine.drafter, requests, k, accept), len(requests))
