"""The training texts beside the standard library: installed packages by their licence, and prose inside sources.

The manifest of all documents goes into the model card of a pair, because another Python version is another corpus.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import itertools
import platform
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from training.corpus import SKIPPED_PARTS, Document, read_source

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)  # nodes that may have a docstring
PERMISSIVE = r"\b(MIT\b|0?BSD|APACHE|ISC\b|PSF|PYTHON SOFTWARE FOUNDATION|UNLICENSE|CC0|ZLIB)"
NOT_PERMISSIVE = r"GPL|\bMPL|EUPL|PROPRIETARY|NVIDIA|COMMERCIAL"


def prose(source: str) -> Iterator[str]:
    """The blocks of comments and the docstrings of a Python source, without indentation.

    Blocks of fewer than three lines are left out, and docstrings of a source that this Python cannot parse.
    """
    for comments, lines in itertools.groupby(source.splitlines(keepends=True), lambda line: line.lstrip()[:1] == "#"):
        block = list(lines)
        if comments and len(block) > 2:
            yield textwrap.dedent("".join(block))
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text and text.count("\n") > 1:
                yield f'"""{text}\n"""'


def permissive_packages() -> Iterator[Document]:
    """The sources of every installed package whose metadata name a permissive licence and no other."""
    for package in sorted(importlib.metadata.distributions(), key=lambda d: str(d.metadata["Name"]).lower()):
        if not is_permissive(_licence(package)):
            continue
        for file in sorted(package.files or [], key=str):
            inside = file.suffix == ".py" and ".." not in file.parts and SKIPPED_PARTS.isdisjoint(file.parts)
            if inside:
                yield from read_source(Path(str(file.locate())), f"{package.metadata['Name']}:{file.as_posix()}")


def is_permissive(licence: str) -> bool:
    """True when the licence text names a permissive licence and none that is not."""
    text = licence.upper()
    return bool(re.search(PERMISSIVE, text)) and not re.search(NOT_PERMISSIVE, text)


def _licence(package: importlib.metadata.Distribution) -> str:
    meta = package.metadata
    classifiers = [c for c in meta.get_all("Classifier") or [] if c.startswith("License")]
    # Some packages paste the whole licence text into one field: its first line names it.
    stated = (meta.get("License-Expression") or meta.get("License") or "").strip().split("\n")[0]  # type: ignore[attr-defined]
    return " ".join([stated, *classifiers])


def manifest(documents: list[Document]) -> dict:
    """The facts about the training texts for the model card: counts, characters, one hash over names and texts,
    held-out names."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.name.encode() + b"\0" + document.text.encode() + b"\0")
    packages = sorted({d.name.split(":")[0] for d in documents if ":" in d.name})
    return {
        "python": platform.python_version(),
        "files": len(documents),
        "characters": sum(len(d.text) for d in documents),
        "sha256": digest.hexdigest(),
        "packages": packages,
        "held_out": [d.name for d in documents if d.held_out],
        "trained_on": [d.name for d in documents if not d.held_out],
    }
