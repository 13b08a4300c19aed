"""Did the same command give the same answer twice? Compare two records of it, row by row.

    python -m tools.rerun results/cpu-2-cores.json results/cpu-2-cores-again.json

Every speedup comes with an interval for its own repetition (`repeat_noise`: the clock's noise alone, prompts and random
numbers held fixed). Exit code 1 if more rows leave it than can be expected of a 95 % interval.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys

from speclab.cli import parsing
from speclab.present.report import table
from speclab.records.files import as_dict, read
from speclab.records.runs import ComparisonRun
from speclab.system.errors import UsageProblem, reports_problems
from speclab.theory.ladder import prediction_rows

ALLOWED_SHARE = 1 / 8  # of the rows; at 95 % each, 24 independent rows exceed 3 outliers once in 33 runs


def compared(first: dict, second: dict) -> list[dict]:
    """The rows of both records, kind by kind: both speedups, their difference, and whether it was to be expected."""
    if "rows" not in first or "rows" not in second:
        raise UsageProblem(
            "only comparisons have rows; give two records that compare.py wrote without --sweep or --plan"
        )
    for key in ("prompts_sha256", "seed", "max_new_tokens", "repeats"):
        if first["settings"].get(key) != second["settings"].get(key):
            raise UsageProblem(f"the two records differ in {key}; compare two runs of one command")
    found = []
    others = {_key(r): r for r in second["rows"]}
    for row in prediction_rows(first["rows"]):
        other = others.get(_key(row))
        if other is None or row["repeat_noise"] is None or other["repeat_noise"] is None:
            continue
        # Each run estimates the noise; their mean in squares is the better estimate.
        noise = ((row["repeat_noise"] ** 2 + other["repeat_noise"] ** 2) / 2) ** 0.5
        difference = other["speedup"] - row["speedup"]
        found.append(
            {
                **{name: row[name] for name in ("method", "draft_length", "temperature", "prompt_kind")},
                "first": row["speedup"],
                "second": other["speedup"],
                "difference": difference,
                "noise": noise,
                "inside": abs(difference) <= noise,
            }
        )
    if not found:
        raise UsageProblem("the two records have no speculative row in common; compare two runs of one command")
    return found


def _key(row: dict) -> tuple:
    return row["method"], row["draft_length"], row["temperature"], row["prompt_kind"]


def verdict(rows: list[dict]) -> str:
    """One sentence."""
    outside = sum(not r["inside"] for r in rows)
    typical = sorted(abs(r["difference"]) / r["first"] for r in rows)[len(rows) // 2]
    return (
        f"{outside} of {len(rows)} speedups differ between the two runs by more than their repeat-noise interval; "
        f"the median difference is {typical:.1%}."
    )


def rerun_table(rows: list[dict], markdown: bool = False) -> str:
    lines = [
        [
            r["method"],
            str(r["draft_length"]),
            f"{r['temperature']:g}",
            r["prompt_kind"],
            f"{r['first']:.2f}x",
            f"{r['second']:.2f}x",
            f"{r['difference']:+.2f}",
            f"{r['noise']:.2f}",
            "" if r["inside"] else "outside",
        ]
        for r in rows
    ]
    return table(lines, ["draft", "k", "T", "prompts", "first", "second", "difference", "±rerun", ""], markdown)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("records", nargs=2, type=parsing.some_path, metavar="RECORD", help="of two runs of one command")
    rows = compared(*(as_dict(read(path, ComparisonRun)) for path in parser.parse_args(argv).records))
    if not rows:
        raise UsageProblem("the two records share no row with a speedup; compare two runs of one command")
    print(rerun_table(rows), verdict(rows), sep="\n\n")
    return int(sum(not r["inside"] for r in rows) > ALLOWED_SHARE * len(rows))


if __name__ == "__main__":
    sys.exit(main())
