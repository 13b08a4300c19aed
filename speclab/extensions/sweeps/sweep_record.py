"""The record of `python -m speclab.extensions.sweeps`: points, each a row with its place on the axis."""

from dataclasses import dataclass
from typing import Annotated

from speclab.records.facts import Entries, Facts, Judged
from speclab.records.rows import Amount, Count, Row
from speclab.records.runs import LabRun, Noise


@dataclass(kw_only=True)
class Point(Row):
    """A row of a sweep: where it stands on the axis, and in which line."""

    x: int | float | str
    series: str


class Training:
    """This says how a draft was trained for a sweep."""

    steps: Count
    tokens: Count
    seconds: Amount
    first_loss: float
    last_loss: float


class SweepFacts:
    """A sweep has this beside its points."""

    training: Annotated[Facts, Entries(Training)] = {}  # noqa: RUF012


@dataclass(kw_only=True)
class SweepRun(LabRun):
    """The record of `python -m speclab.extensions.sweeps NAME`."""

    sweep: str
    facts: Annotated[Facts, Entries(SweepFacts)]
    correctness: list[Judged]
    noise: list[Noise]
    points: list[Point]
