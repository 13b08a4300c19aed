"""The record of `python compare.py --batch`: texts that are decoded side by side, and the passes of that."""

from dataclasses import dataclass
from typing import Literal

from speclab.records.rows import Amount, Count, Part, Share
from speclab.records.runs import Facts, LabRun


@dataclass(kw_only=True)
class PassTime(Part):
    """A pass over `n_texts` texts, `width` tokens of each, after `context` tokens each."""

    model: str  # "target" or the name of a draft
    n_texts: Count
    width: Count
    context: Count
    seconds: Amount
    predicted: Amount | None  # from passes over one text; None for those that the prediction is made from


@dataclass(kw_only=True)
class BatchRow(Part):
    """One way to decode the requests, `n_texts` at a time. Rates are of the rounds in which every row had a text."""

    n_texts: Count
    method: str
    draft: str | None  # None: plain decoding
    draft_length: Count
    lockstep: bool  # all texts keep as many drafted tokens as the one that keeps fewest
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


@dataclass(kw_only=True)
class KneeEntry(Part):
    """The batch at which the best speedup over all draft lengths falls to 1."""

    draft: str
    context: Count
    source: Literal["measured", "predicted", "from measured passes"]
    batch: float | None  # None: it does not, up to the largest one
    below: bool  # even one text at a time gains nothing
    best: Facts  # batch -> [best k, its speedup]


@dataclass(kw_only=True)
class MachineEntry(Part):
    """What the same model of costs says of another machine, from its data sheet. Nothing of it is measured."""

    machine: str
    models: str
    context: Count
    batch: float | None
    below: bool
    best: Facts


@dataclass(kw_only=True)
class BatchRun(LabRun):
    """`python compare.py --batch B,B`, and with more of everything `--sweep batch`."""

    batches: list[int]
    thorough: bool  # --sweep batch
    n_requests: Count
    mean_context: Amount  # tokens before a pass, over all passes
    correctness: list[Facts]
    costs: Facts  # what the predictions are made from
    library: list[Facts]  # `model.generate` over as many prompts at once
    knees: list[KneeEntry]
    machines: list[MachineEntry]
    rows: list[BatchRow]
    passes: list[PassTime]
