"""What an engine's counters of speculation say of a stretch of its work."""

from dataclasses import dataclass

from speclab.records.rows import Count, RecordPart


@dataclass(kw_only=True)
class EngineCounts(RecordPart):
    """How far an engine's counters of speculation went on between two looks at them."""

    n_drafts: Count  # rounds in which something was drafted
    n_drafted: Count
    n_accepted: Count
    accepted_at: list[Count]  # rounds that kept the drafted token 1, 2, ...
