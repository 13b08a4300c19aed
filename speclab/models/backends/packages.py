"""Compiled functions in the user's cache folder: built once for a processor and a version of PyTorch, loaded again.

A package is named after all that its code depends on. It is written under another name and moved to its own when it is
whole, so that neither an interrupted build nor two builds at once leave half a package.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from speclab.models.family import NoFastBackend
from speclab.system import cache
from speclab.system.errors import first_line

WRITER = pathlib.Path(__file__).with_name("compiled.py")  # other code there writes other functions
# Lines of /proc/cpuinfo on x86 and on ARM.
OF_PROCESSORS = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
Run = Callable[[list[Tensor]], list[Tensor]]
Build = Callable[[str, nn.Module, tuple[Tensor, ...], tuple], Run]


@functools.cache
def compiler() -> str | None:
    """Return the path of the C++ compiler that Inductor calls; None where there is none."""
    names = (os.environ.get("CXX"), "clang++" if sys.platform == "darwin" else "g++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@functools.cache
def _machine() -> str:
    """Return what machine code depends on: the processor with its instructions, Python, PyTorch and what writes it."""
    cpu = torch.backends.cpu.get_cpu_capability()
    writer = hashlib.sha256(WRITER.read_bytes()).hexdigest()
    return f"{writer} {torch.__version__} {sys.version} {platform.machine()} {cpu} {_processor()}"


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
    """Return the function in a package file."""
    with _quiet():
        return torch._inductor.aoti_load_package(str(path)).loader.boxed_run


def make_folder() -> pathlib.Path:
    """Return the cache folder, made where it is missing. Raises NoFastBackend where not this user alone can write
    there, since machine code is loaded from it."""
    try:
        return cache.make_folder()
    except OSError as error:
        raise NoFastBackend(str(error)) from error


def build(name: str, module: nn.Module, inputs: tuple[Tensor, ...], sizes: tuple) -> Run:
    """Compile a function and keep it in the folder.

    inputs: an example. sizes: which of their sizes differ, as torch.export takes it. Raises NoFastBackend where the
    function cannot be compiled or kept.
    """
    try:
        place = make_folder()
        with tempfile.TemporaryDirectory(dir=place) as scratch, _quiet(), torch.no_grad():
            program = torch.export.export(module, inputs, dynamic_shapes=sizes, strict=False)
            made = torch._inductor.aoti_compile_and_package(program, package_path=os.path.join(scratch, "function.pt2"))
            os.chmod(made, 0o600)
            os.replace(made, place / f"{name}.pt2")
        if run := load(name):
            return run
    except Exception as error:  # whatever a compiler does
        raise NoFastBackend(f"the compiler gave up: {type(error).__name__}: {first_line(error)}") from error
    raise NoFastBackend(f"a compiled function in {place} cannot be loaded")


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
