"""The gallery of public bugs: each is put into the lab's own code, and a named test must notice.

    python -m tests.gallery              # all of them, a few minutes
    python -m tests.gallery --only 4,8   # bugs 4 and 8

Bugs 1 to 23 have been seen in public code. The numbers have gaps: 15, 16 and 19 need trees, block verification and
batches, which the lab does not have yet. From 24 on a guard of this lab against models and files is taken away.

A mutant is a function in tests/mutants/ that replaces functions, methods or attributes of the lab's modules by wrong
ones. It is called in a pytest of its own before the tests are imported (tests/mutants/plugin.py), and the tests named
beside it run there. A kill is a failed assertion in every named test; a mutant that cannot be put in, or a test that
breaks for another reason, is none.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tabulate import tabulate

from speclab.cli import parsing
from speclab.system.errors import reports_problems
from tests.mutants import accept, backends, cli, core, lab, loops, models
from tests.mutants.bugs import BUGS, Mutant

ROOT = Path(__file__).parent.parent
TIMEOUT = 120  # seconds for one run of pytest; it needs about 6 on an idle core
MUTANTS = tuple(
    sorted(
        (
            found
            for module in (accept, core, loops, backends, models, lab, cli)
            for found in vars(module).values()
            if isinstance(found, Mutant)
        ),
        key=lambda mutant: mutant.bug,
    )
)


def run_tests(tests: tuple[str, ...], mutant: Mutant | None = None, timeout: float = TIMEOUT) -> tuple[int | None, str]:
    """Run `tests` in a process of their own, with the mutant in it.  -> (exit code, None if too slow; output)"""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.mutants.plugin")
    command = [sys.executable, "-m", "pytest", *plugins, "-rfE", "--tb=no", *tests]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHONPATH"))}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "300", "NO_COLOR": "1"}
    environment["MUTANT"] = mutant.name if mutant else "cli"  # a file alone: as much is imported early, and no bug
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def fails_without_a_mutant(tests: tuple[str, ...], timeout: float = TIMEOUT) -> str:
    """Empty if all pass; otherwise what pytest printed. A kill by a test that always fails says nothing."""
    exit_code, output = run_tests(tests, timeout=timeout)
    return "" if exit_code == 0 else output or f"ran out of time: more than {timeout:g} s"


def judge(mutant: Mutant, exit_code: int | None, output: str) -> str:
    """Verdict: "killed", "killed (hangs)", "SURVIVED", or "NOT KILLED" and why."""
    if exit_code is None:
        return "killed (hangs)" if mutant.hangs else "NOT KILLED: ran out of time"
    if exit_code != 1:
        return "SURVIVED" if exit_code == 0 else f"NOT KILLED: pytest exit code {exit_code}"
    failed = defaultdict(list)
    for test, why in re.findall(r"^FAILED ([^\s\[]+)(?:\[.*?\])? - (.*)$", output, re.MULTILINE):
        failed[test].append(why)
    for test in mutant.killed_by:
        if test not in failed:
            return f"NOT KILLED: {_name(test)} did not fail"
        for why in failed[test]:  # of each of its cases
            error = why.partition(":")[0].split(".")[-1]
            asserted = why.startswith(("assert ", "AssertionError", "Failed: DID NOT RAISE"))
            if not (asserted or error == mutant.raises):
                return f"NOT KILLED: {error}"
    return "killed"


def _name(test: str) -> str:
    return test.rpartition("::")[2]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--only", metavar="N,N", help="bug numbers, separated by commas (default: all)")
    parser.add_argument(
        "--timeout",
        type=parsing.positive,
        default=TIMEOUT,
        metavar="S",
        help="seconds for one run of pytest (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=parsing.at_least(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="runs of pytest at once (default: one a core)",
    )
    args = parser.parse_args(argv)
    try:
        wanted = {int(number) for number in args.only.split(",")} if args.only else set(BUGS)
    except ValueError:
        parser.error(f"--only {args.only}: give bug numbers, for example --only 4,8")
    if not wanted <= set(BUGS):
        parser.error(f"--only {args.only}: the gallery has {', '.join(map(str, BUGS))}")
    mutants = [mutant for mutant in MUTANTS if mutant.bug in wanted]

    files: dict[str, list[str]] = defaultdict(list)
    for test in dict.fromkeys(test for mutant in mutants for test in mutant.killed_by):
        files[test.partition("::")[0]].append(test)

    def untouched(tests: list[str]) -> str:
        return fails_without_a_mutant(tuple(tests), args.timeout)

    def tried(mutant: Mutant) -> str:
        return judge(mutant, *run_tests(mutant.killed_by, mutant, args.timeout))

    with ThreadPoolExecutor(args.jobs) as pool:
        print("the code as it is", file=sys.stderr, flush=True)
        problems = "\n".join(filter(None, pool.map(untouched, files.values())))
        n_tests = sum(map(len, files.values()))
        rows = [["-", "the code as it is", "-", f"{n_tests} tests", "FAILS" if problems else "passes"]]
        if problems:
            print(problems, file=sys.stderr)
            mutants = []
        for i, (mutant, verdict) in enumerate(zip(mutants, pool.map(tried, mutants), strict=True)):
            print(f"{i + 1}/{len(mutants)}  bug {mutant.bug}: {mutant.what}: {verdict}", file=sys.stderr, flush=True)
            killers = "\n".join(_name(test) for test in mutant.killed_by)
            rows.append([mutant.bug, mutant.what, mutant.file, killers, verdict])
    n_killed = sum(row[-1].startswith("killed") for row in rows)
    print(tabulate(rows, ["bug", "what it does", "file", "killed by", "verdict"]))
    print(f"\n{n_killed} of {len(mutants)} mutants killed")
    return int(bool(problems) or n_killed < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
