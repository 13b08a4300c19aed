"""Finds the extensions, packages under speclab/extensions, and imports what they add when it is asked for.

Nothing below names one: `modules` looks which folders have a module of a name. `model_family` is imported with the
first model, and `register` with the first draft, rule or model whose name the lab itself does not know. An error in
such a module is not hidden.
"""

import functools
import importlib
from pathlib import Path
from types import ModuleType

PACKAGE = "speclab.extensions"


def names(module: str) -> list[str]:
    """Return the names of the extensions that have a module of this name; nothing is imported."""
    places = importlib.import_module(PACKAGE).__path__
    return [file.parent.name for place in places for file in sorted(Path(place).glob(f"*/{module}.py"))]


@functools.cache
def modules(name: str) -> list[ModuleType]:
    return [importlib.import_module(f"{PACKAGE}.{extension}.{name}") for extension in names(name)]
