"""What a mutant is, and the numbers of the bugs. Imports nothing of the lab: see plugin.py for why.

Most mutants are edits of the lab's source text. They stand in text files, in this form, and are made where the module
is imported; the text behind `-` has to be there exactly once:

    [core/accept]
    4 draws the correction from p
    by exact::one_round_emits_the_targets_joint_law
    - (target_here - draft_here).clamp(min=0)
    + target_here

`by` names tests: lab/rates::x, y are test_x and test_y of lab/test_rates.py. `raises ERROR` says that this error of the
production code is as good as a failed assertion, `refused CASE` that the check of an engine at load notices, too.
Further pairs of `-` and `+` are further edits of the same module. `bug NUMBER WORDS` is a number of an extension.
"""

import hashlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import NamedTuple

from tests.edits import Edit, edited, edits_in

ROOT = Path(__file__).parent.parent.parent

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
    44: "a name from outside trusted",
    48: "the margin of one token beside the draft of another",
}


def name_of(file: Path) -> str:
    """The name of a module of this checkout."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


class Edits:
    """Changes of the source text of one module, made where it is imported: a finder of modules and a loader.

    module: a path in speclab/ or in the root, without .py; or a C file, in whose place its library compiles a changed
    one, quickly. changes: pairs of an old text and a new one.
    """

    def __init__(self, module: str, changes: list[Edit]):
        self.changes, self.c_file = changes, None
        if module.endswith(".c"):
            self.c_file, module = ROOT / "speclab" / module, str(Path(module).with_name("library"))
        self.file = next(file for folder in ("speclab", "") if (file := ROOT / folder / f"{module}.py").is_file())
        self.name = name_of(self.file)

    def __call__(self) -> None:
        """Make them from now on. Raises ImportError where the module has been imported before."""
        if self.name in sys.modules:
            raise ImportError(f"{self.name} has been imported already")
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """This is asked by the import system for every module."""
        if name != self.name:
            return None
        return spec_from_file_location(name, self.file, loader=_Loader(name, str(self.file), self.text()))

    def text(self) -> str:
        """The source text with the changes. Raises ImportError where an old text is not there exactly once."""
        changes = self.changes if self.c_file is None else self._of_the_library(self.c_file)
        return edited(self.file.read_text("utf-8"), changes, str(self.file))

    def _of_the_library(self, c_file: Path) -> list[Edit]:
        """Write the changed C file.  -> the changes by which the library compiles that one"""
        text = edited(c_file.read_text("utf-8"), self.changes, str(c_file))
        place = Path(tempfile.gettempdir()) / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.c"
        written = place.with_suffix(f".{os.getpid()}")
        written.write_text(text, "utf-8")
        written.replace(place)
        path = f'pathlib.Path(__file__).with_name("{c_file.name}")'
        return [(path, f"pathlib.Path({str(place)!r})"), ('"-O3"', '"-O1"')]


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str):
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str):
        """That of the changed text, never one from a cache of compiled files."""
        return compile(self._source, self.path, "exec", dont_inherit=True)


class Mutant(NamedTuple):
    """What puts a bug into the lab, and the tests that must notice."""

    bug: int
    apply: Callable[[], None]  # edits of a module, or a function that replaces functions of the lab's modules
    what: str  # what it does, in a line
    name: str  # how plugin.py finds it: file and name
    killed_by: tuple[str, ...]  # tests that must fail, "file::name", or "file::name[case]" where others take long
    raises: str = ""  # an error of the production code that is as good as a failed assertion
    hangs: bool = False  # running out of time is a kill
    refused: str = ""  # the case of tests/engines/families.py whose engine the check at load has to refuse

    @property
    def file(self) -> str:
        """Where it stands."""
        return self.name.partition(":")[0]


def bugs_of(file: Path) -> dict[int, str]:
    """The numbers that a file of mutants adds."""
    if file.suffix == ".txt":
        return {int(bug): what for bug, what in re.findall(r"^bug (\d+) (.*)", file.read_text("utf-8"), re.MULTILINE)}
    return getattr(importlib.import_module(name_of(file)), "BUGS", {})


def mutants_of(file: Path) -> list[Mutant]:
    """Those of a text file, or of a module, which imports the lab."""
    if file.suffix == ".txt":
        return list(_read(file))
    module = importlib.import_module(name_of(file))
    return [item for item in vars(module).values() if isinstance(item, Mutant)]


def _read(file: Path) -> Iterator[Mutant]:
    shown, module = file.relative_to(ROOT).as_posix(), ""
    for block in re.split(r"^(?=[\d[])", file.read_text("utf-8"), flags=re.MULTILINE):
        title, *lines = block.splitlines() or [""]
        if title.startswith("["):
            module = title.strip("[]")
        elif title[:1].isdecimal():
            bug, _, what = title.partition(" ")
            said = dict(re.findall(r"^(by|raises|refused) (.*)$", block, re.MULTILINE))
            edits = Edits(module, edits_in(lines))
            tests = killers(shown.partition("/mutants")[0], *said["by"].split("::"))
            name, more = f"{shown}:{_identifier(what)}", {key: said.get(key, "") for key in ("raises", "refused")}
            yield Mutant(int(bug), edits, what, name, tests, **more)


def _identifier(what: str) -> str:
    return re.sub(r"\W", "_", what.lower().replace("'", ""))


def killers(folder: str, file: str, tests: str) -> tuple[str, ...]:
    """Tests by their names, without "test_", in test_FILE.py of a folder."""
    room, _, last = file.rpartition("/")
    path = "/".join(filter(None, [folder, room, f"test_{last}.py"]))
    return tuple(f"{path}::test_{test}" for test in tests.split(", "))


def mutant(
    bug: int, *killed_by: str, file: str = "test_gallery", raises: str = "", hangs: bool = False
) -> Callable[[Callable[[], None]], Mutant]:
    """Make a function a mutant of this bug. `killed_by`: names of tests in FILE.py, without "test_".

    A name with a case in brackets, as pytest prints it, runs and has to fail in this case alone.

    FILE is looked for in tests/, and for a mutant of an extension in the extension's tests/.
    """

    def made(apply: Callable[[], None]) -> Mutant:
        path, what = apply.__module__.replace(".", "/"), (apply.__doc__ or "").strip()
        tests = tuple(f"{path.partition('/mutants')[0]}/{file}.py::test_{name}" for name in killed_by)
        return Mutant(bug, apply, what, f"{path}.py:{apply.__name__}", tests, raises, hangs)

    return made
