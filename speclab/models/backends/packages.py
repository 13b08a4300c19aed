"""Compiled functions in the user's cache folder: built once for a processor and a version of PyTorch, loaded again.

A package is named after all that its code depends on. It is written under another name and moved to its own when it is
whole, so that neither an interrupted build nor two builds at once leave half a package.
"""

import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, fx

from speclab.models.backends.compile_functions import HEADERS, INCLUDED, written_down
from speclab.models.family import NoFastBackend
from speclab.system import cache
from speclab.system.errors import first_line

COMPILE = pathlib.Path(__file__).with_name("compile_functions.py")
POLL = 0.05  # seconds between two looks at the processes that compile
LOCK = "lock"  # of a shared folder: a program that runs holds it
# Other code in these files writes other functions.
WRITERS = [*map(COMPILE.with_name, ("compiled.py", "packages.py")), COMPILE, pathlib.Path(HEADERS) / "regex"]
# Lines of /proc/cpuinfo on x86 and on ARM.
OF_PROCESSORS = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
Run = Callable[[list[Tensor]], list[Tensor]]
Source = tuple[fx.GraphModule, tuple[Tensor, ...], list[list[int]], int]
"""What a function is made of: a module, example inputs, for each of them the dimensions along which there may be any
number of blocks of rows, and the number of threads."""
Find = Callable[[str, Callable[[], Source]], Run | None]
"""It takes the name of a function and what makes its source, and returns the function, or None where it is missing."""


