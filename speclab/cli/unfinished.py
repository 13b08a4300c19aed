"""Prints the tables of a run that was killed, from the log that it left behind.

    python -m speclab.cli.unfinished results/local.killed.jsonl

Its texts were not checked, and its speeds are not explained.
"""

import sys
from typing import Any

from speclab.cli import parsing
from speclab.lab.rows import rows_of
from speclab.present import report
from speclab.records import log_files
from speclab.records.facts import Facts
from speclab.records.runs import ComparisonRun, CoreProbe, Machine, Versions
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import shown
from speclab.system.terminal import say


def record_of(measured: log_files.LoggedMeasurement) -> ComparisonRun:
    """Return the record of what a killed run has measured, without checks and explanations."""
    head: dict[str, Any] = measured.head | {"interrupted": True}
    machine: Facts = head["machine"]
    probe = machine.get("probe")
    head["machine"] = Machine(**machine | {"probe": CoreProbe(**probe) if probe else None})
    head["versions"] = Versions(**head["versions"])
    common = {name: head["settings"][name] for name in ("target", "device", "dtype")}
    arms = dict.fromkeys((line.arm, line.temperature) for line in measured.lines if line.draft)
    head["unchecked"] = [f"{arm.label} at temperature {temperature:g}" for arm, temperature in arms]
    greedy = [line for line in measured.lines if line.method == "baseline" and line.temperature == 0]
    return ComparisonRun(
        **head,
        prompts={
            "n": len({line.prompt_index for line in measured.lines}),
            "kinds": list(dict.fromkeys(line.prompt_kind for line in measured.lines)),
            "n_cut": sum(bool(line.loops) for line in greedy) if greedy else None,
        },
        correctness=[],
        noise=[],
        costs=[],
        phases={"seconds": 0.0, "share": None},
        headline=None,
        rows=rows_of(sorted(measured.lines, key=lambda line: line.prompt_index), common),
        raw=[line.recorded() for line in measured.lines],
    )


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Print the tables.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("log", type=parsing.some_path, help="the file that a killed run left behind")
    path = parser.parse_args(argv).log
    try:
        found = [measured for measured in log_files.read(path) if measured.lines]
    except OSError as error:
        raise EnvironmentProblem(f"{shown(path)}: {error.strerror}; give the log of a run that was killed") from None
    if not found:
        raise EnvironmentProblem(f"{shown(path)} holds no text that was finished; start the run again")
    for measured in found:
        say(report.comparison(record_of(measured), by_kind=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
