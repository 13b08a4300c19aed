"""A record of named numbers: the measurements of each thing that was tried, or the reason why there are none."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import common
from speclab.present.tables import Block, Cell, Table
from speclab.records.rows import Amount, RecordPart
from speclab.system.errors import first_line, is_out_of_memory
from speclab.system.terminal import note

Numbers = dict[str, Amount]  # the head of a column -> what stands in it


@dataclass(kw_only=True)
class Finding(RecordPart):
    """One line of the table."""

    name: str
    numbers: Numbers
    problem: str | None = None


@dataclass(kw_only=True)
class FindingsRun(common.BenchmarkRun):
    """The record of a preflight, of plain decoding in other ways, or of a profile."""

    findings: list[Finding]


def add(args: argparse.Namespace, run: FindingsRun, name: str, measure: Callable[[], Numbers]) -> Finding:
    """Run one measurement, and write the record with its result."""
    finding = Finding(name=name, numbers={})
    try:
        finding.numbers = measure()
    except Exception as error:  # a compiler or a driver may raise any exception
        why = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {first_line(error)}"
        finding.problem = why
        note(f"{name}: {why}")
    run.findings.append(finding)
    common.write(args, run, page)
    return finding


def page(run: FindingsRun) -> list[Block]:
    """The whole page, from the record alone."""

    def column(head: str) -> Cell:
        return lambda finding: f"{finding.numbers[head]:.4g}" if head in finding.numbers else "-"

    cells: dict[str, Cell] = {"what": lambda finding: finding.name}
    cells |= {head: column(head) for finding in run.findings for head in finding.numbers}
    cells |= {"problem": lambda finding: finding.problem or "-"}
    return [*common.begin(run.benchmark.capitalize(), run), Table(run.findings, cells)]
