"""The record of `python -m speclab.extensions.servers.curves`: counts of drafts that are wrong on purpose. No times."""

from dataclasses import dataclass
from typing import Literal

from speclab.extensions.servers import counters
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.records.rows import Amount, Count, RecordPart
from speclab.records.runs import Head


@dataclass(kw_only=True)
class CurveEntry(RecordPart):
    """One draft with one fault on one set of prompts. halves: its counts on every other prompt, and on the rest."""

    name: str
    fault: str  # empty: nothing is wrong
    draft: str
    draft_length: Count
    temperature: Amount
    n_prompts: Count
    halves: list[EngineCounts]

    @property
    def counts(self) -> EngineCounts:
        """Return the counts on all prompts."""
        return counters.total(self.halves)


@dataclass(kw_only=True)
class CurvesRun(Head):
    """All curves of one run."""

    schema_version: Literal[2]
    curves: list[CurveEntry]
