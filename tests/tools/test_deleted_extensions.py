"""The check that extensions can be deleted: what is left in the copies."""

import pytest

from speclab.system.files import ROOT
from tools import extensions


@pytest.mark.parametrize("n", [0, 1])
def test_a_copy_holds_all_tracked_files_but_the_extensions(tmp_path, n):
    names = extensions.names()[:n]
    copy = extensions.copied(tmp_path / "copy", names)
    gone = [ROOT / extensions.FOLDER / name for name in names]
    there = {path.relative_to(copy) for path in copy.rglob("*.py")}
    assert there
    assert there <= {path.relative_to(ROOT) for path in ROOT.rglob("*.py")}
    assert not any((copy / path.relative_to(ROOT)).exists() for path in gone)
    assert all((copy / extensions.FOLDER / name / "__init__.py").exists() for name in extensions.names()[n:])
