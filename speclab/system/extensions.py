"""Finds the extensions and their commands, and holds the list of the families of models that they add.

An extension is a package under speclab/extensions. Nothing below names one: `load` looks which folders are there and
imports the modules `register`, by their names as strings. An error in such a module is not hidden. A folder that brings
a command and nothing else has no `register`, so that no other command imports anything of it.
"""

import functools
import importlib
from pathlib import Path
from types import ModuleType

PACKAGE = "speclab.extensions"
# "module:name" of each family of models (speclab/models/family.py), imported with the first model. A register.py
# appends its own.
FAMILIES: list[str] = []


@functools.cache
def load() -> None:
    """Import the module `register` of every extension that has one, once."""
    modules("register")


def commands() -> dict[str, str]:
    """Return the names of the extensions that have a command, each with the line that its package says of it."""
    lines = {name: importlib.import_module(f"{PACKAGE}.{name}").__doc__ or "" for name in _with("__main__")}
    return {name: line.split("\n")[0].removesuffix(".") for name, line in lines.items()}


def _with(module: str) -> list[str]:
    """Return the names of the extensions that have a module of this name; nothing is imported."""
    places = importlib.import_module(PACKAGE).__path__
    return [file.parent.name for place in places for file in sorted(Path(place).glob(f"*/{module}.py"))]


def modules(name: str) -> list[ModuleType]:
    return [importlib.import_module(f"{PACKAGE}.{extension}.{name}") for extension in _with(name)]
