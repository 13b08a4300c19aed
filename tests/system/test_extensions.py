"""How extensions are found, and that a broken one is not hidden."""

import sys

import pytest

from speclab import extensions as package
from speclab.system import extensions


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A second folder in which extensions are looked for."""
    extensions.load()  # what the real ones have added stays
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
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


def test_a_new_folder_is_registered_once(folder, monkeypatch):
    monkeypatch.setattr(extensions, "FAMILIES", [])
    write(folder, "one", "from speclab.system import extensions\nextensions.FAMILIES.append('one')\n")
    extensions.load()
    extensions.load()
    assert extensions.FAMILIES.count("one") == 1


def test_the_line_of_a_command_is_that_of_its_package(folder):
    write(folder, "one", "raise KeyError")
    (folder / "one" / "__init__.py").write_text('"""Does one thing.\n\nAnd more is said of it."""\n')
    assert "one" not in extensions.commands()
    (folder / "one" / "__main__.py").write_text("raise KeyError")
    assert extensions.commands()["one"] == "Does one thing"


def test_what_only_brings_a_command_is_not_imported_by_others(folder):
    write(folder, "one", "")
    (folder / "one" / "register.py").unlink()
    (folder / "one" / "__init__.py").write_text("raise KeyError")
    extensions.load()


def test_a_broken_extension_is_not_hidden(folder):
    write(folder, "broken", "import a_module_that_does_not_exist")
    with pytest.raises(ModuleNotFoundError):
        extensions.load()
