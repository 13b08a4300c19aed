"""Finds the extensions and their commands, and holds the list of the families of models that they add.

An extension is a package under speclab/extensions. Nothing below names one: `load` looks which folders are there and
imports the modules `register`, by their names as strings. An error in such a module is not hidden. A folder that brings
a command and nothing else has no `register`, so that no other command imports anything of it.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from speclab.system.errors import EnvironmentProblem

PACKAGE = "speclab.extensions"
FAMILIES: list[str] = []  # "module:name" of each family of models (speclab/models/family.py)


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
    names = []
    for folder in importlib.import_module(PACKAGE).__path__:
        for found in pkgutil.iter_modules([folder]):
            if found.ispkg and any(one.name == module for one in pkgutil.iter_modules([f"{folder}/{found.name}"])):
                names.append(found.name)
    return names


def modules(name: str) -> list[ModuleType]:
    """Import the modules of this name in the folders of extensions, in the order of the folders."""
    return [importlib.import_module(f"{PACKAGE}.{extension}.{name}") for extension in _with(name)]


def add_family(place: str) -> None:
    """A register.py calls this to say that the lab also decodes the models of this family.

    place: "module:name" of an object as in speclab/models/family.py, which is imported with the first model.
    """
    if place not in FAMILIES:
        FAMILIES.append(place)


def command(name: str) -> Callable[..., int]:
    """Return the main() of an extension's command. Raises EnvironmentProblem where the extension is not there."""
    if name not in _with("__main__"):
        folder = f"{PACKAGE}.{name}".replace(".", "/")
        raise EnvironmentProblem(f"the folder {folder} is not here; type: git checkout -- {folder}")
    return importlib.import_module(f"{PACKAGE}.{name}.__main__").main
