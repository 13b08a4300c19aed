"""The five bugs of exercise 8: what is seeded, what it looks like from outside, and which check turns red.

    python -m tests.exercises.ex08_bugs            # every seeded bug x every check
    python -m tests.exercises.ex08_bugs --scenes   # what your exercises/ex08_bug_hunt.py does now, in five small scenes

The exercise is the solution with the five replacements of `BUGS` made in it. Every other state between the two is made
in memory, so the table covers single bugs as well as four of five mended. Only the table needs solutions/: the scenes
and the checks do without.
"""

import argparse
import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from tabulate import tabulate
from torch import Tensor

from exercises import Todo
from speclab.errors import EnvironmentProblem, reports_problems
from speclab.sampling import Draft, Sampling

ROOT = Path(__file__).parent.parent.parent
STEM = "ex08_bug_hunt"
CPU = torch.device("cpu")


class Bug(NamedTuple):
    name: str
    number: int  # in the gallery of public bugs, tests/gallery.py
    check: str  # the check that it turns red, in test_ex08_bug_hunt.py
    good: str  # stands in the solution exactly once
    bad: str  # stands there in the exercise


BUGS = (
    Bug(
        "no bonus token",
        2,
        "test_every_target_pass_adds_a_token_of_its_own",
        """\
        # The pass paid for one row more than there were drafts: a correction where one was refused, else a bonus.
        committed = [*drafted[:n_accepted], next_token]
""",
        """\
        committed = drafted[:n_accepted]
        if n_accepted < n_drafted or not drafted:
            committed.append(next_token)
""",
    ),
    Bug(
        "a refused token stays in the cache",
        10,
        "test_the_targets_cache_holds_the_text_but_its_last_token",
        """\
        # All but the last committed token: that one is fed in the next round, as the first of its pass.
        target.rollback(n_prompt + n_committed - 1)
""",
        """\
        target.rollback(min(target.length, n_prompt + n_committed))
""",
    ),
    Bug(
        "an end of text inside a block is not seen",
        18,
        "test_nothing_follows_an_end_of_text",
        """\
        # An end of text may stand anywhere in the block; what the draft put behind it was never said.
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
        # The tests let the draft's favourites through already; the correction makes up for the rest, and for no more.
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
    # Every test has a uniform of its own, or one lucky number would let the whole draft pass.
    passed = uniforms[:, :n] * draft_of_token < target_of_token
""",
        """\
    passed = uniforms[:, :1] * draft_of_token < target_of_token
""",
    ),
)
TITLES = ('"""Solution 8: bug hunt.', '"""Exercise 8: bug hunt.')
AS_IT_CAME = (
    "5b5e86bf95b82896"  # fingerprint(the_exercise()), so that a hunt can be told from one not begun without solutions/
)


# --- sources and modules ---------------------------------------------------------------------------------------------


