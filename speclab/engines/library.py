"""Compiles pass.c for this machine, once: some seconds, and the next run finds the library in the user's cache folder.

The file's name is a digest of the source, the flags, and the macros by which the compiler names its version and all
that the processor knows. It is written under another name and moved to its own when it is whole. Nothing is loaded that
others can write to (speclab/system/files.py).
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from speclab.models.family import NoFastBackend
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import cache_folder, is_own, write_whole
from speclab.system.terminal import note

SOURCE = pathlib.Path(__file__).with_name("pass.c")
# Sums keep their order, and NaN and infinity stay what they are: no flag lets the compiler assume there are none.
# GCC leaves out some fused additions for some processors: then a sum would depend on how many rows a thread has.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "--param=avoid-fma-max-bits=0", "-fPIC", "-shared", "-fopenmp-simd")
THREADS = "-fopenmp"  # of the library that PyTorch has loaded, so that its threads are the same
NO_COMPILER = "there is no C compiler; install one, on Debian: apt install gcc"


def compiler() -> str | None:
    """Return the path of a C compiler: CC, cc, gcc or clang, None where there is none."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")  # a path, or a name on the PATH
    return next((os.path.abspath(found) for name in names if name and (found := shutil.which(name))), None)


@functools.cache
def library(kinds: int, more: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Return the library with the products of these kinds of weights, bit by bit (KINDS in pass.c).

    more: further flags of the compiler. Raises NoFastBackend where it cannot be compiled or kept."""
    if (path := compiler()) is None:
        raise NoFastBackend(NO_COMPILER)
    command = [path, *FLAGS, f"-DKINDS={kinds}", *more]
    try:
        return _library([*command, THREADS])
    except NoFastBackend:
        found = _library(command)
        note("the C compiler has no OpenMP, so a pass takes one thread; install gcc (for clang on Debian: libomp-dev)")
        return found


def _library(command: list[str]) -> ctypes.CDLL:
    try:
        done = subprocess.run([*command, "-dM", "-E", str(SOURCE)], capture_output=True, text=True)
        about = repr((SOURCE.read_bytes(), command, done.stdout))
        place = cache_folder() / f"{hashlib.sha256(about.encode()).hexdigest()[:40]}.so"
        if not place.exists() or not is_own(place):
            with tempfile.TemporaryDirectory() as scratch:
                whole = pathlib.Path(scratch) / "pass.so"
                if not done.returncode:  # it knows the flags and finds the headers
                    note("compiling speclab/engines/pass.c, some seconds; the next run finds it")
                    files = ["-o", whole.name, str(SOURCE), "-lm"]
                    done = subprocess.run([*command, *files], cwd=scratch, capture_output=True, text=True)
                if done.returncode or not whole.exists():
                    said = done.stderr.splitlines() or ["it said nothing"]
                    raise NoFastBackend(f"the C compiler gave up: {next((s for s in said if 'error' in s), said[0])}")
                write_whole(place, whole.read_bytes())
                place.chmod(0o600)
        return ctypes.CDLL(str(place))
    except (OSError, EnvironmentProblem) as error:
        raise NoFastBackend(f"the compiled pass cannot be kept or loaded: {error}") from error
