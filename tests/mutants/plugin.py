"""A pytest plugin: puts the mutant that $MUTANT names into the lab, before any test is collected.

    MUTANT=tests/mutants/core.txt:ends_the_text_at_id_0 python -m pytest -p tests.mutants.plugin tests/test_gallery.py

An edit changes a module where it is imported. A mutant that is a function puts another one in its place, which many
modules import from lower rooms by name, and some bind as defaults of arguments. They see the wrong one because they are
imported afterwards: each file of mutants imports the rooms that it changes and those below them, nothing above. Where
two modules of one file's rooms share a function by name, a mutant replaces it in both.
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
