"""Finds the extensions, and holds the lists of what they add: commands, and families of models.

An extension is a package under speclab/extensions. Nothing below names one: `load` looks which folders are there and
imports the module `register` of each, by its name as a string. An error in such a module is not hidden.
"""

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from types import ModuleType

from speclab.system.errors import EnvironmentProblem

PACKAGE = "speclab.extensions"
COMMANDS: dict[str, str] = {}  # name of an extension -> one line that says what its command does
FAMILIES: list[str] = []  # "module:name" of each family of models (speclab/models/family.py)


@functools.cache
def load() -> None:
    """Import `register` of every extension, once."""
    package = importlib.import_module(PACKAGE)
    for found in pkgutil.iter_modules(package.__path__):
        if found.ispkg:
            importlib.import_module(f"{PACKAGE}.{found.name}.register")


def modules(name: str) -> list[ModuleType]:
    """Return the modules of this name in the folders of extensions, in the order of the folders.

    So a program outside the package finds what an extension brings for it, and the loops never import that.
    """
    folders = importlib.import_module(PACKAGE).__path__
    places = [f"{PACKAGE}.{found.name}.{name}" for found in pkgutil.iter_modules(folders) if found.ispkg]
    return [importlib.import_module(place) for place in places if importlib.util.find_spec(place)]


def add_command(name: str, line: str) -> None:
    """A register.py calls this to say that `python -m speclab.extensions.NAME` exists. `line` says what the command
    does."""
    if name in COMMANDS:
        raise ValueError(f"two extensions add a command named {name}")
    COMMANDS[name] = line


def add_family(place: str) -> None:
    """A register.py calls this to say that the lab also decodes the models of this family.

    place: "module:name" of an object as in speclab/models/family.py. Its module is imported when the first model is
    loaded, so that a list of commands needs no torch.
    """
    if place not in FAMILIES:
        FAMILIES.append(place)


def command(name: str) -> Callable[..., int]:
    """Return the main() of an extension's command. Raises EnvironmentProblem where the extension is not there."""
    module = f"{PACKAGE}.{name}.__main__"
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        folder = f"{PACKAGE}.{name}".replace(".", "/")
        raise EnvironmentProblem(f"the folder {folder} is not here; type: git checkout -- {folder}")
    return importlib.import_module(module).main
