"""How extensions are found, and that a broken one is not hidden."""

import re
import sys

import pytest

from speclab import extensions as package
from speclab.extensions.__main__ import main
from speclab.system import extensions


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A second folder in which extensions are looked for."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    extensions.modules.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(extensions.PACKAGE):
            del sys.modules[name]


def write(folder, name: str, line: str, **modules: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(line)
    for module, text in modules.items():
        (folder / name / f"{module}.py").write_text(text)


def test_a_new_folder_is_found_and_imported_once(folder):
    write(folder, "one", "", planted="NAMES = []")
    write(folder, "other", "raise KeyError", another="")  # has no such module
    for module in extensions.modules("planted"):
        module.NAMES.append("one")
    assert [module.NAMES for module in extensions.modules("planted")] == [["one"]]


def test_the_line_of_a_command_is_that_of_its_package(folder, capsys):
    line = '"""Does one thing.\n\nAnd more is said of it."""\n'
    write(folder, "one", line, __main__="raise KeyError")
    write(folder, "other", line, planted="")
    assert main([]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^python -m speclab\.extensions\.one +does one thing$", out, re.MULTILINE)
    assert "other" not in out


def test_a_broken_extension_is_not_hidden(folder):
    write(folder, "broken", "", planted="import a_module_that_does_not_exist")
    with pytest.raises(ModuleNotFoundError):
        extensions.modules("planted")
