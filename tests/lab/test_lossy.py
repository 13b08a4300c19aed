"""Accept rules with a law of their own in a run: the distance from the target's law is measured, and no speed stands
without it.

The rules are the stand-ins of tests/rules.py.
"""

import math

import pytest

import compare
import optimized_speculative
from speclab.lab import comparison
from speclab.present.screen import screen, small_print
from speclab.records.files import ComparisonRun
from tests.lab.conftest import call
from tests.rules import make_known


@pytest.fixture(autouse=True)
def known(monkeypatch):
    make_known(monkeypatch)


@pytest.mark.parametrize("words", [("--temperature", "0"), ("--temperature", "0,0.8"), ()])
def test_greedy_decoding_is_refused(words, capsys):
    """Where nothing is lossy, nothing may be called that."""
    assert compare.main(["--target", "nowhere", "--rule", "credulous", *words]) == 2
    assert "give --temperature above 0" in capsys.readouterr().err
    if len(words) == 0 or words[1] == "0":
        assert optimized_speculative.main(["--target", "nowhere", "--rule", "credulous", *words]) == 2
        assert "give --temperature above 0" in capsys.readouterr().err


@pytest.fixture
def run(pair_folder, tmp_path):
    """compare.py on the tiny pair with a rule.  -> exit code, stdout, the record"""

    def ran(rule: str, *words: str) -> tuple[int, str, ComparisonRun]:
        usual = ("-k", "0,3", "--max-new-tokens", "24", "--repeats", "2", "--temperature", "0.8", "--rule", rule)
        found = call(pair_folder, tmp_path, *usual, *words)
        return found.code, found.out, found.record

    return ran


def test_every_row_of_a_lossy_rule_says_so_and_how_far_it_is_off(run, monkeypatch):
    code, out, record = run("credulous")
    assert code == 0
    assert record.settings["rule"] == "credulous"
    assert "rule    credulous: LOSSY" in out
    drafted = [row for row in record.rows if row.draft and row.draft_length]
    assert {row.prompt_kind for row in drafted} == {"all", "code", "prose", "copy"}
    assert all(row.lossy_rule == "credulous" and row.forecast is None for row in drafted)
    assert all(row.lossy_rule is row.total_variation is None for row in record.rows if not row.draft_length)
    for entry in record.correctness:
        assert entry["passed"]
        assert ("lossy_rule" in entry) == entry["arm"].endswith("k=3")
    shown = screen(record)
    assert "x LOSSY -" in next(line for line in shown.splitlines() if line.startswith("model     3"))
    assert "no difference found" not in shown
    assert "LOSSY, accept rule credulous" in small_print(record)


def test_the_z_statistics_are_a_fact_and_impossible_tokens_a_failure(run, monkeypatch):
    """Beyond the bound the run exits 0; a token that the target cannot emit is wrong with any rule."""
    right = comparison.losslessness.z_statistics
    result = lambda surprise: lambda places: right(places)._replace(residual=40.0, surprise=surprise)  # noqa: E731
    monkeypatch.setattr(comparison.losslessness, "z_statistics", result(9.0))
    code, out, _ = run("credulous", "-k", "3", "--draft", "ngram", "--repeats", "1")
    assert code == 0
    assert "z_S = +40.00" in out
    monkeypatch.setattr(comparison.losslessness, "z_statistics", result(math.inf))
    code, out, _ = run("credulous", "-k", "3", "--draft", "ngram", "--repeats", "1")
    assert code == 1
    assert "NOT the target's distribution" in " ".join(out.split())


def test_one_script_says_so_at_its_end(pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--prompt", "def f(x):"]
    words += ["--max-new-tokens", "12", "--threads", "1", "--engine", "eager", "--temperature", "0.8", "--rule"]
    assert optimized_speculative.main([*words, "credulous"]) == 0
    assert "LOSSY: the texts leave" in capsys.readouterr().out
    assert optimized_speculative.main([*words, "renamed"]) == 0
    assert "LOSSY" not in capsys.readouterr().out
