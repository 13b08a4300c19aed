"""The record of `python -m speclab.extensions.sweeps`: points, each a row with its place on the axis."""

from dataclasses import dataclass

from speclab.records.rows import Facts, Row
from speclab.records.runs import LabRun, Noise


@dataclass(kw_only=True)
class Point(Row):
    """A row of a sweep: where it stands on the axis, and in which line."""

    x: int | float | str
    series: str


@dataclass(kw_only=True)
class SweepRun(LabRun):
    """The record of `python -m speclab.extensions.sweeps NAME`."""

    sweep: str
    facts: Facts  # what was made for it: how its drafts were trained
    correctness: list[Facts]
    noise: list[Noise]
    points: list[Point]
