"""The text the lab's models learn from: Python sources that are already on the reader's disk.

Every Python installation carries its standard library, so a pair can be trained with no network. A twenty-fifth of the
files, picked by a hash of their names, is held out: losses are measured there.
"""

import ast
import contextlib
import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Not prose and not ordinary code: test suites (absent from many distributions), generated code-page tables, and one
# giant string literal with the language reference in it.
SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "encodings", "lib2to3"}
HELD_OUT_EVERY = 25
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)  # nodes that may have a docstring


@dataclass(frozen=True)
class Document:
    """One source file. `name` is relative to the library, never an absolute path."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % HELD_OUT_EVERY == 0


def standard_library() -> Iterator[Document]:
    """Return the sources of the running Python's standard library, sorted by name, without tests and tables.

    A file that is empty or no text in UTF-8 is left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED.isdisjoint(parts):
            with contextlib.suppress(UnicodeDecodeError, OSError):
                if (text := path.read_text(encoding="utf-8")).strip():
                    yield Document("/".join(parts), text)


def prose(source: str) -> Iterator[str]:
    """The docstrings of a Python source that have three lines or more; none of one that this Python cannot parse."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text and text.count("\n") > 1:
                yield f'"""{text}\n"""'
