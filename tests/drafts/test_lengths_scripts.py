"""-k auto in the scripts."""

import pytest

import compare
import optimized_speculative
from speclab.models import prompts
from speclab.records.files import ComparisonRun, read

TINY = ["--max-new-tokens", "24", "--threads", "1", "--engine", "eager"]


def test_one_script_chooses_its_lengths(pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--prompt", "def f(x):"]
    texts = []
    for k in ("auto", "2"):
        assert optimized_speculative.main([*words, *TINY, "--ignore-eos", "-k", k]) == 0
        out, err = capsys.readouterr()
        texts.append(out.split("def f(x):")[-1].splitlines()[0])
        assert ("; chosen in the run, at most 8 tokens" if k == "auto" else "; k = 2") in err
    assert texts[0] == texts[1]


def test_a_comparison_sets_it_beside_the_best_fixed_length(pair_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    words = ["--target", str(pair_folder / "target"), "-k", "2,auto"]
    words += ["--draft", f"{pair_folder / 'target'},hybrid:ngram+{pair_folder / 'draft'}"]
    assert compare.main([*words, *TINY, "--limit", "1", "--out-dir", str(tmp_path)]) == 0
    assert "token for token: identical" in capsys.readouterr().out
    run = read(tmp_path / "results" / "local.json", ComparisonRun)
    hybrid = "hybrid:ngram+draft"
    rows = {(r.method, r.temperature): r for r in run.rows if r.prompt_kind == "all" and r.draft}
    assert set(rows) == {(name + auto, t) for name in ("model", hybrid) for auto in ("", " auto") for t in (0.0, 0.8)}
    for (method, temperature), row in rows.items():
        auto = method.endswith("auto")
        learns = auto or method == hybrid  # then there is a forecast where the known text says the rounds
        assert (row.forecast is None) == (learns and temperature > 0)
        if learns and temperature == 0:
            assert row.forecast_tokens_per_round == pytest.approx(row.tokens_per_round)
        assert row.book_formula is None or not auto
        assert (row.draft_length == 8) == auto
    assert rows["model auto", 0.0].n_accepted
    assert all(entry["passed"] for entry in run.correctness)
    page = (tmp_path / "results" / "local.md").read_text()
    assert "≤ 8" in page
    assert {hybrid, f"{hybrid}, lookup"} <= {entry["drafter"] for entry in run.costs}


@pytest.mark.parametrize("script", [compare, optimized_speculative])
def test_a_dial_is_refused(script, pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--prompt", "x", "--draft", "dial:0.8:free", "-k", "auto"]
    assert script.main([*words, *TINY]) == 2
    assert "and dial:0.8:free replays the text; give -k a number" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["autos", "2,auto,x", "auto,-1", ""])
def test_what_is_no_length_is_refused(value, capsys):
    assert compare.main(["-k", value]) == 2
    assert capsys.readouterr().err.count("error: ") == 1
