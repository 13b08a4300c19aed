"""The gallery of public bugs: each is put into the lab's own code, and a named test must notice.

    python -m tests.gallery              # all of them, a few minutes
    python -m tests.gallery --only 4,8   # bugs 4 and 8
    python -m tests.gallery --mutants-only   # where make test runs the same tests on the code as it is

Bugs 1 to 23 have been seen in public code.
From 24 on a guard of this lab against models and files is taken away.

A mutant is an edit of the lab's source text (tests/mutants/bugs.py has its form), or a function that replaces things in
the lab's modules by wrong ones. Both stand in tests/mutants/, and as `mutants` in an extension's tests. It is put in in
a pytest of its own before the tests are imported (tests/mutants/plugin.py), and the tests named beside it run there,
each of them up to its first case that fails, or in the one case that is named; what its other cases would do is not
looked at. A kill is a failed assertion in every named test; a mutant that cannot be put in, or a test that breaks for
another reason, is none.
"""

import multiprocessing
import os
import re
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext

from tabulate import tabulate

from speclab.cli import parsing
from speclab.system.errors import reports_problems
from tests.mutants.bugs import BUGS, ROOT, Mutant, bugs_of, mutants_of

TIMEOUT = 120  # seconds for one run of pytest; it needs a few on an idle core
UNTOUCHED = 4  # times as long for all tests of a file
RETURNED = "\nexit code "  # of pytest, the last line of its output
OF_EXTENSIONS = "speclab/extensions/*/tests/mutants.*"
PRELOADED = "tests.mutants.preloaded"
# Plugins that the tests of a mutant can do without. Some take longer to load than a test to run; unraisableexception
# looks for garbage five times at the end, among all that is preloaded.
WITHOUT = ("cacheprovider", "unraisableexception", "xdist", "xdist.looponfail", "anyio")


def all_bugs() -> dict[int, str]:
    """Every bug, by its number. Imports the lab: not for the processes in which mutants are tried."""
    bugs = dict(BUGS)
    for file in ROOT.glob(OF_EXTENSIONS):
        bugs |= bugs_of(file)
    return bugs


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, by bug. Imports the lab, too."""
    files = [*(ROOT / "tests" / "mutants").glob("*.txt"), *ROOT.glob(OF_EXTENSIONS)]
    mutants = [mutant for file in sorted(files) for mutant in mutants_of(file)]
    return tuple(sorted(mutants, key=lambda mutant: mutant.bug))


def run_tests(
    context: BaseContext, tests: tuple[str, ...], timeout: float, mutant: Mutant | None = None
) -> tuple[int | None, str]:
    """Run `tests` in a process of their own, with the mutant in it.  -> (exit code, None if too slow; output)

    The code is the one that pytest returned, where it came to that: `process.exitcode` is 255 where another thread
    starts a process at the moment at which this one ends, and reads its end first.
    """
    name = mutant.name if mutant else "tests/mutants/models.txt"  # a file alone: no bug
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
        process = context.Process(target=_pytest, args=(tests, name, output.name))
        process.start()
        process.join(timeout)
        exit_code = process.exitcode
        if exit_code is None:
            process.kill()
            process.join()
        text, _, code = output.read().rpartition(RETURNED)
        return (int(code), text) if code.isdecimal() else (exit_code, text + code)


def _pytest(tests: tuple[str, ...], mutant: str, output: str) -> None:
    """In a process of its own: pytest, its output in a file, its exit code the process's."""
    for descriptor in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), descriptor)
    os.chdir(ROOT)
    os.environ["MUTANT"] = mutant
    import pytest  # here: the process that starts this one does without

    without = [word for name in WITHOUT for word in ("-p", f"no:{name}")]
    code = pytest.main([*without, "-p", "tests.mutants.plugin", "-rfE", "--tb=no", *tests])
    print(RETURNED, int(code), sep="", end="", flush=True)
    sys.exit(code)


def forking() -> BaseContext:
    """How processes are started: forked from one that has loaded the libraries, where the system can fork."""
    for key in [key for key in os.environ if key.startswith(("PYTEST", "PYTHONPATH"))]:
        del os.environ[key]
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "300", "NO_COLOR": "1"}
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def fails_without_a_mutant(context: BaseContext, tests: tuple[str, ...], timeout: float) -> str:
    """Empty if all pass; otherwise what pytest printed. A kill by a test that always fails says nothing."""
    exit_code, output = run_tests(context, tests, timeout)
    if exit_code == 0:
        return ""
    return f"{output}\nexit code {exit_code}" if output else f"ran out of time: more than {timeout:g} s"


def judge(mutant: Mutant, exit_code: int | None, output: str) -> str:
    """Verdict: "killed", "killed (hangs)", "SURVIVED", or "NOT KILLED" and why."""
    if exit_code is None:
        return "killed (hangs)" if mutant.hangs else "NOT KILLED: ran out of time"
    if exit_code != 1:
        return "SURVIVED" if exit_code == 0 else f"NOT KILLED: pytest exit code {exit_code}"
    failed = dict(re.findall(r"^FAILED ([^\s\[]+)(?:\[.*?\])? - (.*)$", output, re.MULTILINE))
    for test in map(_all_cases, mutant.killed_by):
        if test not in failed:
            return f"NOT KILLED: {_name(test)} did not fail"
        why = failed[test]
        error = why.partition(":")[0].split(".")[-1]
        asserted = why.startswith(("assert ", "AssertionError", "Failed: DID NOT RAISE"))
        if not (asserted or error == mutant.raises):
            return f"NOT KILLED: {error}"
    return "killed"


def _all_cases(test: str) -> str:
    return test.partition("[")[0]


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
    parser.add_argument(
        "--mutants-only",
        action="store_true",
        help="leave the run on the code as it is out; a kill means something only where make test passes, too",
    )
    args = parser.parse_args(argv)
    try:
        wanted = {int(number) for number in args.only.split(",")} if args.only else set(all_bugs())
    except ValueError:
        parser.error(f"--only {args.only}: give bug numbers, for example --only 4,8")
    if not wanted <= set(bugs := all_bugs()):
        parser.error(f"--only {args.only}: the gallery has {', '.join(map(str, sorted(bugs)))}")
    context = forking()
    mutants = [mutant for mutant in all_mutants() if mutant.bug in wanted]

    files: dict[str, list[str]] = defaultdict(list)
    for test in dict.fromkeys(_all_cases(test) for mutant in mutants for test in mutant.killed_by):
        files[test.partition("::")[0]].append(test)

    def untouched(tests: list[str]) -> str:
        return fails_without_a_mutant(context, tuple(tests), UNTOUCHED * args.timeout)  # all cases, of many tests

    def tried(mutant: Mutant) -> str:
        return judge(mutant, *run_tests(context, mutant.killed_by, args.timeout, mutant))

    rows, problems = [], ""
    with ThreadPoolExecutor(args.jobs) as pool:
        if not args.mutants_only:
            print("the code as it is", file=sys.stderr, flush=True)
            problems = "\n".join(filter(None, pool.map(untouched, files.values())))
            n_tests = sum(map(len, files.values()))
            rows.append(["-", "the code as it is", "-", f"{n_tests} tests", "FAILS" if problems else "passes"])
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
    if n_killed < len(mutants):  # again, last: of a long output often only the end is kept
        print(tabulate([row for row in rows if row[0] != "-" and not row[-1].startswith("killed")], tablefmt="plain"))
    return int(bool(problems) or n_killed < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
