"""Which draft was fastest where: the fastest and the slowest row of every regime, from committed comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from speclab.present import tables
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
        """The slowest first."""
        return sorted(self.rows, key=lambda row: row.speedup)


def methods(runs: Sequence[tuple[str, Path]]) -> str:
    """A line for every regime. runs: what the target is called, and the record of its comparison."""
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


def _rows(run: ComparisonRun, kind: str, temperature: float) -> list[Row]:
    """Of all drafts, without those whose rule changes the text."""
    chosen = (kind, temperature)
    return [
        row for row in run.rows if row.draft and not row.lossy_rule and (row.prompt_kind, row.temperature) == chosen
    ]


def _name(row: Row) -> str:
    """model k = 4; an auto draft has no k."""
    return row.method if row.method.endswith(" auto") else f"{row.method} k = {row.draft_length}"
