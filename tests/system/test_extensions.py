"""How extensions are found, and that a broken one is not hidden."""

import sys

import pytest

from speclab import extensions as package
from speclab.system import extensions


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A second folder in which extensions are looked for."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(extensions, "COMMANDS", {})
    before = set(sys.modules)
    extensions.load.cache_clear()
    yield tmp_path
    extensions.load.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(extensions.PACKAGE):
            del sys.modules[name]


def write(folder, name: str, register: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    (folder / name / "register.py").write_text(register)


def test_a_new_folder_adds_its_command_once(folder):
    for name in ("one", "other"):
        write(folder, name, f"from speclab.system.extensions import add_command\nadd_command('{name}', 'a line')\n")
    extensions.load()
    extensions.load()
    assert {name: extensions.COMMANDS[name] for name in ("one", "other")} == {"one": "a line", "other": "a line"}


@pytest.mark.parametrize(
    ("register", "error"),
    [
        ("import a_module_that_does_not_exist", ModuleNotFoundError),
        ("raise KeyError", KeyError),
        ("from speclab.system.extensions import add_command as a\na('x', '')\na('x', '')", ValueError),
    ],
)
def test_a_broken_extension_is_not_hidden(folder, register, error):
    write(folder, "broken", register)
    with pytest.raises(error):
        extensions.load()
