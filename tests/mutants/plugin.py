"""A pytest plugin: puts the mutant that $MUTANT names into the lab, before any test is collected.

    MUTANT=tests/mutants/core.txt:ends_the_text_at_id_0 python -m pytest -p tests.mutants.plugin tests/test_lossless.py

The edit changes a module where it is imported, so nothing of the lab may be imported before.
"""

import os

import pytest

from tests.mutants.bugs import ROOT, mutants_of

_file, _, _name = os.environ["MUTANT"].partition(":")
for _mutant in mutants_of(ROOT / _file):
    if _mutant.name == os.environ["MUTANT"]:
        _mutant.apply()
_failed: set[str] = set()  # names of tests


def pytest_runtest_makereport(item, call) -> None:
    """Note a test of which a case has failed."""
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        _failed.add(_test_of(item))


def pytest_runtest_setup(item) -> None:
    """With a mutant, leave out a test's other cases: one that fails is enough."""
    if _name and _test_of(item) in _failed:
        pytest.skip("another case has failed")


def _test_of(item) -> str:
    return item.nodeid.partition("[")[0]
