"""Bad inputs end in one line that names the cause and what to do, with the right exit code, and nothing is half done.

The table is in bad_inputs.py.
"""

import importlib
import io
import os
import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch

from speclab.models import loading
from speclab.system.files import ROOT
from tests.cli.bad_inputs import ROWS, USUAL, Row, places

ADVICE = (
    r"\b(add|check|choose|compare|correct|download|free|give|leave|put|remove|rename|run|see|shorten|try|type|use)\b"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pair_folder) -> Path:
    """The files that the commands of the table name."""
    made = tmp_path_factory.mktemp("bad")
    places(made, pair_folder)
    return made


def files_of(*folders: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time."""
    found = {}
    for folder in folders:
        for where, _, names in os.walk(folder):
            for name in names:
                entry = os.lstat(os.path.join(where, name))
                found[os.path.join(where, name)] = entry.st_size, entry.st_mtime_ns
    return found


def words_of(command: str) -> tuple[str, list[str]]:
    """The module of a command, and its words after USUAL's."""
    script, *words = shlex.split(command.replace("RESULTS", shlex.quote(str(ROOT / "results"))))
    if script == "-m":
        script, *words = words
    return script.removesuffix(".py"), [*USUAL.get(script, []), *words]


def is_one_line(err: str, *said: str) -> None:
    """One line for a person: the cause, advice, and nothing that commands a terminal."""
    assert err.endswith("\n")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1, err
    assert err[:-1].isprintable()
    assert re.search(ADVICE, err), f"no advice: {err}"
    for word in said:
        assert word in err


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ascii(row.command)[1:-1][:69])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row: Row):
    check_row(folder, capfd, monkeypatch, row)


def check_row(folder: Path, capfd, monkeypatch, row: Row) -> None:
    """In particular nothing is said before it, so nothing was measured or decoded, and no file is new or other."""
    if "--device cuda" in row.command and torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    module, words = words_of(row.command)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(row.stdin)))
    if row.early:
        monkeypatch.setattr(loading, "load_model", lambda *a, **k: pytest.fail("weights were read"))
    before = files_of(folder, ROOT / "results", ROOT / "plots")
    package = importlib.import_module(module)
    main = (importlib.import_module(f"{module}.__main__") if hasattr(package, "__path__") else package).main
    with warnings.catch_warnings(record=True) as warned:  # what Python would print on standard error
        warnings.simplefilter("always", UserWarning)
        code = main(words)
    out, err = capfd.readouterr()
    is_one_line(err, *row.said)
    assert code == row.code
    assert out == ""
    assert [str(warning.message) for warning in warned if issubclass(warning.category, UserWarning)] == []
    assert files_of(folder, ROOT / "results", ROOT / "plots") == before


def test_the_table_knows_every_script():
    assert len({(row.command, row.stdin) for row in ROWS}) == len(ROWS)
    assert len({words_of(row.command)[0] for row in ROWS}) == 12
