"""The record of `python -m speclab.extensions.servers`: the same prompts through servers of another engine."""

from dataclasses import dataclass
from typing import Annotated, Literal

from speclab.records.facts import Entries, Facts, Judged
from speclab.records.knees import KneeEntry
from speclab.records.rows import Amount, Count, RecordPart, Share, Verdict
from speclab.records.runs import LabRun, Noise


class ServerFacts:
    """This says which engine served, and how it was started. Of servers that ran before, the version alone is known."""

    package: str = ""
    version: str | None = None
    python: str = ""
    torch: str | None = None
    transformers: str | None = None
    flags: list[str] = []  # noqa: RUF012
    start_seconds: dict[str, Amount] = {}  # noqa: RUF012 - until each of them answered


@dataclass(kw_only=True)
class EngineCounts(RecordPart):
    """How far an engine's counters of speculation went on between two looks at them."""

    n_drafts: Count  # rounds in which something was drafted
    n_drafted: Count
    n_accepted: Count
    accepted_at: list[Count]  # rounds that kept the drafted token 1, 2, ...


@dataclass(kw_only=True)
class ServedRequest(RecordPart):
    """One request of one arm, and what its server counted meanwhile."""

    method: str
    draft: str | None
    draft_length: Count
    temperature: Amount
    prompt_index: Count
    prompt_kind: str
    n_prompt: Count  # tokens
    n_tokens: Count
    n_first: Count  # tokens of the first chunk
    n_chunks: Count  # one may carry several tokens
    first_seconds: Amount  # from the request to the first chunk
    decode_seconds: Amount  # from the first chunk to the last
    counts: EngineCounts | None  # None: a server that does not speculate


@dataclass(kw_only=True)
class Reconciled(RecordPart):
    """What an engine counted on one prompt beside the lab's own rounds, greedily."""

    method: str
    draft: str
    draft_length: Count
    prompt_index: Count
    prompt_kind: str
    engine: EngineCounts
    own: EngineCounts
    last_drafted: Count  # of the lab's very last round
    last_accepted: Count
    verdict: Literal["equal", "last round", "different"]
    reason: str  # empty where the counts are equal


@dataclass(kw_only=True)
class ServedRow(RecordPart):
    """One arm at one temperature, beside the server without speculation on the same prompts, in turns."""

    method: str
    draft: str | None
    draft_length: Count
    temperature: Amount
    n_prompts: Count
    n_tokens: Count  # that came after the first chunks
    seconds: Amount  # from the first chunks to the last
    first_seconds: Amount  # before them, all requests together
    tokens_per_second: Amount
    speedup: Amount
    speedup_low: float | None
    speedup_high: float | None
    speedup_with_prefill: Amount
    verdict: Verdict | None
    same_text: Count | None  # texts that are the lab's own; None when sampled
    counts: EngineCounts | None
    acceptance_rate: Share | None  # None: drafts came shorter than k, and no counter tells how many tokens were tested
    drafted_fraction: Share | None
    acceptance_length: float | None  # the engine's: 1 + accepted / drafts
    book_formula: float | None
    round_cost: float | None  # seconds of a round over seconds of a token without speculation
    tokens_per_round: float | None  # of the prompts whose counts are reconciled, all rounds counted
    own_round_cost: float | None  # the same as round_cost on the lab's own loop, the median over prompts
    own_token_seconds: float | None  # of a plain token on the lab's own loop, the median over the same prompts
    fixed_seconds: float | None  # by which the plain server's tokens take longer than those
    forecast: float | None  # tokens_per_round / a round's price in the engine, if it has that part once in every step


@dataclass(kw_only=True)
class LoadSide(RecordPart):
    """One server under load, in all measured passes. Percentiles are over requests, in seconds."""

    n_tokens: Count
    n_same: Count | None  # texts that are the lab's own; None when sampled
    n_good: Count  # requests that met both limits
    seconds: Amount  # from the first request to the last token of all, the sum over the passes
    first_p50: Amount
    first_p95: Amount
    token_p50: Amount  # per token after the first chunk
    token_p95: Amount


@dataclass(kw_only=True)
class LoadRow(RecordPart):
    """So many requests at a time, without speculation and with it."""

    method: str
    draft: str
    draft_length: Count
    temperature: Amount
    schedule: list[list[Count]] | None  # [first, last, k] of requests at a time; None: always k
    concurrency: Count
    n_requests: Count  # to each server, in all measured passes
    speedup: Amount  # of tokens a second, all requests together
    speedups: list[Amount]  # of single passes: plain server first, then the other one first
    verdict: Verdict  # unclear: the passes do not agree
    drafted_fraction: Share | None
    plain: LoadSide
    speculative: LoadSide


@dataclass(kw_only=True)
class Limits(RecordPart):
    """What a request under load must meet to count as good, in seconds."""

    first: Amount  # to the first chunk
    token: Amount  # per token after it
    given: bool  # False: multiples of what the plain server takes for one request at a time


@dataclass(kw_only=True)
class ServedNoise(Noise):
    """The plain server against itself in the turns of one arm."""

    method: str
    draft_length: Count


@dataclass(kw_only=True)
class Schedule(RecordPart):
    """Of a draft, the best measured k for so many requests at a time; 0 where none pays."""

    method: str
    ranges: list[list[Count]]  # [first, last, k]
    left_out: str  # why no server ran with it; empty where one did


@dataclass(kw_only=True)
class Refused(RecordPart):
    """An arm that the engine does not run, and why."""

    method: str
    draft_length: Count
    reason: str


@dataclass(kw_only=True)
class ServingRun(LabRun):
    """`python -m speclab.extensions.servers`."""

    server: Annotated[Facts, Entries(ServerFacts)]
    correctness: list[Judged]  # of the texts, against the lab's own greedy text or the target's law
    noise: list[ServedNoise]
    refused: list[Refused]
    failure: str | None  # what ended the run early
    knees: list[KneeEntry]  # at how many requests at a time speculation stops paying
    served: list[ServedRow]
    load: list[LoadRow]
    limits: Limits | None  # None: nothing was asked under load
    schedules: list[Schedule]
    reconciled: list[Reconciled]
    requests: list[ServedRequest]
