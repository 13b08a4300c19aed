"""The page and the notebook about the lab from Python: their code runs, and the notebook's outputs are its code's."""

import copy
import json
import re

import pytest

from speclab.system.paths import ROOT
from tools import notebook

PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_page_runs(monkeypatch, capsys):
    """In one namespace, from the root of the clone."""
    monkeypatch.chdir(ROOT)
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) == PAGE.read_text("utf-8").count("```python") >= 5
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), namespace)
    out, _ = capsys.readouterr()
    assert "unknown draft kind 'ngrm'; did you mean ngram?" in out
    assert namespace["counts"].n_emitted == 31


def test_the_page_names_every_argument_and_every_ratio():
    import inspect

    from speclab import load, speculate
    from speclab.core.counts import Counts

    text = PAGE.read_text("utf-8")
    for function in (load, speculate):
        signature = re.search(rf"^`{function.__name__}\((.*?)\)`", text, re.MULTILINE)[1]
        names = [word.partition("=")[0] for word in signature.split(", ")]
        assert names == list(inspect.signature(function).parameters)
    ratios = {name for name, value in vars(Counts).items() if isinstance(value, property)}
    assert ratios <= set(re.findall(r"counts\.(\w+)", text))


@pytest.mark.parametrize("path", notebook.NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_what_its_cells_print(path, monkeypatch):
    """No time is printed in it, so every line counts. One with a real model runs where that is installed."""
    monkeypatch.chdir(ROOT)
    committed = notebook.read(path)
    if why := notebook.lacks(committed):
        pytest.skip(f"{path.name}: {why}")
    assert notebook.text_of(notebook.executed(copy.deepcopy(committed))) == path.read_text("utf-8"), (
        "run: python -m tools.notebook"
    )
    assert path.stat().st_size < 100_000
    code = [cell for cell in committed["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code[1:])


def made(*sources: str) -> dict:
    """A notebook of these cells."""
    cells = [{"cell_type": "code", "source": [source], "outputs": [], "execution_count": None} for source in sources]
    return {"cells": [{"cell_type": "markdown", "source": ["# x"]}, *cells]}


def test_a_notebook_says_what_is_not_installed():
    needs = {"metadata": {"speclab": {"needs": ["json", "no_such_module"], "type": "make real"}}}
    assert "no_such_module" in notebook.lacks(needs)
    assert notebook.lacks({"metadata": {"speclab": {"needs": ["json"], "type": "make real"}}}) == ""
    assert notebook.lacks(made("x = 1")) == ""


def test_cells_share_names_and_what_they_print_is_kept():
    _, first, second, third = notebook.executed(made("x = 1", "print(x)\nprint(2)", "x += 1"))["cells"]
    assert (first["outputs"], third["outputs"]) == ([], [])
    assert second["outputs"][0]["text"] == ["1\n", "2\n"]
    assert [cell["execution_count"] for cell in (first, second, third)] == [1, 2, 3]


def test_a_cell_that_fails_leaves_the_file_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(made("1 / 0")))
    monkeypatch.setattr(notebook, "NOTEBOOKS", [path])
    before = path.read_text()
    with pytest.raises(ZeroDivisionError):
        notebook.main([])
    assert path.read_text() == before
    path.write_text(json.dumps(made("print(3)")))
    assert notebook.main([]) == 0
    assert '"3\\n"' in path.read_text()
