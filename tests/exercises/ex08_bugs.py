"""The five bugs of exercise 8: what is seeded, what it looks like from outside, and which check turns red.

    python -m tests.exercises.ex08_bugs            # every seeded bug x every check

This is the answer key: read it after the hunt. The exercise is the solution with the five replacements of `BUGS` made
in it. Every other state between the two is made in memory, so the table covers single bugs as well as four of five
mended. It needs solutions/; the checks and the scenes (exercises/scenes.py) do without.
"""

import argparse
import importlib.abc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tabulate import tabulate

from speclab.system.errors import EnvironmentProblem, reports_problems
from tests.exercises.answers import checks_of, failures

ROOT = Path(__file__).parent.parent.parent
STEM = "ex08_bug_hunt"


class Bug(NamedTuple):
    name: str
    number: int  # in the gallery of public bugs, tests/mutants/bugs.py
    check: str  # the check that it turns red, in test_ex08_bug_hunt.py
    good: str  # stands in the solution exactly once
    bad: str  # stands there in the exercise


BUGS = (
    Bug(
        "no bonus token",
        2,
        "test_every_target_pass_adds_a_token_of_its_own",
        """\
        # The pass paid for one row more than there were drafts: a correction where one was rejected, else a bonus.
        committed = [*drafted[:n_accepted], next_token]
""",
        """\
        committed = drafted[:n_accepted]
        if n_accepted < n_drafted or not drafted:
            committed.append(next_token)
""",
    ),
    Bug(
        "a rejected token stays in the cache",
        10,
        "test_the_targets_cache_holds_the_text_but_its_last_token",
        """\
        # All but the last committed token: that one is fed in the next round, as the first of its pass.
        target.crop(n_prompt + n_committed - 1)
""",
        """\
        target.crop(min(target.length, n_prompt + n_committed))
""",
    ),
    Bug(
        "an end of text inside a block is not seen",
        18,
        "test_nothing_follows_an_end_of_text",
        """\
        # An end of text may stand anywhere in the block; what the draft put after it is not emitted.
        for i, token_id in enumerate(committed):
            if token_id in eos:
                committed, finish = committed[: i + 1], "eos"
                if i < n_accepted:
                    n_accepted, n_rejected = i + 1, 0
                break
""",
        """\
        if committed[-1] in eos:
            finish = "eos"
""",
    ),
    Bug(
        "the correction is drawn from the target",
        4,
        "test_the_correction_makes_up_for_what_the_draft_left_out",
        """\
    if n_accepted < n:
        # The tests keep a token with probability min(p, q); the correction adds what is left of p, and no more.
        residual = (weights - draft_probs[:, n_accepted.item()]).clamp(min=0)
        weights = residual if residual.sum() > 0 else weights
""",
        "",
    ),
    Bug(
        "one uniform for all tests",
        12,
        "test_each_drafted_token_is_tested_by_itself",
        """\
    # Every test has a uniform of its own, or one small number would let the whole draft pass.
    passed = uniforms[:, :n] * draft_of_token < target_of_token
""",
        """\
    passed = uniforms[:, :1] * draft_of_token < target_of_token
""",
    ),
)
TITLES = ('"""Solution 8: bug hunt.', '"""Exercise 8: bug hunt.')


# --- sources and modules ---------------------------------------------------------------------------------------------


def seeded(bugs: tuple[Bug, ...]) -> str:
    """The solution's source with these bugs in it."""
    path = ROOT / "solutions" / f"{STEM}.py"
    if not path.is_file():
        raise EnvironmentProblem(
            f"the table of seeded bugs is made from solutions/{STEM}.py, which is not here; "
            "type: python -m exercises.scenes"
        )
    source = path.read_text(encoding="utf-8")
    for bug in bugs:
        assert source.count(bug.good) == 1, f"the solution no longer holds the mended form of: {bug.name}"
        source = source.replace(bug.good, bug.bad)
    return source


def the_exercise() -> str:
    """What exercises/ex08_bug_hunt.py looks like before anybody has touched it."""
    return seeded(BUGS).replace(*TITLES)


class _Source(importlib.abc.InspectLoader):
    """Makes a module of a text, so that no file need be written for a state of the exercise."""

    def __init__(self, source: str):
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source


def module(source: str, name: str = "ex08_in_memory") -> ModuleType:
    loader = _Source(source)
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(made)
    return made


# --- the table -------------------------------------------------------------------------------------------------------


def red(learner: ModuleType) -> list[str]:
    """The checks that fail."""
    return list(dict.fromkeys(name for name, _ in failures(learner, STEM)))


def states() -> dict[str, tuple[Bug, ...]]:
    """Nothing seeded, each bug alone, each bug mended while the others stay."""
    single = {bug.name: (bug,) for bug in BUGS}
    mended = {f"all but: {bug.name}": tuple(other for other in BUGS if other != bug) for bug in BUGS}
    return {"none": (), **single, **mended}


def table() -> str:
    """States x checks."""
    names = list(checks_of(STEM))
    rows = []
    for state, bugs in states().items():
        failed = red(module(seeded(bugs)))
        rows.append([state, *("red" if name in failed else "." for name in names)])
    legend = "\n".join(f"{i}  {name.removeprefix('test_').replace('_', ' ')}" for i, name in enumerate(names, start=1))
    return tabulate(rows, ["seeded bugs", *map(str, range(1, len(names) + 1))]) + f"\n\n{legend}"


@reports_problems
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(argv)
    print(table())


if __name__ == "__main__":
    sys.exit(main())
