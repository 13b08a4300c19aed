"""--draft feature:HEAD in the scripts, from a folder in the speculators format."""

import pytest

import compare
import optimized_speculative
from speclab import load
from speclab.drafts.heads.files import write_head
from speclab.models import loading, prompts
from speclab.records.files import ComparisonRun, read
from tests.heads import tiny_head


@pytest.fixture
def head(pair_folder, tmp_path):
    """A random head for the tiny pair's target, as --draft takes it."""
    target = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    width, vocab = target.config.hidden_size, target.config.vocab_size
    made = tiny_head(hidden=width, vocab=vocab, target_hidden=width).float()
    write_head(tmp_path / "feature", made, "tiny", ["LlamaForCausalLM"], 4)
    return f"feature:{tmp_path / 'feature'}"


def test_a_comparison_proves_it_forecasts_it_and_names_it(pair_folder, head, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    words = ["--target", str(pair_folder / "target"), "--draft", head, "-k", "2"]
    words += ["--limit", "1", "--max-new-tokens", "16", "--threads", "1", "--engine", "eager"]
    assert compare.main([*words, "--out-dir", str(tmp_path / "out")]) == 0
    assert "token for token: identical" in capsys.readouterr().out
    run = read(tmp_path / "out" / "results" / "local.json", ComparisonRun)
    rows = [row for row in run.rows if row.method == "feature:feature" and row.prompt_kind == "all"]
    assert [row.temperature for row in rows] == [0.0, 0.8]
    assert all(row.forecast is not None for row in rows)
    assert run.models["feature:feature"].startswith("feature:feature: one layer over the target's states")


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("feature:featur", 2, "give a head's folder or hub name, for example feature:build/feature"),
        ("feature:./nowhere", 3, "nowhere"),
        ("feature:", 2, "unknown draft kind 'feature:'"),
        ("featur", 2, "unknown draft kind 'featur'"),
        ("feature:{draft}", 3, "speculators_model_type is None; the draft feature reads eagle3"),
    ],
)
def test_what_is_no_head_is_one_line(pair_folder, capsys, kind, code, message):
    words = ["--target", str(pair_folder / "target"), "--prompt", "x", "--threads", "1", "--engine", "eager"]
    assert optimized_speculative.main([*words, "--draft", kind.format(draft=pair_folder / "draft")]) == code
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ")
    assert message in line


def test_a_lab_without_the_head_says_how_to_train_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(loading, "LAB_PAIR", tmp_path)
    assert optimized_speculative.main(["--draft", "feature", "--prompt", "x"]) == 2
    assert "type: python -m training.heads feature" in capsys.readouterr().err
