"""Compiles pass.c for this machine, once: some seconds, and the next run finds the library in the user's cache folder.

The file's name is a digest of the source, the compiler, its flags and the processor. It is written under another name
and moved to its own when it is whole. Nothing is loaded that others can write to (speclab/system/files.py).
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

from speclab.models.family import NoFastBackend
from speclab.system import files
from speclab.system.terminal import note

SOURCE = pathlib.Path(__file__).with_name("pass.c")
# Sums keep their order, and NaN and infinity stay what they are: no flag lets the compiler assume there are none.
# GCC leaves out some fused additions for some processors: then a sum would depend on how many rows a thread has.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "--param=avoid-fma-max-bits=0", "-fPIC", "-shared")
THREADS = "-fopenmp"  # of the library that PyTorch has loaded, so that its threads are the same
OF_PROCESSORS = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")  # of /proc/cpuinfo
NO_COMPILER = "there is no C compiler; install one, on Debian: apt install gcc"


def compiler() -> str | None:
    """Return the path of a C compiler: CC, cc, gcc or clang, None where there is none."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")  # a path, or a name on the PATH
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _processor() -> str:
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return "".join(sorted({line for line in lines if line.startswith(OF_PROCESSORS)}))
    return platform.processor()


@functools.cache
def library(kinds: int, more: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Return the library with the products of these kinds of weights, bit by bit (KINDS in pass.c).

    more: further flags of the compiler. Raises NoFastBackend where it cannot be compiled or kept.
    """
    if (path := compiler()) is None:
        raise NoFastBackend(NO_COMPILER)
    flags = (*FLAGS, f"-DKINDS={kinds}", *more)
    try:
        return _library(path, *flags, THREADS)
    except NoFastBackend:
        found = _library(path, *flags)
        note("the C compiler compiles it without OpenMP alone, so a pass takes one thread; with gcc it takes all")
        return found


def _library(path: str, *flags: str) -> ctypes.CDLL:
    source, made = SOURCE.read_bytes(), os.stat(path).st_mtime
    about = repr((source, os.path.realpath(path), made, flags, platform.machine(), _processor()))
    try:
        place = files.cache_folder() / f"{hashlib.sha256(about.encode()).hexdigest()[:40]}.so"
        if not place.exists() or not files.is_own(place):
            note("compiling speclab/engines/pass.c, some seconds; the next run finds it")
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                whole = pathlib.Path(scratch) / "pass.so"
                command = [path, *flags, "-o", whole.name, str(SOURCE), "-lm"]
                done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
                if done.returncode or not whole.exists():
                    said = done.stderr.splitlines() or ["it said nothing"]
                    raise NoFastBackend(f"the C compiler gave up: {next((s for s in said if 'error' in s), said[0])}")
                whole.chmod(0o600)
                whole.replace(place)
        return ctypes.CDLL(str(place))
    except OSError as error:
        raise NoFastBackend(f"the compiled pass cannot be kept or loaded: {error}") from error
