"""Heads, hybrids and -k auto in the scripts, from folders."""

import pytest

import compare
import optimized_speculative
from speclab import load
from speclab.models import loading, prompts
from speclab.records.files import ComparisonRun, read
from tests.heads import tiny_head
from training.writing import write_feature

TINY = ["--max-new-tokens", "24", "--threads", "1", "--engine", "eager"]


@pytest.fixture
def head(pair_folder, tmp_path):
    """A random head for the tiny pair's target, as --draft takes it."""
    target = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    width, vocab = target.config.hidden_size, target.config.vocab_size
    made = tiny_head(hidden=width, vocab=vocab, target_hidden=width).float()
    write_feature(tmp_path / "feature", made, "tiny", ["LlamaForCausalLM"], 4)
    return f"feature:{tmp_path / 'feature'}"


def test_one_script_chooses_its_lengths(pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--prompt", "def f(x):"]
    texts = []
    for k in ("auto", "2"):
        assert optimized_speculative.main([*words, *TINY, "--ignore-eos", "-k", k]) == 0
        out, err = capsys.readouterr()
        texts.append(out.split("def f(x):")[-1].splitlines()[0])
        assert ("; chosen in the run, at most 8 tokens" if k == "auto" else "; k = 2") in err
    assert texts[0] == texts[1]


def test_a_comparison_proves_forecasts_and_names_them_beside_fixed_lengths(
    pair_folder, head, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    words = ["--target", str(pair_folder / "target"), "-k", "2,auto", "--limit", "1", "--out-dir", str(tmp_path)]
    drafts = f"{pair_folder / 'target'},hybrid:ngram+{pair_folder / 'draft'},{head}"
    assert compare.main([*words, "--draft", drafts, *TINY]) == 0
    assert "token for token: identical" in capsys.readouterr().out
    run = read(tmp_path / "results" / "local.json", ComparisonRun)
    feature, hybrid = "feature:feature", "hybrid:ngram+draft"
    rows = {(r.method, r.temperature): r for r in run.rows if r.prompt_kind == "all" and r.draft}
    kinds = ("model", hybrid, feature)
    assert set(rows) == {(name + auto, t) for name in kinds for auto in ("", " auto") for t in (0.0, 0.8)}
    for (method, temperature), row in rows.items():
        auto = method.endswith("auto")
        learns = auto or method == hybrid  # then there is a forecast where the known text says the rounds
        assert (row.forecast is None) == (learns and temperature > 0)
        if learns and temperature == 0:
            assert row.forecast_tokens_per_round == pytest.approx(row.tokens_per_round)
        assert row.accounting
        assert row.book_formula is None or not auto
        assert (row.draft_length == 8) == auto
    assert rows["model auto", 0.0].n_accepted
    assert all(entry["passed"] for entry in run.correctness)
    assert "≤ 8" in (tmp_path / "results" / "local.md").read_text()
    assert {hybrid, f"{hybrid}, lookup"} <= {entry["drafter"] for entry in run.costs}
    assert run.models[feature].startswith(f"{feature}: one layer over the target's states")


def test_a_lab_without_the_head_says_how_to_train_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(loading, "LAB_PAIR", tmp_path)
    assert optimized_speculative.main(["--draft", "feature", "--prompt", "x"]) == 2
    assert "type: python -m training.heads feature" in capsys.readouterr().err
