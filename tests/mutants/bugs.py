"""What a mutant is. Imports nothing of the lab: see plugin.py for why.

A mutant is an edit of the lab's source text. Mutants stand in text files, in this form, and are made where the module
is imported; the text behind `-` has to be there exactly once:

    bug 4 correction drawn from p, not from the residual

    [core/accept]
    4 draws the correction from p
    by exact::the_rule_keeps_the_contract
    - (target_here - draft_here).clamp(min=0)
    + target_here

`bug` gives a number its words, in any of the files. `by` names tests: lab/rates::x, y are test_x and test_y of
lab/test_rates.py, and a second line `by` names tests of another file. A name with a case in brackets, as pytest prints
it, runs and has to fail in this case alone. `raises ERROR` says that this error of the production code is as good as a
failed assertion, `refused CASE` that the check of an engine at load notices, too. Further pairs of `-` and `+` are
further edits of the same module.
"""

import hashlib
import os
import re
import sys
import tempfile
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import NamedTuple

from tests.edits import Edit, edited, edits_in

ROOT = Path(__file__).parent.parent.parent


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
        self.name = ".".join(self.file.relative_to(ROOT).with_suffix("").parts)

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
        return [(path, f"pathlib.Path({str(place)!r})"), ('"-O3"', '"-Og"')]


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
    apply: Edits
    what: str  # what it does, in a line
    name: str  # how plugin.py finds it: file and name
    killed_by: tuple[str, ...]  # tests that must fail, "file::name", or "file::name[case]" where others take long
    raises: str = ""  # an error of the production code that is as good as a failed assertion
    refused: str = ""  # the case of tests/engines/families.py whose engine the check at load has to refuse

    @property
    def file(self) -> str:
        """Where it stands."""
        return self.name.partition(":")[0]


def mutant_files() -> list[Path]:
    """All files of mutants, those of extensions with them."""
    return sorted([*ROOT.glob("tests/mutants/*.txt"), *ROOT.glob("speclab/extensions/*/tests/mutants.txt")])


def bugs_of(file: Path) -> dict[int, str]:
    """The numbers that a file adds."""
    return {int(bug): what for bug, what in re.findall(r"^bug (\d+) (.*)", file.read_text("utf-8"), re.MULTILINE)}


def mutants_of(file: Path) -> list[Mutant]:
    shown, module, found = file.relative_to(ROOT).as_posix(), "", []
    for block in re.split(r"^(?=[\d[])", file.read_text("utf-8"), flags=re.MULTILINE):
        title, *lines = block.splitlines() or [""]
        if title.startswith("["):
            module = title.strip("[]")
        elif title[:1].isdecimal():
            bug, _, what = title.partition(" ")
            said = re.findall(r"^(by|raises|refused) (.*)$", block, re.MULTILINE)
            tests = [test for key, by in said if key == "by" for test in _killers(shown.partition("/mutants")[0], by)]
            identifier = re.sub(r"\W", "_", what.lower().replace("'", ""))
            more = {key: word for key, word in said if key != "by"}
            edits, name = Edits(module, edits_in(lines)), f"{shown}:{identifier}"
            found.append(Mutant(int(bug), edits, what, name, tuple(tests), **more))
    return found


def _killers(folder: str, by: str) -> list[str]:
    """Tests by what a line `by` says, in a folder."""
    file, tests = by.split("::")
    room, _, last = file.rpartition("/")
    path = "/".join(filter(None, [folder, room, f"test_{last}.py"]))
    return [f"{path}::test_{test}" for test in tests.split(", ")]
