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
from speclab.models import engine_choice
from speclab.models.family import NoFastBackend
from tests.tiny_models import tiny

FLOATS = 1


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
        monkeypatch.setenv("SPECLAB_CACHE", str(self.folder))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(module.ctypes, "CDLL", self.load)
        self.loaded: list[bytes] = []
        self.copies = f"/bin/cp {folder}/right.so pass.so"

    def load(self, path: str) -> ctypes.CDLL:
        """The library as it was compiled before: this process must not map files that tests damage."""
        self.loaded.append(Path(path).read_bytes())
        if self.loaded[-1] != self.compiled:
            raise OSError("invalid ELF header")
        return self.right

    def has(self, script: str) -> None:
        """Its compiler does this."""
        tool = self.tools / "cc"
        tool.write_text(f"#!/bin/sh\necho >> {self.runs}\n{script}\n")
        tool.chmod(0o700)
        os.utime(tool, (1, 1))  # a compiler that was changed would be another one

    def compile(self, *more: str):
        """In a process that has loaded nothing yet."""
        return library.__wrapped__(FLOATS, more)

    @property
    def n_runs(self) -> int:
        return len(self.runs.read_text().splitlines())

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.so"))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_it_is_compiled_once(machine):
    machine.has(machine.copies)
    for _ in range(3):
        assert machine.compile().page_tokens() == library(FLOATS).page_tokens()
    assert machine.n_runs == 1
    assert [file.stat().st_mode & 0o777 for file in machine.folder.iterdir()] == [0o600], "and nothing else is left"


def test_another_source_or_flag_is_another_file(machine, monkeypatch, tmp_path):
    machine.has(machine.copies)
    machine.compile()
    machine.compile("-O1")
    other = tmp_path / "pass.c"
    other.write_bytes(module.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(module, "SOURCE", other)
    machine.compile()
    monkeypatch.setattr(module, "_processor", lambda: "another one")
    machine.compile()
    assert len(machine.files()) == machine.n_runs == 4


DAMAGES = {
    "gone": Path.unlink,
    "writable by the group": lambda file: file.chmod(0o660),
    "writable by all": lambda file: file.chmod(0o606),
    "of another user": lambda file: os.chown(file, 12345, -1),
}
IS_ROOT = hasattr(os, "getuid") and os.getuid() == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_may_be_another_one_is_compiled_again(machine, damage):
    if damage == "of another user" and not IS_ROOT:
        pytest.skip("only root can give files away")
    machine.has(machine.copies)
    machine.compile()
    DAMAGES[damage](machine.files()[0])
    machine.compile()
    assert machine.n_runs == 2
    assert machine.loaded == [machine.compiled] * 2
    machine.compile()
    assert machine.n_runs == 2


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(machine, mode):
    machine.has(machine.copies)
    machine.compile()
    machine.folder.chmod(mode)
    with pytest.raises(NoFastBackend, match="chmod 700"):
        machine.compile()
    assert len(machine.loaded) == 1


def test_a_folder_that_cannot_be_made_is_a_reason(machine):
    machine.has(machine.copies)
    machine.folder.write_text("a file")
    with pytest.raises(NoFastBackend, match="SPECLAB_CACHE"):
        machine.compile()


FAILURES = {
    "an error among notes": ("echo note >&2; echo 'pass.c:7: error: no such thing' >&2; exit 1", "no such thing"),
    "only notes": ("echo 'killed by a signal' >&2; exit 4", "killed by a signal"),
    "without a word": ("exit 1", "said nothing"),
    "no file": ("exit 0", "said nothing"),
    "no library": ("echo text > pass.so", "invalid ELF"),
}


@pytest.mark.parametrize(("script", "words"), FAILURES.values(), ids=FAILURES)
def test_a_compiler_that_fails_leaves_the_eager_engine(machine, script, words):
    machine.has(script)
    library.cache_clear()
    try:
        fast, why = engine_choice.choose(tiny("llama", dtype=torch.float32), "auto")
    finally:
        library.cache_clear()
    assert fast is None
    assert words in why
    assert len(why.splitlines()) == 1


def test_without_openmp_one_thread_computes(machine, capsys):
    machine.has(f"case $* in *openmp*) echo error: no such option >&2; exit 1;; esac; {machine.copies}")
    assert machine.compile().page_tokens() == library(FLOATS).page_tokens()
    assert machine.n_runs == 2
    assert "one thread" in capsys.readouterr().err


def test_without_a_compiler_models_run_eagerly(machine):
    """And CC names one, which comes first."""
    library.cache_clear()
    try:
        fast, why = engine_choice.choose(tiny("llama", dtype=torch.float32), "c")
    finally:
        library.cache_clear()
    assert fast is None
    assert module.NO_COMPILER in why
    machine.has(machine.copies)
    assert module.compiler() == str(machine.tools / "cc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "/bin/true")
        assert module.compiler() == "/bin/true"
        patch.setenv("CC", "/nothing/there")
        assert module.compiler() == str(machine.tools / "cc")
