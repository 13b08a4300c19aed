"""Compile exported functions, in a process of its own, which speclab/models/backends/packages.py starts.

python -P compile_functions.py FOLDER NAME...
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

BLOCK = 64  # rows of the buffers: a pass reads whole blocks, so that loops over them need no remainder


class Call(torch.nn.Module):
    """A function of tensors as a module, which is what torch.export takes."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the function."""
        return self.function(*inputs)


def exported(function: Callable[..., Any], inputs: tuple, sizes: list[list[int]]) -> torch.export.ExportedProgram:
    """Export a function for any number of blocks along these dimensions of each input."""
    blocks = BLOCK * torch.export.Dim("blocks", min=1, max=2**20)
    dynamic = tuple(dict.fromkeys(dimensions, blocks) for dimensions in sizes)
    return torch.export.export(Call(function), inputs, dynamic_shapes=(dynamic,), strict=False)


def compile_one(folder: str, name: str) -> None:
    """Compile the function in NAME.exported of the folder; NAME.pt2 is there as soon as it is whole."""
    about = {"sizes": ""}
    program = torch.export.load(os.path.join(folder, f"{name}.exported"), extra_files=about)
    # A program from a file has lost the example's sizes, which the compiler needs, so it is exported again.
    again = exported(program.module(check_guards=False), program.example_inputs[0], json.loads(about["sizes"]))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = torch._inductor.aoti_compile_and_package(again, package_path=os.path.join(scratch, "function.pt2"))
        os.replace(made, os.path.join(folder, f"{name}.pt2"))


if __name__ == "__main__":
    # A precompiled header takes 400 MB and, for the few functions of a model, more time than it saves.
    torch._inductor.config.aot_inductor.precompile_headers = False
    torch._inductor.config.cpp_cache_precompile_headers = False
    # One instruction multiplies and adds. Each product then rounds once, not twice.
    torch._inductor.config.cpp.enable_floating_point_contract_flag = "fast"
    for each in sys.argv[2:]:
        compile_one(sys.argv[1], each)
