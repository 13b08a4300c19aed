"""Compile functions, in a process of its own, which speclab/models/backends/packages.py starts.

python -P compile_functions.py FOLDER

It takes NUMBER-NAME.json from the folder, the lowest number first, and makes NAME.pt2, until none is left. Several such
processes share the work.
"""

import functools
import importlib
import json
import math
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

BLOCK = 64  # rows of the buffers: a pass reads whole blocks, so that loops over them need no remainder
HEADERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cpp")  # in the place of the compiler's own
INCLUDED = "CPLUS_INCLUDE_PATH"  # the environment variable with the folders of headers


class Call(torch.nn.Module):
    """A function of tensors as a module, which is what torch.export takes."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        """Call the function."""
        return self.function(*inputs)


def exported(function: Callable[..., Any], inputs: tuple, sizes: list[list[int]]) -> torch.export.ExportedProgram:
    """Export a function for any number of blocks along these dimensions of each input."""
    blocks = BLOCK * torch.export.Dim("blocks", min=1, max=2**20)
    dynamic = tuple(dict.fromkeys(dimensions, blocks) for dimensions in sizes)
    return torch.export.export(Call(function), inputs, dynamic_shapes=(dynamic,), strict=False)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute scaled dot-product attention, of each text alone.

    (texts, heads, m, size) queries, (texts, kv heads, n, size) keys and values, (texts, 1, m, n) mask
    -> (texts, heads, m, size)
    """
    n_texts, n_heads, m, size = query.shape
    n_kv, n = n_texts * key.shape[1], key.shape[2]
    rows = query.reshape(n_kv, -1, size)  # those of the heads that share keys side by side
    scores = torch.bmm(rows, key.reshape(n_kv, n, -1).transpose(-1, -2)).view(n_texts, n_heads, m, n) * scale + mask
    weights = scores.softmax(-1).to(value.dtype).view(n_kv, -1, n)
    return torch.bmm(weights, value.reshape(n_kv, n, -1)).view(n_texts, n_heads, m, -1)


def product(states: Tensor, blocks: Tensor, size: int, bias: Tensor | None = None) -> Tensor:
    """Multiply states with the rows of a matrix, as one sum for each row of the states.

    (..., n) states, (ceil(size / lanes), n, lanes) matrix in blocks of rows, (size,) bias -> (..., size)

    The sums are made in the dtype of the states, whatever that of the matrix is.
    """
    n = states.shape[-1]
    m = states.numel() // n
    # The input of the sums is written down once; otherwise it would be computed again for every row of the matrix.
    rows = torch.as_strided(states.contiguous(), (m, n), (n, 1))
    blocks = blocks.to(states.dtype)
    sums = torch.stack([(blocks * rows[i, :, None]).sum(1).view(-1)[:size] for i in range(m)])
    sums = sums.view(*states.shape[:-1], -1)
    return sums if bias is None else sums + bias


def written_down(
    module: fx.GraphModule, inputs: tuple[Tensor, ...], sizes: list[list[int]], threads: int
) -> dict[str, Any]:
    """Describe a function for `compile_one`: its Python code, what that calls, and its inputs without their numbers.

    module: it has no weights; they are inputs. sizes: as in `exported`. threads: of its loops.
    """
    code = module.graph.python_code("self")
    functions = types.FunctionType, types.BuiltinFunctionType
    called = {name: value for name, value in code.globals.items() if isinstance(value, functions)}
    return {
        "code": code.src,
        "called": {name: [value.__module__, value.__qualname__] for name, value in called.items()},
        "inputs": [[list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")] for t in inputs],
        "sizes": sizes,
        "threads": threads,
    }


def read_back(about: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Return the function that `written_down` has described, and inputs of these sizes with any numbers."""
    names: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
    for own, (module, called) in about["called"].items():
        # In a process that compiles this file is the main module, and its functions are those of the package.
        place = sys.modules[__name__] if module.endswith("compile_functions") else importlib.import_module(module)
        names[own] = getattr(place, called)
    exec(about["code"], names)
    inputs = (torch.empty_strided(shape, strides, dtype=getattr(torch, d)) for shape, strides, d in about["inputs"])
    return functools.partial(names["forward"], None), tuple(inputs)


def compile_one(folder: str, name: str, about: dict[str, Any]) -> None:
    """Compile the function that `written_down` has described; NAME.pt2 is in the folder as soon as it is whole."""
    function, inputs = read_back(about)
    torch._inductor.config.cpp.threads = about["threads"]  # the loops have a fixed number of them
    with torch.no_grad():
        program = exported(function, inputs, about["sizes"])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        package = os.path.join(scratch, "function.pt2")
        try:
            made = torch._inductor.aoti_compile_and_package(program, package_path=package)
        except Exception:
            if not without_own_headers():
                raise
            made = torch._inductor.aoti_compile_and_package(program, package_path=package)
        os.replace(made, os.path.join(folder, f"{name}.pt2"))


def without_own_headers() -> bool:
    """Leave HEADERS out of the folders of headers from now on; those of the user stay.  -> whether it was among them"""
    folders = os.environ.pop(INCLUDED, "").split(os.pathsep)
    if own := [folder for folder in folders if folder not in (HEADERS, "")]:
        os.environ[INCLUDED] = os.pathsep.join(own)
    return HEADERS in folders


def taken(folder: str) -> str | None:
    """Take the next function from the folder; return the path of its description, None where none is left."""
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".json")):
        path = os.path.join(folder, name.removesuffix(".json"))
        try:
            os.rename(f"{path}.json", path)
            return path
        except FileNotFoundError:  # another process was first
            continue
    return None


if __name__ == "__main__":
    config = torch._inductor.config
    config.aot_inductor.precompile_headers = shutil.which("openssl") is not None  # Inductor calls it for that
    # One instruction multiplies and adds. Each product then rounds once, not twice.
    config.cpp.enable_floating_point_contract_flag = "fast"
    while path := taken(sys.argv[1]):
        with open(path, encoding="utf-8") as file:
            compile_one(sys.argv[1], path.rpartition("-")[2], json.load(file))
