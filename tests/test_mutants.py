"""The gallery itself: its mutants change something, their killers exist, and only a failed assertion is a kill."""

import ast
import importlib.util
import sys
from contextlib import nullcontext
from unittest import mock

import pytest

from tests import gallery
from tests.gallery import ROOT, all_mutants, judge
from tests.mutants.bugs import Edits

MUTANTS = all_mutants()


def test_every_bug_has_a_mutant_and_none_is_there_twice():
    assert {m.bug for m in MUTANTS} == set(gallery.all_bugs())
    bodies = {(m.apply.name, *m.apply.changes) for m in MUTANTS}
    names, descriptions = ({getattr(m, key) for m in MUTANTS} for key in ("name", "what"))
    assert len(bodies) == len(names) == len(descriptions) == len(MUTANTS)
    assert "" not in descriptions


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_an_edit_leaves_a_module(mutant):
    """And each of its texts is there exactly once, or `text` raises."""
    assert ast.dump(ast.parse(mutant.apply.text())) != ast.dump(ast.parse(mutant.apply.file.read_text("utf-8")))


@pytest.mark.parametrize("old", ["no such text", "self", "n_rounds: int = 0"])
def test_an_edit_is_made_in_one_place_where_its_module_is_imported(old):
    edits = Edits("core/counts", [(old, "n_rounds: int = 9")])
    assert edits.find_spec("speclab.core.rounds") is None
    with nullcontext() if "int" in old else pytest.raises(ImportError, match=old):
        spec = edits.find_spec("speclab.core.counts")
        module = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, {spec.name: module}):
            spec.loader.exec_module(module)
        assert module.Counts().n_rounds == 9
    with pytest.raises(ImportError, match="already"):
        edits()


def test_every_killing_test_exists():
    wanted = {test.partition("[")[0] for mutant in MUTANTS for test in mutant.killed_by}
    assert all(mutant.killed_by for mutant in MUTANTS)
    there = set()
    for file in {test.partition("::")[0] for test in wanted}:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        there |= {f"{file}::{f.name}" for f in tree.body if isinstance(f, ast.FunctionDef)}
    assert wanted <= there


KILLER = "tests/test_lossless.py::test_every_uniform_is_used_once"


@pytest.mark.parametrize(
    ("exit_code", "output", "verdict"),
    [
        (1, f"FAILED {KILLER} - assert 1 == 0", "killed"),
        (1, f"FAILED {KILLER}[4] - AssertionError: tensors differ", "killed"),
        (1, f"FAILED {KILLER} - NameError: name 'x' is not defined", "NOT KILLED: NameError"),
        (1, f"ERROR {KILLER} - assert 1 == 0", "NOT KILLED: test_every_uniform_is_used_once did not fail"),
        (1, "FAILED tests/other.py::test_x - assert 0", "NOT KILLED: test_every_uniform_is_used_once did not fail"),
        (0, "1 passed", "SURVIVED"),
        (2, "ERROR tests/test_lossless.py - SyntaxError", "NOT KILLED: pytest exit code 2"),
        (4, "ERROR: not found", "NOT KILLED: pytest exit code 4"),
        (None, "", "NOT KILLED: ran out of time"),
    ],
)
def test_only_a_failed_assertion_of_the_named_test_is_a_kill(exit_code, output, verdict):
    mutant = next(m for m in MUTANTS if m.killed_by[0] == KILLER)._replace(killed_by=(KILLER,))
    assert judge(mutant, exit_code, output) == verdict
    assert judge(mutant._replace(killed_by=(f"{KILLER}[4]",)), exit_code, output) == verdict


def test_a_mutant_that_lives_is_an_error(monkeypatch):
    ran = []
    monkeypatch.setattr(gallery, "run_tests", lambda context, mutant: ran.append(mutant.bug) or (0, ""))
    monkeypatch.setattr(gallery, "forking", lambda: None)
    assert gallery.main(["--only", "4"]) == 1
    assert ran == [mutant.bug for mutant in gallery.all_mutants() if mutant.bug == 4]
