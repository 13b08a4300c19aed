"""The entry of a record that says up to how many texts at a time speculation pays."""

from dataclasses import dataclass
from typing import Literal

from speclab.records.facts import Pair
from speclab.records.rows import Count, RecordPart


@dataclass(kw_only=True)
class KneeEntry(RecordPart):
    """The number of texts at a time at which the best speedup over all draft lengths falls below 1 for the last time.

    `batch` is that number, as records call it.
    """

    draft: str
    context: Count
    source: Literal["measured", "predicted", "from measured passes"]
    batch: float | None  # None: it does not, up to the largest number that was tried
    below: bool  # every number loses
    best: dict[str, Pair]  # number of texts -> [best k, its speedup]
