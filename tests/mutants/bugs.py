"""What a mutant is, and the numbers of the bugs. Imports nothing of the lab: see plugin.py for why."""

from collections.abc import Callable
from typing import NamedTuple

# An extension has further ones: BUGS of its own mutants.
BUGS = {
    1: "correction put before the accepted drafts",
    2: "no bonus token after full acceptance",
    3: "drafts paired with the wrong logits",
    4: "correction drawn from p, not from the residual",
    5: "draft picked by argmax, scored with softmax",
    6: "untempered ratio test",
    7: "redraw from p after an n-gram mismatch",
    8: "bonus token from the wrong place",
    9: "prefix fed again together with the cache",
    10: "cache not rolled back, or off by one",
    11: "draft never fed its last token",
    12: "uniforms repeated",
    13: "token id 0 treated as nothing",
    14: "nucleus drops the crossing token",
    17: "two target passes per round",
    18: "EOS inside a block, or the budget, ignored",
    20: "other things counted or timed than decoded tokens",
    21: "accepted / drafted where alpha is meant",
    22: "zero-probability token emitted, 0/0",
    23: "correction thrown away",
    24: "unfit model called fit",
    25: "target's vocabulary, or the draft's, taken for the other's",
    26: "checkpoint's generation settings applied in one arm, or dropped without a word",
    27: "code of a model folder run",
    28: "rounding bound widened by what it judges",
    29: "draft fed beyond its context",
    30: "noise taken for a result",
    31: "special tokens doubled, or half a character shown",
    32: "measured data lost where a run is interrupted",
    33: "a draft given the wrong hidden states, or at the wrong place",
    34: "drafted token dropped after it was drawn",
    35: "draft length chosen by the wrong numbers",
    36: "one of two drafts out of step with the text, or taken for the other",
    37: "a lossy rule not called that, or further off than is said",
    44: "a tokenizer, a template, a name or a record from outside trusted",
}


class Mutant(NamedTuple):
    """A function that puts a bug into the lab, and the tests that must notice."""

    bug: int
    apply: Callable[[], None]  # replaces functions, methods or attributes of the lab's modules; its docstring: the bug
    killed_by: tuple[str, ...]  # tests that must fail, "file::name", or "file::name[case]" where others take long
    raises: str = ""  # an error of the production code that is as good as a failed assertion
    hangs: bool = False  # running out of time is a kill

    @property
    def what(self) -> str:
        """What it does, in a line."""
        return (self.apply.__doc__ or "").strip()

    @property
    def name(self) -> str:
        """How plugin.py finds it: module and function."""
        return f"{self.apply.__module__}:{self.apply.__name__}"

    @property
    def file(self) -> str:
        """Where it stands."""
        return f"{self.apply.__module__.replace('.', '/')}.py"


def mutant(
    bug: int, *killed_by: str, file: str = "test_gallery", raises: str = "", hangs: bool = False
) -> Callable[[Callable[[], None]], Mutant]:
    """Make a function a mutant of this bug. `killed_by`: names of tests in FILE.py, without "test_".

    A name with a case in brackets, as pytest prints it, runs and has to fail in this case alone.

    FILE is looked for in tests/, and for a mutant of an extension in the extension's tests/.
    """

    def made(apply: Callable[[], None]) -> Mutant:
        folder = apply.__module__.partition(".mutants")[0].replace(".", "/")
        return Mutant(bug, apply, tuple(f"{folder}/{file}.py::test_{name}" for name in killed_by), raises, hangs)

    return made
