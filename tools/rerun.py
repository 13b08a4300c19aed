"""Did the same command give the same answer twice? Compare two records of it, row by row.

    python -m tools.rerun results/cpu-2-cores.json results/cpu-2-cores-again.json

Every speedup comes with an interval for its own repetition (`repeat_noise`: the clock's noise alone, prompts and random
numbers held fixed). Exit code 1 if more rows leave it than can be expected of a 95 % interval.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys

from speclab.cli import parsing
from speclab.present.tables import columns, interval, speedup
from speclab.records.files import as_dict, read
from speclab.records.runs import ComparisonRun
from speclab.system.errors import UsageProblem, reports_problems
from speclab.theory.ladder import prediction_rows

ALLOWED_SHARE = 1 / 8  # of the rows; at 95 % each, 24 independent rows exceed 3 outliers once in 33 runs
SAME = ("prompts_sha256", "seed", "max_new_tokens", "repeats")  # settings that both records must share
KEY = ("method", "draft_length", "temperature", "prompt_kind")


def compared(first: dict, second: dict) -> list[dict]:
    """The rows of both records, kind by kind: both speedups, and the 95 % interval in which the second is expected.

    UsageProblem where they are no records of one command.
    """
    differing = [key for key in SAME if first["settings"].get(key) != second["settings"].get(key)]
    if differing:
        raise UsageProblem(f"the two records differ in {differing[0]}; compare two runs of one command")
    rows = []
    others = {tuple(row[key] for key in KEY): row for row in second["rows"]}
    for row in prediction_rows(first["rows"]):
        other = others.get(tuple(row[key] for key in KEY))
        if other is None or row["repeat_noise"] is None or other["repeat_noise"] is None:
            continue
        # Each run estimates the noise; their mean in squares is the better estimate.
        noise = ((row["repeat_noise"] ** 2 + other["repeat_noise"] ** 2) / 2) ** 0.5
        low, high = row["speedup"] - noise, row["speedup"] + noise
        inside = low <= other["speedup"] <= high
        both = {"first": row["speedup"], "second": other["speedup"], "low": low, "high": high, "inside": inside}
        rows.append({key: row[key] for key in KEY} | both)
    if not rows:
        raise UsageProblem("the two records have no speculative row in common; compare two runs of one command")
    return rows


def verdict(rows: list[dict]) -> str:
    """How many speedups moved further than expected, and how far they moved."""
    outside = sum(not row["inside"] for row in rows)
    typical = sorted(abs(row["second"] / row["first"] - 1) for row in rows)[len(rows) // 2]
    return (
        f"{outside} of {len(rows)} speedups lie outside the interval that is expected of a second run; "
        f"median difference {typical:.1%}"
    )


def rerun_table(rows: list[dict]) -> str:
    """One line per row, with the interval in which the second run's speedup is expected."""
    cells = {
        "draft": lambda row: row["method"],
        "k": lambda row: str(row["draft_length"]),
        "T": lambda row: f"{row['temperature']:g}",
        "prompts": lambda row: row["prompt_kind"],
        "first": lambda row: speedup(row["first"]),
        "second": lambda row: speedup(row["second"]),
        "expected": lambda row: interval(row["low"], row["high"]),
        "": lambda row: "" if row["inside"] else "outside",
    }
    return columns(rows, cells)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("records", nargs=2, type=parsing.some_path, metavar="RECORD", help="of two runs of one command")
    rows = compared(*(as_dict(read(path, ComparisonRun)) for path in parser.parse_args(argv).records))
    print(rerun_table(rows), verdict(rows), sep="\n\n")
    return int(sum(not row["inside"] for row in rows) > ALLOWED_SHARE * len(rows))


if __name__ == "__main__":
    sys.exit(main())
