"""The page and the notebook about the lab from Python: their code runs, and the notebook's outputs are its code's."""

import contextlib
import importlib.util
import inspect
import io
import json
import re

import pytest

from speclab import load, speculate
from speclab.core.counts import Counts
from speclab.system.files import ROOT

PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs(monkeypatch, capsys):
    """In one namespace, from the root of the clone."""
    monkeypatch.chdir(ROOT)
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) == PAGE.read_text("utf-8").count("```python") >= 4
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), namespace)
    out, _ = capsys.readouterr()
    assert "unknown draft kind 'ngrm'; did you mean ngram?" in out
    assert namespace["counts"].n_emitted == 31


def test_the_page_names_every_argument_and_every_ratio():
    text = PAGE.read_text("utf-8")
    for function in (load, speculate):
        signature = re.search(rf"^`{function.__name__}\((.*?)\)`", text, re.MULTILINE)[1]
        names = [word.partition("=")[0] for word in signature.split(", ")]
        assert names == list(inspect.signature(function).parameters)
    ratios = {name for name, value in vars(Counts).items() if isinstance(value, property)}
    assert ratios <= set(re.findall(r"counts\.(\w+)", text))


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_what_its_cells_print(path, monkeypatch):
    """No time is printed in it, so every line counts. Its metadata name what it needs, and what installs that."""
    monkeypatch.chdir(ROOT)
    notebook = json.loads(path.read_text("utf-8"))
    needed = notebook["metadata"].get("speclab", {}).get("needs", [])
    if missing := [name for name in needed if not importlib.util.find_spec(name)]:
        pytest.skip(f"{path.name} needs {missing[0]}")
    namespace: dict = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells[1:])
    for n, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"<cell {n}>", "exec"), namespace)
        kept = "".join("".join(output["text"]) for output in cell["outputs"])
        assert printed.getvalue() == kept, f"type: jupyter execute --inplace {path.name}"
    assert path.stat().st_size < 100_000
