"""From a GGUF file to a folder that the library reads: the file is converted once and kept in the user's cache folder.

The library dequantises it in a process of its own (convert_child.py) with limits of time and memory. The numbers of the
folder are those of the file, written as float32, so that a run in any dtype rounds them once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from speclab.extensions.gguf.head import Head, read_head
from speclab.system import cache, paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHILD = "speclab.extensions.gguf.convert_child"
ROOM = 2**30  # bytes that the conversion needs beside the weights, in memory and on the disk
ADDRESSES = 24 * 2**30  # bytes, of the library with everything that it maps
SECONDS, NUMBERS_PER_SECOND = 300, 200_000  # of a processor's time: at the start, and for the numbers of the file


def is_file_name(name: str) -> bool:
    """Tell whether a name means a GGUF file, there or not; a folder of such a name is a folder."""
    return name.lower().endswith(".gguf") and not os.path.isdir(name)


def check_file(name: str) -> None:
    """Raise EnvironmentProblem where the file is not there, is broken, or cannot be read here."""
    _head(*_identity(name))


def converted_folder(name: str) -> str:
    """Return the folder with the model of a GGUF file, converted now where it has not been before."""
    return _converted(*_identity(name))


def description(name: str, model: PreTrainedModel) -> str:
    """Say whose weights a model has: the types of the file."""
    head = _head(*_identity(name))
    return f"the weights of a GGUF file ({head.quantisation()}), run in {str(model.dtype).split('.')[-1]}"


def _identity(name: str) -> tuple[str, int, int]:
    """Return the real path of a file, its size and its time: while they stay, so does what was read of it."""
    path = os.path.realpath(name)
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return path, 0, 0
    return path, about.st_size, about.st_mtime_ns


@functools.lru_cache(maxsize=16)
def _head(path: str, _size: int, _time: int) -> Head:
    return read_head(Path(path))


@functools.lru_cache(maxsize=16)
def _converted(path: str, size: int, time: int) -> str:
    head, file_name = _head(path, size, time), os.path.basename(path)
    try:
        place = cache.make_folder() / "gguf"
        place.mkdir(mode=0o700, exist_ok=True)
        if not cache.is_own(place):
            raise OSError(f"others can write to {place}; type: chmod 700 {place}")
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        # Another version of what converts may write another folder.
        own = [Path(__file__).with_name(f"{module}.py").read_text() for module in ("head", "entries", "convert_child")]
        writers = (version("transformers"), version("gguf"), own)
        folder = place / hashlib.sha256(repr((content, writers)).encode()).hexdigest()[:40]
        if not folder.is_dir():
            with FileLock(place / "lock"):
                if not folder.is_dir():  # another process may have made it
                    _clear(place)
                    _check_room(file_name, head, place)
                    weights = f"{head.n_numbers / 1e6:.0f} M weights"
                    note(f"converting {file_name} ({weights}) once, into {place}; half a minute or more")
                    with whole_folder(folder) as new:
                        _run_child(path, size, new, head)
                        if _identity(path) != (path, size, time):
                            raise OSError("the file was changed while it was read; give it again")
    except OSError as error:
        raise EnvironmentProblem(f"cannot convert {file_name}: {getattr(error, 'strerror', None) or error}") from None
    return str(folder)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder to fill, which becomes `folder` at the end. Nothing is left of one that cannot be filled."""
    new = folder.with_name(f".{secrets.token_hex(8)}.part")
    new.mkdir()
    try:
        yield new
        new.replace(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _clear(place: Path) -> None:
    """Remove what a conversion has left that was killed. The lock is held: no other is at work."""
    for part in place.glob(".*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _check_room(name: str, head: Head, place: Path) -> None:
    """Raise EnvironmentProblem where the disk or the memory is too small for the weights in float32."""
    on_disk, in_memory = 4 * head.n_numbers + ROOM, 8 * head.n_numbers + ROOM
    free = shutil.disk_usage(place).free
    if on_disk > free:
        raise EnvironmentProblem(
            f"{name} takes {on_disk / 2**30:.1f} GiB as float32, and {free / 2**30:.1f} GiB are free in {place}; free "
            f"some space, or set {cache.FOLDER}"
        )
    import torch  # here, with what needs it: a help names this form of a model, and answers before torch is loaded

    from speclab.models.memory import free_memory

    memory = free_memory(torch.device("cpu"))
    if memory is not None and in_memory > memory:
        raise EnvironmentProblem(
            f"converting {name} takes {in_memory / 2**30:.1f} GiB of memory, and {memory / 2**30:.1f} GiB are free; "
            "choose a smaller model"
        )


def _run_child(path: str, size: int, folder: Path, head: Head) -> None:
    """Convert the file into an empty folder. Raises EnvironmentProblem where the library cannot."""
    question = {
        "file": path,
        "folder": str(folder),
        "entries": {name: value for name, value in head.entries.items() if "chat_template" not in name},
        "tensors": head.tensors,
        "seconds": SECONDS + head.n_numbers // NUMBERS_PER_SECOND,
        "memory": ADDRESSES + 2 * size + 16 * head.n_numbers,
    }
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    words = [sys.executable, "-P", "-m", CHILD]
    done = subprocess.run(words, input=json.dumps(question).encode(), capture_output=True, env=environment, check=False)
    name, advice = os.path.basename(path), "choose another file, or the model in safetensors"
    if done.returncode:
        ends = {-getattr(signal, "SIGXCPU", 0): "it takes too long", -getattr(signal, "SIGKILL", 0): "it was killed"}
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = ends.get(done.returncode) or (lines[-1][:160] if lines else f"exit code {done.returncode}")
    else:
        why = json.loads(done.stdout.splitlines()[-1]).get("problem", "")
    if why:
        raise EnvironmentProblem(f"cannot convert {name}: {why}; {advice}")
