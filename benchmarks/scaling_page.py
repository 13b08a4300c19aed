"""The result of `python -m benchmarks.scaling`: its record and its page."""

from dataclasses import dataclass
from typing import Literal

from benchmarks import common
from speclab.present.tables import Block, Cell, Heading, Lines, Table, cost, interval, speedup
from speclab.records.rows import Amount, Count, RecordPart

Sweep = Literal["length", "context", "k", "size"]
TITLES: dict[Sweep, str] = {
    "length": "Tokens generated so far",
    "context": "Tokens of the prompt",
    "k": "Draft length",
    "size": "Size of the target",
}
FLAT = 0.03  # a change this small is called flat even where the interval knows better


# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ScalePoint(RecordPart):
    """One arm at one place of a sweep. Ratios are relative to the first point of its series."""

    sweep: Sweep
    series: str
    x: int | str
    draft_length: Count
    n_tokens: Count
    n_rounds: Count
    seconds: Amount
    token_ratio: float  # cost of a token
    round_ratio: float
    round_low: float | None
    round_high: float | None
    speedup: float | None = None  # over the baseline at the same place
    host_seconds: float | None = None  # of a round; what is neither draft nor verify
    host_share: float | None = None


@dataclass(kw_only=True)
class ScalingRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.scaling`."""

    models: dict[str, str]
    points: list[ScalePoint]


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "token and round are costs over those of the first row of the same arm; a round of the baseline is one token. The "
    f"95 % interval and the verdict are about the round's ratio, which counts as flat within {FLAT:.0%}.",
    "A speculative token also costs more where fewer drafts are accepted; a round does not.",
    "N ÷ prompt compares N generated tokens with a prompt of that length. It shows the cost of generating beyond that "
    "of the longer context.",
    "host is everything in a round but drafting and verifying, measured with a clock on each phase.",
]


def sweep_table(points: list[ScalePoint]) -> Table:
    """A table with a line for every point of one sweep."""
    cells: dict[str, Cell] = {
        "arm": lambda p: f"{p.series} k={p.draft_length}" if p.draft_length and p.sweep != "k" else p.series,
        "at": lambda p: str(p.x),
        "ms/token": lambda p: f"{p.seconds / p.n_tokens * 1e3:.3g}",
        "token": lambda p: speedup(p.token_ratio),
        "ms/round": lambda p: f"{p.seconds / p.n_rounds * 1e3:.3g}",
        "round": lambda p: speedup(p.round_ratio),
        "95 %": lambda p: interval(p.round_low, p.round_high),
        "verdict": lambda p: verdict(p.round_ratio, p.round_low, p.round_high),
    }
    if any(p.speedup is not None for p in points):
        cells["speedup"] = lambda p: speedup(p.speedup)
    if any(p.host_seconds is not None for p in points):
        cells["host µs"] = lambda p: "-" if p.host_seconds is None else cost(p.host_seconds * 1e6, 0)
        cells["share"] = lambda p: "-" if p.host_share is None else f"{p.host_share:.0%}"
    return Table(points, cells, n_words=2)


def verdict(ratio: float, low: float | None, high: float | None) -> str:
    """The verdict on the cost of a round: flat, grows or shrinks, and whether noise may be the reason."""
    if abs(ratio - 1) <= FLAT:
        return "flat"
    may_be_noise = low is not None and high is not None and low <= 1 <= high
    return ("grows" if ratio > 1 else "shrinks") + ", may be noise" * may_be_noise


def page(run: ScalingRun) -> list[Block]:
    """The whole page, from the record alone."""
    blocks = [*common.begin("What grows", run), Lines(f"{role}: {text}" for role, text in run.models.items())]
    for sweep in dict.fromkeys(p.sweep for p in run.points):
        blocks += [Heading(TITLES[sweep]), sweep_table([p for p in run.points if p.sweep == sweep])]
    return [*blocks, Lines(LEGEND)]
