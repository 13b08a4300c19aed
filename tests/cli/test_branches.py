"""Drafts with branches are refused where something knows chains only."""

import pytest

import compare
import optimized_speculative
from tests.branching import add_branching
from tests.cli.test_bad_inputs import is_one_line
from tests.rules import LOSSLESS, make_known


@pytest.mark.parametrize("script", [compare, optimized_speculative])
def test_a_rule_for_chains_judges_no_branches(monkeypatch, capsys, script):
    make_known(monkeypatch)
    add_branching(monkeypatch)
    assert script.main(["--draft", "branching", "--rule", LOSSLESS.name, "--prompt", "x"]) == 2
    is_one_line(
        capsys.readouterr().err, f"--rule {LOSSLESS.name} knows chains only", "branching has branches", "leave it"
    )
