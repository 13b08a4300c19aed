"""Run the cells of notebooks/*.ipynb and keep what they print as their outputs, without a kernel or a server.

    python -m tools.notebook

The cells of a notebook share one namespace, and what they print is all that they show. A test runs them again and fails
where an output is stale.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import contextlib
import functools
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

from speclab.cli import parsing
from speclab.system.errors import reports_problems
from speclab.system.files import shown, write_all, write_whole
from speclab.system.paths import ROOT
from speclab.system.terminal import note

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook (nbformat 4) whose code cells have been run, in order, with the outputs that this gave.

    Raises what a cell raises.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells, n_run = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            n_run += 1
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"<cell {n_run}>", "exec"), namespace)
            text = printed.getvalue().splitlines(keepends=True)
            stream = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
            cell = cell | {"execution_count": n_run, "outputs": stream}
        cells.append(cell)
    return notebook | {"cells": cells}


def lacks(notebook: dict[str, Any]) -> str:
    """Say in one line what a notebook needs that is not installed; empty where nothing is missing.

    Its metadata name it: `needs`, modules that are not imported, and `type`, what installs them.
    """
    about = notebook.get("metadata", {}).get("speclab", {})
    missing = [name for name in about.get("needs", []) if not importlib.util.find_spec(name)]
    return f"it needs {missing[0]}, which is not installed; type: {about['type']}" if missing else ""


def read(path: Path) -> dict[str, Any]:
    """The notebook in a file."""
    return json.loads(path.read_text("utf-8"))


def text_of(notebook: dict[str, Any]) -> str:
    """The text of a notebook's file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parsing.make_parser(__doc__).parse_args(argv)
    notebooks = {path: read(path) for path in NOTEBOOKS}
    for path, notebook in notebooks.items():
        if why := lacks(notebook):
            note(f"{shown(path)} stays as it is: {why}")
    can_run = {path: notebook for path, notebook in notebooks.items() if not lacks(notebook)}
    texts = {path: text_of(executed(notebook)) for path, notebook in can_run.items()}  # before anything is written
    write_all([functools.partial(write_whole, path, text) for path, text in texts.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
