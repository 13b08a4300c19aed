"""Do two runs agree in the rows that both have? Compare their records, row by row.

    python -m tools.rerun results/cpu-2-cores.json results/cpu-2-cores-again.json

Every speedup comes with an interval for its own repetition (`repeat_noise`: the clock's noise alone, prompts and random
numbers held fixed). Exit code 1 if more rows leave it than can be expected of a 95 % interval.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
from operator import attrgetter
from typing import NamedTuple

from speclab.cli import parsing
from speclab.present.tables import Cell, Table, interval, show, speedup
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system.errors import UsageProblem, reports_problems
from speclab.theory.ladder import prediction_rows

ALLOWED_SHARE = 1 / 8  # of the rows; at 95 % each, 24 independent rows exceed 3 outliers once in 33 runs
SAME = ("prompts_sha256", "chat", "seed", "max_new_tokens", "repeats")  # settings that both records must share
KEY = attrgetter("method", "draft_length", "temperature", "prompt_kind")


class Pair(NamedTuple):
    """A row of both records, and the 95 % interval in which the second speedup is expected."""

    first: Row
    second: Row
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """True where the second speedup lies in the interval."""
        return self.low <= self.second.speedup <= self.high


def compared(first: ComparisonRun, second: ComparisonRun) -> list[Pair]:
    """The rows of both records, kind by kind.

    Raises UsageProblem where they are no records of one command.
    """
    differing = [key for key in SAME if first.settings.get(key) != second.settings.get(key)]
    if differing:
        raise UsageProblem(f"the two records differ in {differing[0]}; compare two runs of one command")
    rows = []
    others = {KEY(row): row for row in second.rows}
    for row in prediction_rows(first.rows):
        other = others.get(KEY(row))
        if other is None or row.repeat_noise is None or other.repeat_noise is None:
            continue
        # Each run estimates the noise; their mean in squares is the better estimate.
        noise = ((row.repeat_noise**2 + other.repeat_noise**2) / 2) ** 0.5
        rows.append(Pair(row, other, row.speedup - noise, row.speedup + noise))
    if not rows:
        raise UsageProblem("the two records have no speculative row in common; compare two runs of one command")
    return rows


def verdict(rows: list[Pair]) -> str:
    """A line that says how many speedups moved further than expected, and how far they moved."""
    outside = sum(not row.inside for row in rows)
    typical = sorted(abs(row.second.speedup / row.first.speedup - 1) for row in rows)[len(rows) // 2]
    return (
        f"{outside} of {len(rows)} speedups lie outside the interval that is expected of a second run; "
        f"median difference {typical:.1%}"
    )


def rerun_table(rows: list[Pair]) -> Table:
    """A table with one line per row, and the interval in which the second run's speedup is expected."""
    cells: dict[str, Cell] = {
        "draft": lambda row: row.first.method,
        "k": lambda row: str(row.first.draft_length),
        "T": lambda row: f"{row.first.temperature:g}",
        "prompts": lambda row: row.first.prompt_kind,
        "first": lambda row: speedup(row.first.speedup),
        "second": lambda row: speedup(row.second.speedup),
        "expected": lambda row: interval(row.low, row.high),
        "": lambda row: "" if row.inside else "outside",
    }
    return Table(rows, cells)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("records", nargs=2, type=parsing.some_path, metavar="RECORD", help="of two runs of one command")
    rows = compared(*(read(path, ComparisonRun) for path in parser.parse_args(argv).records))
    print(show([rerun_table(rows), verdict(rows)]), end="")
    return int(sum(not row.inside for row in rows) > ALLOWED_SHARE * len(rows))


if __name__ == "__main__":
    sys.exit(main())
