"""Compiling pass.c: once, by whatever compiler is there; what others may have written is never loaded.

The compilers here are scripts; one of them copies a library that was compiled before.
"""

import ctypes
import os
from pathlib import Path

import pytest
import torch

from speclab.engines import library as module
from speclab.engines.library import library
from speclab.models import setup
from speclab.models.family import NoFastBackend
from tests.tiny_models import tiny

FLOATS = 1
IS_ROOT = hasattr(os, "getuid") and os.getuid() == 0


class Machine:
    """A machine with one compiler, which runs `script`, and an empty cache folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.right = library(FLOATS)
        self.compiled = Path(self.right._name).read_bytes()
        self.folder, self.tools, self.runs = folder / "cache", folder / "tools", folder / "runs"
        self.tools.mkdir()
        self.runs.touch()
        (folder / "right.so").write_bytes(self.compiled)
        monkeypatch.setenv("PATH", str(self.tools))
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("SPECLAB_CACHE", "~/cache")
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(module.ctypes, "CDLL", self.load)
        self.loaded: list[bytes] = []
        self.macros = "__AVX2__"
        self.copies = f"/bin/cp {folder}/right.so pass.so"

    def load(self, path: str) -> ctypes.CDLL:
        """The library as it was compiled before: this process must not map files that tests damage."""
        self.loaded.append(Path(path).read_bytes())
        if self.loaded[-1] != self.compiled:
            raise OSError("invalid ELF header")
        return self.right

    def has(self, script: str) -> None:
        """Its compiler does this where it is not asked for its macros."""
        tool = self.tools / "cc"
        macros = f"case $* in *-dM*) echo {self.macros}; exit;; esac"
        tool.write_text(f"#!/bin/sh\n{macros}\necho >> {self.runs}\n{script}\n")
        tool.chmod(0o700)

    def compile(self, *more: str):
        """In a process that has loaded nothing yet. -> how often the compiler has run"""
        assert library.__wrapped__(FLOATS, more) is self.right
        return len(self.runs.read_text().splitlines())

    def file(self) -> Path:
        [file] = self.folder.iterdir()
        return file


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.has(made.copies)
    return made


def test_each_source_flag_and_processor_is_compiled_once(machine, monkeypatch, tmp_path):
    assert machine.compile() == machine.compile() == 1
    assert machine.file().stat().st_mode & 0o777 == 0o600
    assert machine.compile("-O1") == machine.compile("-O1") == 2
    other = tmp_path / "pass.c"
    other.write_bytes(module.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(module, "SOURCE", other)
    assert machine.compile() == 3
    machine.macros = "__AVX512F__"
    machine.has(machine.copies)
    assert machine.compile() == 4, "on another processor, or by another compiler"


DAMAGES = {
    "gone": Path.unlink,
    "writable by the group": lambda file: file.chmod(0o660),
    "writable by all": lambda file: file.chmod(0o606),
    "of another user": lambda file: os.chown(file, 12345, -1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_may_be_another_one_is_compiled_again(machine, damage):
    if damage == "of another user" and not IS_ROOT:
        pytest.skip("only root can give files away")
    machine.compile()
    DAMAGES[damage](machine.file())
    assert machine.compile() == machine.compile() == 2
    assert machine.loaded == [machine.compiled] * 3


FOLDERS = {
    "writable by the group": (lambda folder: folder.mkdir() or folder.chmod(0o770), "chmod 700"),
    "writable by all": (lambda folder: folder.mkdir() or folder.chmod(0o707), "chmod 700"),
    "a file": (Path.touch, "SPECLAB_CACHE"),
}


@pytest.mark.parametrize(("make", "words"), FOLDERS.values(), ids=FOLDERS)
def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(machine, make, words):
    make(machine.folder)
    with pytest.raises(NoFastBackend, match=words):
        machine.compile()
    assert machine.loaded == []


def test_a_folder_is_needed_where_there_is_no_home(machine, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", str)
    monkeypatch.setenv("SPECLAB_CACHE", str(machine.folder))
    assert machine.compile()
    monkeypatch.delenv("SPECLAB_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(NoFastBackend, match="set SPECLAB_CACHE"):
        machine.compile()


FAILURES = {
    "an error among notes": ("echo note >&2; echo 'pass.c:7: error: no such thing' >&2; exit 1", "no such thing"),
    "only notes": ("echo 'killed by a signal' >&2; exit 4", "killed by a signal"),
    "no file": ("exit 0", "said nothing"),
    "no library": ("echo text > pass.so", "invalid ELF"),
    "no compiler": (None, module.NO_COMPILER),
}


@pytest.mark.parametrize(("script", "words"), FAILURES.values(), ids=FAILURES)
def test_a_compiler_that_fails_leaves_the_eager_engine(machine, script, words):
    if script is None:
        (machine.tools / "cc").unlink()
    else:
        machine.has(script)
    library.cache_clear()
    try:
        fast, why = setup.choose_engine(tiny("llama", dtype=torch.float32), "auto")
    finally:
        library.cache_clear()
    assert fast is None
    assert words in why
    assert len(why.splitlines()) == 1


def test_without_openmp_one_thread_computes(machine, capsys):
    machine.macros += "; case \"$*\" in *'-fopenmp '*) exit 1;; esac"
    machine.has(machine.copies)
    for n_notes in (1, 0):
        assert machine.compile() == 1
        said = capsys.readouterr().err
        assert (said.count("compiling"), said.count("one thread")) == (n_notes, 1)


@pytest.mark.parametrize(("named", "found"), [("bin/true", "/bin/true"), ("/nothing/there", None)])
def test_the_compiler_that_cc_names_comes_first(machine, monkeypatch, named, found):
    monkeypatch.chdir("/")
    monkeypatch.setenv("CC", named)
    assert module.compiler() == (found or str(machine.tools / "cc"))