def seeded(bugs: tuple[Bug, ...]) -> str:
    """The solution's source with these bugs in it."""
    path = ROOT / "solutions" / f"{STEM}.py"
    if not path.is_file():
        raise EnvironmentProblem(
            f"the table of seeded bugs is made from solutions/{STEM}.py, which is not here; "
            "type: python -m tests.exercises.ex08_bugs --scenes"
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


def is_untouched(mine: ModuleType) -> bool:
    """Does the module do what the exercise does as it came? Comments, docstrings and layout do not count."""
    return fingerprint(mine.__spec__.loader.get_source(mine.__name__)) == AS_IT_CAME


def fingerprint(source: str) -> str:
    """A hash of what the source does. The same in every version of Python: fields without a value are left out, since
    versions differ in those."""

    def plain_form(node: object) -> object:
        if isinstance(node, list):
            return [plain_form(item) for item in node]
        if not isinstance(node, ast.AST):
            return repr(node)
        fields = [(name, plain_form(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *sorted(fields)]

    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(repr(plain_form(tree)).encode()).hexdigest()[:16]


def untouched(mine: ModuleType) -> None:
    """A hunt that has not begun is no failure: raise Todo as an open hole does."""
    if is_untouched(mine):
        raise Todo("ex08: find the five bugs in the loop")


# --- small worlds: greedy models that cost nothing; in each of them one bug shows and the others do not --------------

VOCAB = 50


def one_up(ids: list[int]) -> int:
    """The next token depends on the last one alone: such a model does not notice what else is in its cache."""
    return (ids[-1] + 1) % VOCAB


def all_of_it(ids: list[int]) -> int:
    """The next token depends on every token of the text and on its place."""
    mixed = 0
    for token in ids:
        mixed = (31 * mixed + token * token + 7) % 10_007
    return mixed % VOCAB


class TinyTarget:
    """Stands in for a CachedModel. `choose` says what follows the ids that are in the cache."""

    device, max_length = CPU, None

    def __init__(self, choose: Callable[[list[int]], int]):
        self.choose, self.cache, self.n_passes, self.vocab_size = choose, [], 0, VOCAB

    @property
    def length(self) -> int:
        return len(self.cache)

    def start(self, prompt: Tensor, rolls_back: bool = False) -> Tensor:
        self.cache = []
        return self.feed(prompt)[:, -1:]

    def feed(self, tokens: Tensor) -> Tensor:
        rows = []
        for token in tokens[0].tolist():
            self.cache.append(token)
            rows.append(self.choose(self.cache))
        self.n_passes += 1
        return 9.0 * torch.nn.functional.one_hot(torch.tensor([rows]), VOCAB).double()  # (1, m, vocab)

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length, f"cannot keep {length} of the {self.length} tokens in the cache"
        del self.cache[length:]


class TinyDrafter:
    """Proposes what `choose` says after the text so far; every `wrong_at`-th place of the text it is wrong."""

    def __init__(self, choose: Callable[[list[int]], int], wrong_at: int = 0, at_most: int = 99):
        self.choose, self.wrong_at, self.at_most = choose, wrong_at, at_most
        self.text: list[int] = []
        self.asked: list[int] = []  # k of every proposal

    def start(self, target: TinyTarget, prompt: Tensor, sampling: Sampling) -> None:
        self.text = prompt[0].tolist()

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        self.asked.append(k)
        tokens: list[int] = []
        for _ in range(min(k, self.at_most)):
            place = len(self.text) + len(tokens)
            miss = self.wrong_at and place % self.wrong_at == 0
            tokens.append((self.choose(self.text + tokens) + bool(miss)) % VOCAB)
        return Draft(torch.tensor([tokens], dtype=torch.long), torch.tensor([len(tokens)]))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self.text += committed


PROMPT = torch.tensor([[11, 4, 2]])


def rounds(
    mine: ModuleType,
    target: TinyTarget,
    drafter: TinyDrafter,
    k: int,
    n: int,
    eos: frozenset[int] = frozenset(),
    prompt: Tensor = PROMPT,
) -> Iterator:
    """The rounds of the learner's loop at temperature 0; cut off after n + 1, so that no loop runs for ever."""
    return itertools.islice(mine.decode(target, drafter, prompt, k, n, Sampling(), None, eos), n + 1)


def tokens_of(found: Iterable) -> list[int]:
    return [token for round_ in found for token in round_.tokens]


def plain(choose: Callable[[list[int]], int], n: int, prompt: Tensor = PROMPT) -> list[int]:
    """What the model writes token by token."""
    text = prompt[0].tolist()
    for _ in range(n):
        text.append(choose(text))
    return text[-n:]


def grid(size: int, n: int) -> Tensor:
    """All n-tuples of the midpoints of `size` equal cells of [0, 1).  -> (size ** n, n)"""
    points = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    return torch.cartesian_prod(*[points] * n).reshape(-1, n)


def twelfths(*rows: list[int]) -> Tensor:
    """(1, rows, vocab) probabilities"""
    return torch.tensor([rows], dtype=torch.float64) / 12


def verdicts(mine: ModuleType, draft: Draft, target_probs: Tensor, size: int) -> list[tuple[int, int]]:
    """(accepted, next token) for every cell of the grid of uniforms: all cells weigh the same, so shares are exact."""
    found = []
    for u in grid(size, target_probs.shape[1]):
        verdict = mine.accept(draft, target_probs, u[None])
        found.append((int(verdict.n_accepted), int(verdict.next_token)))
    return found


# --- the scenes: what a user would report ----------------------------------------------------------------------------

TARGET_ROW, DRAFT_ROW = [6, 2, 4], [3, 8, 1]  # twelfths; the draft likes token 1 too much
INDEPENDENT = [1 / 2, 1 / 2 * 1 / 2, 1 / 2 * 1 / 2]  # refused; kept, refused; kept, kept: each test a coin of its own


def scene_a(mine: ModuleType) -> list[int]:
    """The draft is always right, k = 4, 21 tokens: how many does each round commit?"""
    return [len(r.tokens) for r in rounds(mine, TinyTarget(one_up), TinyDrafter(one_up), 4, 21) if not r.prefill]


def scene_b(mine: ModuleType) -> tuple[list[int], list[int]]:
    """Temperature 0, k = 3, the draft is wrong at every fourth place: the text token by token, and the loop's."""
    found = rounds(mine, TinyTarget(all_of_it), TinyDrafter(all_of_it, wrong_at=4), 3, 14)
    return plain(all_of_it, 14), tokens_of(found)


def scene_c(mine: ModuleType, k: int = 4) -> list[int]:
    """Tokens count up from 3, 6 means end of text, 12 are asked for: the text."""
    return tokens_of(rounds(mine, TinyTarget(one_up), TinyDrafter(one_up), k, 12, frozenset({6})))


def scene_d(mine: ModuleType) -> list[float]:
    """One drafted token: the share of each token at its place, over all draws there are."""
    share = Counter()
    for token, weight in enumerate(DRAFT_ROW):
        draft = Draft(torch.tensor([[token]]), torch.tensor([1]), twelfths(DRAFT_ROW))
        found = verdicts(mine, draft, twelfths(TARGET_ROW, [4, 4, 4]), 12)
        for n_accepted, next_token in found:
            share[token if n_accepted else next_token] += weight / 12 / len(found)
    return [share[token] for token in range(3)]


def scene_e(mine: ModuleType) -> list[float]:
    """Two drafted tokens, each kept half of the time: the share of rounds that keep none, one, both."""
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([2]))
    counts = Counter(n for n, _ in verdicts(mine, draft, twelfths([6, 6], [6, 6], [6, 6]), 4))
    return [counts[n] / counts.total() for n in range(3)]


def scenes(mine: ModuleType) -> str:
    """All five, printed."""

    def line(items: list) -> str:
        return " ".join(f"{item:.2f}" if isinstance(item, float) else str(item) for item in items)

    own, theirs = scene_b(mine)
    return "\n".join(
        [
            "A  k = 4, and the draft is always right",
            f"   tokens per round       {line(scene_a(mine))}",
            "B  temperature 0, k = 3, and the draft is wrong now and then",
            f"   token by token         {line(own)}",
            f"   this loop              {line(theirs)}",
            "C  token 6 means end of text",
            f"   with -k 0              {line(scene_c(mine, 0))}",
            f"   with -k 4              {line(scene_c(mine, 4))}",
            "D  sampling with one drafted token; shares of tokens 0, 1, 2",
            f"   the target's           {line([w / 12 for w in TARGET_ROW])}",
            f"   the draft's            {line([w / 12 for w in DRAFT_ROW])}",
            f"   this loop's            {line(scene_d(mine))}",
            "E  two drafted tokens, each right half of the time; rounds that keep 0, 1, 2",
            f"   independent tests      {line(INDEPENDENT)}",
            f"   this loop's            {line(scene_e(mine))}",
        ]
    )


# --- the table -------------------------------------------------------------------------------------------------------


def checks() -> dict[str, Callable[[ModuleType], None]]:
    """Name -> check, in the order of the file."""
    file = importlib.import_module(f"tests.exercises.test_{STEM}")
    return {name: check for name, check in vars(file).items() if name.startswith("test_")}


def red(mine: ModuleType) -> list[str]:
    """The checks that fail."""
    failed = []
    for name, check in checks().items():
        try:
            check(mine)
        except Todo:
            raise
        except (Exception, pytest.fail.Exception):
            failed.append(name)
    return failed


def states() -> dict[str, tuple[Bug, ...]]:
    """Nothing seeded, each bug alone, each bug mended while the others stay."""
    single = {bug.name: (bug,) for bug in BUGS}
    mended = {f"all but: {bug.name}": tuple(other for other in BUGS if other != bug) for bug in BUGS}
    return {"none": (), **single, **mended}


def table() -> str:
    """States x checks."""
    names = list(checks())
    rows = []
    for state, bugs in states().items():
        failed = red(module(seeded(bugs)))
        rows.append([state, *("red" if name in failed else "." for name in names)])
    legend = "\n".join(f"{i}  {name.removeprefix('test_').replace('_', ' ')}" for i, name in enumerate(names, start=1))
    return tabulate(rows, ["seeded bugs", *map(str, range(1, len(names) + 1))]) + f"\n\n{legend}"


@reports_problems
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", action="store_true", help="what your file does now, in five small scenes")
    args = parser.parse_args()
    print(scenes(importlib.import_module(f"exercises.{STEM}")) if args.scenes else table())


if __name__ == "__main__":
    sys.exit(main())
