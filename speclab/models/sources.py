"""Names of models that are no folder and no hub name: an extension turns them into a folder that the library reads, and
its register.py calls `add`. Whatever a source gives is loaded and checked like every other model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from speclab.system import extensions

if TYPE_CHECKING:  # a help names the forms, and answers before the library is loaded
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Source:
    """One kind of such names.

    usage: how it is typed, for a help. owns: tells whether a name is one of this kind. check: raises a Problem where
    nothing can be had for a name; it is quick. folder: returns the model folder, made where it is missing, or raises a
    Problem. describe: says in a part of a sentence what the weights of a loaded model are.
    """

    usage: str
    owns: Callable[[str], bool]
    check: Callable[[str], None]
    folder: Callable[[str], str]
    describe: Callable[[str, PreTrainedModel], str]


_SOURCES: list[Source] = []
_ABOUT: weakref.WeakKeyDictionary[PreTrainedModel, str] = weakref.WeakKeyDictionary()


add = _SOURCES.append


def usages() -> list[str]:
    """Return how a model can be named, padded ones apart."""
    extensions.load()
    return ["folder", "hub name", *(source.usage for source in _SOURCES)]


def source_of(name: str) -> Source | None:
    """Return the source that a name belongs to; None for a folder or a hub name."""
    extensions.load()
    return next((source for source in _SOURCES if source.owns(name)), None)


def place_of(name: str) -> str:
    """Return the folder of a name that belongs to a source, and any other name as it is."""
    source = source_of(name)
    return source.folder(name) if source else name


def remember(name: str, model: PreTrainedModel) -> None:
    """Keep what the source of a name says about the weights of the model that was loaded."""
    if source := source_of(name):
        _ABOUT[model] = source.describe(name, model)


def about(model: PreTrainedModel) -> str:
    """Return what its source says about a model's weights, "" where it came from a folder or from the hub."""
    return _ABOUT.get(model, "")
