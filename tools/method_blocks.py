"""Two tables from committed comparisons: the fastest draft for each kind of prompt, and the results of `-k auto`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from speclab.present import tables
from speclab.records.arms import AUTO
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun

KINDS = ("code", "prose", "copy")


class Regime(NamedTuple):
    """One kind of prompts at one temperature on one target, with all of its rows."""

    target: str
    kind: str
    temperature: float
    rows: list[Row]

    @property
    def ordered(self) -> list[Row]:
        """The rows, the slowest first."""
        return sorted(self.rows, key=lambda row: row.speedup)


def methods(runs: Sequence[tuple[str, Path]]) -> str:
    """The table with a line for every regime. runs: the name of each target, and the record of its comparison."""
    regimes = [
        Regime(target, kind, temperature, rows)
        for target, path in runs
        for temperature in (0.0, 0.8)
        for kind in KINDS
        if (rows := _rows(read(path, ComparisonRun), kind, temperature))
    ]
    cells: dict[str, tables.Cell] = {
        "target": lambda regime: regime.target,
        "T": lambda regime: f"{regime.temperature:g}",
        "prompts": lambda regime: f"{regime.kind} ({regime.rows[0].n_prompts})",
        "fastest": lambda regime: _name(regime.ordered[-1]),
        "speedup": lambda regime: tables.speedup(regime.ordered[-1].speedup),
        "95 %": lambda regime: tables.interval(regime.ordered[-1].speedup_low, regime.ordered[-1].speedup_high),
        "slowest": lambda regime: _name(regime.ordered[0]),
        "": lambda regime: tables.speedup(regime.ordered[0].speedup),
    }
    return tables.show([tables.Table(regimes, cells, n_words=3)], markdown=True).strip()


def autos(path: Path) -> str:
    """The table of every greedy draft on auto beside the fastest of its fixed lengths, on all prompts of a
    comparison."""
    rows = _rows(read(path, ComparisonRun), "all", 0.0)
    pairs = [
        (max((one for one in rows if one.draft == str(row.draft).removesuffix(AUTO)), key=lambda one: one.speedup), row)
        for row in rows
        if row.auto
    ]
    cells: dict[str, tables.Cell] = {
        "draft": lambda pair: str(pair[0].draft),
        "best fixed k": lambda pair: str(pair[0].draft_length),
        "speedup": lambda pair: tables.speedup(pair[0].speedup),
        "on auto": lambda pair: tables.speedup(pair[1].speedup),
        "auto ÷ best fixed": lambda pair: f"{pair[1].speedup / pair[0].speedup:.0%}",
    }
    return tables.show([tables.Table(pairs, cells)], markdown=True).strip()


def _rows(run: ComparisonRun, kind: str, temperature: float) -> list[Row]:
    """The rows of all drafts, without those whose rule changes the text."""
    chosen = (kind, temperature)
    return [
        row for row in run.rows if row.draft and not row.lossy_rule and (row.prompt_kind, row.temperature) == chosen
    ]


def _name(row: Row) -> str:
    """The name of a row: "model k = 4", and without k for an auto draft."""
    return row.method if row.auto else f"{row.method} k = {row.draft_length}"
