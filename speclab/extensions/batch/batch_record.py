"""The record of `python -m speclab.extensions.batch`: texts that are decoded side by side, and their passes."""

from dataclasses import dataclass

from speclab.extensions.batch.knees import KneeEntry
from speclab.records.rows import Amount, Count, Facts, RecordPart, Share, Verdict
from speclab.records.runs import LabRun, Noise


@dataclass(kw_only=True)
class PassTime(RecordPart):
    """A pass over `n_texts` texts, `width` tokens of each, after `context` tokens each. Older records have passes over
    several texts."""

    model: str  # "target" or the name of a draft
    n_texts: Count
    width: Count
    context: Count
    seconds: Amount
    predicted: Amount | None  # of several texts, from passes over one


@dataclass(kw_only=True)
class BatchRow(RecordPart):
    """One way to decode the requests, `n_texts` at a time.

    Rates are of the rounds in which every row had a text; every prompt counts alike. Intervals are over prompts.
    """

    n_texts: Count
    method: str
    draft: str | None  # None: plain decoding
    draft_length: Count
    n_passes: Count
    n_tokens: Count
    seconds: Amount
    tokens_per_second: Amount
    speedup: Amount  # over plain decoding of as many texts at a time
    speedup_low: float | None
    speedup_high: float | None
    predicted_tokens_per_second: float | None
    predicted_speedup: float | None
    acceptance_rate: Share | None
    tokens_per_round: float | None  # of one text
    latency: Amount  # seconds of a text from its prompt to its last token, the median
    between_tokens: Amount | None  # seconds, the median
    n_requests: Count
    total_seconds: Amount  # of all requests, prompts' own passes included
    n_drafted: Count | None = None  # tokens, of all texts; absent in older records, like the next
    verdict: Verdict | None = None  # None for plain decoding, and where nothing was drafted
    lockstep: bool = False  # of older records: all texts keep as many drafted tokens as the one that keeps fewest


@dataclass(kw_only=True)
class Chosen(RecordPart):
    """The best length of a draft at one batch: chosen on one half of the prompts; all numbers are of the other half."""

    draft: str
    n_texts: Count
    draft_length: Count
    n_prompts: Count  # of the other half; of all where there is one prompt
    tokens_per_second: Amount
    plain_tokens_per_second: Amount
    speedup: Amount
    speedup_low: float | None
    speedup_high: float | None
    verdict: Verdict


@dataclass(kw_only=True)
class BatchNoise(Noise):
    """Plain decoding of so many texts at a time against itself."""

    n_texts: Count


@dataclass(kw_only=True)
class PromptTimes(RecordPart):
    """For one way to decode, the tokens and seconds of each prompt, in order. A prompt has an equal part of the seconds
    of every pass that it was in, as far as every row had a text."""

    n_texts: Count
    method: str
    draft_length: Count
    n_tokens: list[Count]
    seconds: list[Amount]


@dataclass(kw_only=True)
class BatchRun(LabRun):
    """This is the record of `python -m speclab.extensions.batch`."""

    batches: list[int]
    n_requests: Count
    mean_context: Amount  # tokens before a pass, over all passes
    correctness: list[Facts]
    costs: Facts  # what the predictions are made from; no view reads them
    knees: list[KneeEntry]
    rows: list[BatchRow]
    passes: list[PassTime]
    chosen: list[Chosen] | None = None  # absent in older records, like the next
    noise: list[BatchNoise] | None = None
    raw: list[PromptTimes] | None = None
    n_distinct: Count | None = None  # different prompts
    row_by_row: list[str] | None = None  # drafts that have no pass for all rows together

    def __post_init__(self) -> None:
        self.rows = [row for row in self.rows if not row.lockstep]
