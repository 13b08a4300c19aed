"""The record of `python -m speclab.extensions.plan`: the expectation for every draft length, and how it came true.

It keeps expectations, costs and, of a check, rows.
"""

from dataclasses import dataclass

from speclab.records.rows import Amount, Count, Facts, RecordPart, Row
from speclab.records.runs import LabRun, Noise


@dataclass(kw_only=True)
class PlanEntry(RecordPart):
    """The expectation for one draft at one length."""

    method: str
    draft: str
    temperature: Amount
    draft_length: Count
    speedup: Amount
    tokens_per_round: Amount
    drafted_per_round: Amount
    acceptance_rate: float | None
    draft_cost: float | None
    verify_cost: float
    overhead: float
    band_low: float | None = None  # of the speedup, 95 %; absent with fewer than three prompts
    band_high: float | None = None
    time_low: float | None = None  # of its time over that of the best length, 95 %; absent there and in older records
    time_high: float | None = None


@dataclass(kw_only=True)
class LengthSpeedup(RecordPart):
    """A draft length and its speedup."""

    draft_length: Count
    speedup: Amount


@dataclass(kw_only=True)
class DraftFacts(RecordPart):
    """A plan's verdict on one draft, at the length with the highest expected speedup."""

    method: str
    draft: str
    temperature: Amount
    best_draft_length: Count
    speedup: Amount
    acceptance_rate: float | None
    oracle: Amount
    break_even: float | None
    draft_cost: float
    verify_cost: float
    step_seconds: Amount
    n_tokens: Count
    n_prompts: Count | None = None  # absent in older records
    costs: Facts  # no view reads them
    choice: Facts | None = None  # of an older plan: it smoothed its costs and took the shortest length near the best


@dataclass(kw_only=True)
class PlanFacts(RecordPart):
    """A plan's drafts."""

    drafts: list[DraftFacts]
    acceptance_profile: Facts | None = None  # the counts of a profile whose acceptance was taken; None: the draft's own


@dataclass(kw_only=True)
class VerifiedDraft(RecordPart):
    """A draft's plan beside what was measured on prompts that it had not seen."""

    method: str
    draft: str
    temperature: Amount
    planned: LengthSpeedup
    measured: Amount
    best_measured: LengthSpeedup
    share_of_best: Amount


@dataclass(kw_only=True)
class Verified(RecordPart):
    """The result of the plan on prompts that it had not seen."""

    n_prompts: Count
    drafts: list[VerifiedDraft]
    rows: list[Row]
    correctness: list[Facts]


@dataclass(kw_only=True)
class PlanRun(LabRun):
    """The record of `python -m speclab.extensions.plan`."""

    facts: PlanFacts
    verified: Verified | None
    noise: list[Noise] | None = None
    plan: list[PlanEntry]

    @property
    def correctness(self) -> list[Facts]:
        """Return the verdicts on the texts that a check of the plan decoded; a plan alone decodes none with drafts."""
        return self.verified.correctness if self.verified else []
