"""How extensions are found, and that a broken one is not hidden."""

import sys

import pytest

from speclab import extensions as package
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A second folder in which extensions are looked for."""
    extensions.load()  # what the real ones have added stays
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


def test_a_command_is_found_by_its_name(folder):
    """One that is not there is one line, also where its folder is left with something else in it."""
    write(folder, "one", "")
    (folder / "one" / "__main__.py").write_text("def main(argv):\n    return len(argv)\n")
    (folder / "left").mkdir()
    assert extensions.command("one")(["a", "b"]) == 2
    for name in ("left", "nowhere"):
        with pytest.raises(EnvironmentProblem, match=f"git checkout -- speclab/extensions/{name}"):
            extensions.command(name)


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


def test_a_family_is_listed_once_in_the_order_in_which_families_came(monkeypatch):
    monkeypatch.setattr(extensions, "FAMILIES", [])
    for place in ("b:B", "a:A", "b:B"):
        extensions.add_family(place)
    assert extensions.FAMILIES == ["b:B", "a:A"]
