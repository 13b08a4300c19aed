"""The gallery of public bugs: each is put into the lab's own code, and a named test must notice.

    python -m tests.gallery              # all of them, a few minutes
    python -m tests.gallery --only 4,8   # bugs 4 and 8

A mutant is an edit of the lab's source text (tests/mutants/bugs.py has its form). It is put in in a pytest of its own
before the tests are imported (tests/mutants/plugin.py), and the tests named beside it run there, each of them up to its
first case that fails, or in the one case that is named; what its other cases would do is not looked at. A kill is a
failed assertion in every named test; a mutant that cannot be put in, or a test that breaks for another reason, is none.
It means something only where the same tests pass on the code as it is: that is what `make test` says.
"""

import multiprocessing
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext

from tabulate import tabulate

from speclab.cli import parsing
from speclab.system.errors import reports_problems
from tests.mutants.bugs import ROOT, Mutant, bugs_of, mutant_files, mutants_of

TIMEOUT = 120  # seconds for one run of pytest; it needs a few on an idle core
RETURNED = "\nexit code "  # of pytest, the last line of its output
PRELOADED = "tests.mutants.preloaded"
# Plugins that the tests of a mutant can do without. Some take longer to load than a test to run; unraisableexception
# looks for garbage five times at the end, among all that is preloaded.
WITHOUT = ("cacheprovider", "unraisableexception", "xdist", "xdist.looponfail", "anyio")


def all_bugs() -> dict[int, str]:
    """Every bug, by its number."""
    return {bug: what for file in mutant_files() for bug, what in bugs_of(file).items()}


def all_mutants() -> list[Mutant]:
    """Every mutant, by bug."""
    return sorted((m for file in mutant_files() for m in mutants_of(file)), key=lambda mutant: mutant.bug)


def run_tests(context: BaseContext, mutant: Mutant) -> tuple[int | None, str]:
    """Run its tests in a process of their own, with the mutant in it.  -> (exit code, None if too slow; output)

    The code is the one that pytest returned, where it came to that: `process.exitcode` is 255 where another thread
    starts a process at the moment at which this one ends, and reads its end first.
    """
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
        process = context.Process(target=_pytest, args=(mutant.killed_by, mutant.name, output.name))
        process.start()
        process.join(TIMEOUT)
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


def judge(mutant: Mutant, exit_code: int | None, output: str) -> str:
    """Verdict: "killed", "SURVIVED", or "NOT KILLED" and why."""
    if exit_code is None:
        return "NOT KILLED: ran out of time"
    if exit_code != 1:
        return "SURVIVED" if exit_code == 0 else f"NOT KILLED: pytest exit code {exit_code}"
    failed = dict(re.findall(r"^FAILED ([^\s\[]+)(?:\[.*?\])? - (.*)$", output, re.MULTILINE))
    for test in map(_all_cases, mutant.killed_by):
        if test not in failed:
            return f"NOT KILLED: {test.rpartition('::')[2]} did not fail"
        why = failed[test]
        error = why.partition(":")[0].split(".")[-1]
        asserted = why.startswith(("assert ", "AssertionError", "Failed: DID NOT RAISE"))
        if not (asserted or error == mutant.raises):
            return f"NOT KILLED: {error}"
    return "killed"


def _all_cases(test: str) -> str:
    return test.partition("[")[0]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    known = ",".join(map(str, sorted(all_bugs())))
    parser.add_argument("--only", metavar="N,N", default=known, help="bug numbers, separated by commas (default: all)")
    args = parser.parse_args(argv)
    wanted = args.only.split(",")
    if not {*wanted} <= {*known.split(",")}:
        parser.error(f"--only {args.only}: give numbers of bugs, of {known}")
    context = forking()
    mutants = [mutant for mutant in all_mutants() if str(mutant.bug) in wanted]

    def tried(mutant: Mutant) -> str:
        return judge(mutant, *run_tests(context, mutant))

    rows = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for i, (mutant, verdict) in enumerate(zip(mutants, pool.map(tried, mutants), strict=True)):
            print(f"{i + 1}/{len(mutants)}  bug {mutant.bug}: {mutant.what}: {verdict}", file=sys.stderr, flush=True)
            killers = "\n".join(test.rpartition("::")[2] for test in mutant.killed_by)
            rows.append([mutant.bug, mutant.what, mutant.file, killers, verdict])
    print(tabulate(rows, ["bug", "what it does", "file", "killed by", "verdict"]))
    alive = [row for row in rows if row[-1] != "killed"]
    print(f"\n{len(rows) - len(alive)} of {len(rows)} mutants killed")
    print(tabulate(alive, tablefmt="plain"))  # again, last: of a long output often only the end is kept
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