@functools.cache
def compiler() -> str | None:
    """Return the path of the C++ compiler that Inductor calls; None where there is none."""
    names = (os.environ.get("CXX"), "clang++" if sys.platform == "darwin" else "g++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@functools.cache
def _machine() -> str:
    """Return what machine code depends on: the processor with its instructions, Python, PyTorch and what writes it."""
    cpu = torch.backends.cpu.get_cpu_capability()
    writer = hashlib.sha256(b"".join(path.read_bytes() for path in WRITERS)).hexdigest()
    return f"{writer} {compiler()} {torch.__version__} {sys.version} {platform.machine()} {cpu} {_processor()}"


def _processor() -> str:
    """Return the processor's name and instructions as the system tells them."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return "".join(sorted({line for line in lines if line.startswith(OF_PROCESSORS)}))
    return platform.processor()


def name_of(form: str, inputs: list[tuple], threads: int) -> str:
    """Return the name of a function: a digest of what it computes, of its inputs and of the machine.

    form: what it computes. inputs: sizes, strides and dtype of each. threads: that it is compiled for.
    """
    text = repr((_machine(), form, inputs, threads))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def is_done(name: str) -> bool:
    """Tell whether all functions of what has this name were compiled before."""
    try:
        return cache.is_own(cache.folder() / f"{name}.done")
    except (OSError, RuntimeError):  # there is no such file, or no home
        return False


def note_done(name: str) -> None:
    """Note that all functions of what has this name are in the folder."""
    (make_folder() / f"{name}.done").touch(mode=0o600)


def load(name: str) -> Run | None:
    """Return the function of that name; None where the folder does not hold it, or holds something that is not one."""
    try:
        path = cache.folder() / f"{name}.pt2"
        if not cache.is_own(path):
            return None
        return _loaded(path)
    except Exception:  # a damaged package is built again
        return None


@functools.cache
def _loaded(path: pathlib.Path) -> Run:
    """Return the function in a package file. Raises ValueError where a part has another checksum than it names."""
    with zipfile.ZipFile(path) as package:  # PyTorch's own reader does not look
        if package.testzip():
            raise ValueError(f"{path.name} is damaged")
    with _quiet():
        return torch._inductor.aoti_load_package(str(path)).loader.boxed_run


def make_folder() -> pathlib.Path:
    """Return the cache folder, made where it is missing. Raises NoFastBackend where not this user alone can write
    there, since machine code is loaded from it."""
    try:
        return cache.make_folder()
    except OSError as error:
        raise NoFastBackend(str(error)) from error


class Missing(dict[str, Source]):
    """The functions that the folder does not hold, by name, as they are asked for."""

    def __call__(self, name: str, source: Callable[[], Source]) -> Run | None:
        """Return the function of that name; or note its source, and return None."""
        run = load(name)
        if run is None and name not in self:
            self[name] = source()
        return run


def in_folder(name: str, source: Callable[[], Source]) -> Run | None:
    """Return the function of that name, None where the folder does not hold it."""
    return load(name)


def build(sources: dict[str, Source]) -> None:
    """Compile these functions, as many at a time as there are cores, and keep them in the folder.

    Processes of their own compile them. An interrupted call keeps what is finished. Raises NoFastBackend where
    one cannot be compiled or kept.
    """
    place = make_folder()
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            # The last ones are those of the most tokens, which take longest: they come first.
            for i, (name, source) in enumerate(reversed(sources.items())):
                about = json.dumps(written_down(*source))
                (pathlib.Path(scratch) / f"{i:04}-{name}.json").write_text(about, encoding="utf-8")
            _compile(pathlib.Path(scratch), place, len(sources))
    except NoFastBackend:
        raise
    except Exception as error:  # whatever an exporter does
        raise NoFastBackend(f"the compiler gave up: {type(error).__name__}: {first_line(error)}") from error


def _end_group(process: subprocess.Popen) -> None:
    """Kill a process, and where the system has sessions, all that it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


_held: list[FileLock] = []  # of the shared folders of this program


@functools.cache
def _shared(place: pathlib.Path) -> tempfile.TemporaryDirectory:
    """Return a folder for what the functions of this run share, 300 MB of precompiled headers: each of them takes as
    long as three functions save with it. It is deleted when the program ends."""
    for old in place.glob(f"shared-*/{LOCK}"):
        with contextlib.suppress(Timeout, OSError), FileLock(old, timeout=0):  # its program was killed
            shutil.rmtree(old.parent, ignore_errors=True)
    made = tempfile.TemporaryDirectory(dir=place, prefix="shared-", ignore_cleanup_errors=True)
    lock = FileLock(pathlib.Path(made.name) / LOCK)
    lock.acquire()
    _held.append(lock)
    return made


def _settings(place: pathlib.Path) -> dict[str, str]:
    """Return the environment variables of processes that compile."""
    shared = _shared(place).name
    return {
        # Inductor reuses what lies in its own folders, and others can write to the usual ones.
        "TMPDIR": shared,
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(shared, "inductor"),
        "TORCHINDUCTOR_VEC_ISA_OK": "1",  # PyTorch itself uses them; trying them out takes nine seconds
        "AOT_INDUCTOR_ENABLE_LINE_TABLES": "0",  # nobody debugs these functions
        INCLUDED: os.pathsep.join(filter(None, (HEADERS, os.environ.get(INCLUDED)))),
    }


def _compile(scratch: pathlib.Path, place: pathlib.Path, n_functions: int) -> None:
    """Let processes compile the functions in `scratch`, and move each into the folder as soon as it is finished."""
    own = os.environ | _settings(place)
    n = min(n_functions, os.cpu_count() or 1)
    said = [scratch / f"{i}.said" for i in range(n)]
    running: list[subprocess.Popen] = []
    try:
        for path in said:
            # With -P the folder of that file is not searched for modules.
            command = [sys.executable, "-P", str(COMPILE), str(scratch)]
            with open(path, "wb") as output:
                how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "env": own}
                running.append(subprocess.Popen(command, **how, start_new_session=True))
        while True:
            codes = [process.poll() for process in running]
            for made in scratch.glob("*.pt2"):
                made.chmod(0o600)
                made.replace(place / made.name)
            for code, path in zip(codes, said, strict=True):
                if code:
                    lines = path.read_text(errors="replace").strip().splitlines()
                    raise NoFastBackend(f"the compiler gave up: {lines[-1] if lines else 'it said nothing'}")
            if None not in codes:
                return
            time.sleep(POLL)
    finally:
        for process in running:
            if process.poll() is None:
                _end_group(process)  # with the C++ compilers that it started
                process.wait()


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep what exporters and compilers print from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
