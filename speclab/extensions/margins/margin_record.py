"""The record of `python -m speclab.extensions.margins`: counts by draft, kind of text and margin."""

from dataclasses import dataclass

from speclab.records.rows import Count, RecordPart
from speclab.records.runs import Head

EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # the lower ends of the groups of margins, in logits
SURE = 1.0  # from this margin on, a better draft could be right everywhere


@dataclass(kw_only=True)
class Group(RecordPart):
    """The places of one kind of text whose margin lies in one group.

    n_places: decoded tokens. n_proposed, n_right: places where a draft that begins there proposes a token, and where it
    is the target's. n_ends: rounds that end with a rejection there.
    """

    low: float
    n_places: Count
    n_proposed: Count
    n_right: Count
    n_ends: Count


@dataclass(kw_only=True)
class Margins(RecordPart):
    """One draft on one kind of text.

    n_sure_rounds: the rounds that the same texts would take if the draft were right wherever the margin is at least
    SURE.
    """

    draft: str
    kind: str
    n_tokens: Count
    n_rounds: Count
    n_sure_rounds: Count
    groups: list[Group]


@dataclass(kw_only=True)
class MarginRun(Head):
    """The record of `python -m speclab.extensions.margins`."""

    margins: list[Margins]


def added(rows: list[Margins], kind: str = "all") -> Margins:
    """Return the sum of several kinds of text."""
    groups = [
        Group(low=same[0].low, **{name: sum(vars(group)[name] for group in same) for name in COUNTS})
        for same in zip(*(row.groups for row in rows), strict=True)
    ]
    sums = {name: sum(vars(row)[name] for row in rows) for name in ("n_tokens", "n_rounds", "n_sure_rounds")}
    return Margins(draft=rows[0].draft, kind=kind, groups=groups, **sums)


COUNTS = ("n_places", "n_proposed", "n_right", "n_ends")
