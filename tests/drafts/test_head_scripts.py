"""--draft feature:HEAD and block:HEAD in the scripts, from a folder in the speculators format."""

import pytest

import compare
import optimized_speculative
from speclab import load
from speclab.drafts.heads.files import write_head
from speclab.drafts.kinds import LAB_HEADS
from speclab.models import prompts
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from tests.heads import tiny_block_head, tiny_head


@pytest.fixture
def heads(pair_folder, tmp_path):
    """Random heads for the tiny pair's target, as --draft takes them."""
    target = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    width, vocab = target.config.hidden_size, target.config.vocab_size
    written = {
        "feature": tiny_head(hidden=width, vocab=vocab, target_hidden=width),
        "block": tiny_block_head(target, markov_rank=3),
    }
    for kind, head in written.items():
        write_head(tmp_path / kind, head.float(), "tiny", ["LlamaForCausalLM"], 4)
    return [f"{kind}:{tmp_path / kind}" for kind in written]


def test_one_script_decodes_with_it(pair_folder, heads, capsys):
    words = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", "12", "--ignore-eos"]
    texts = set()
    for draft in (*heads, str(pair_folder / "draft")):
        assert optimized_speculative.main([*words, "--draft", draft, "--threads", "1", "--engine", "eager"]) == 0
        texts.add(capsys.readouterr().out.split("def f(x):")[-1].splitlines()[0])
    assert len(texts) == 1


def test_a_comparison_proves_it_forecasts_it_and_names_it(pair_folder, heads, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    words = ["--target", str(pair_folder / "target"), "--draft", ",".join(heads), "-k", "2"]
    words += ["--limit", "1", "--max-new-tokens", "16", "--threads", "1", "--engine", "eager"]
    assert compare.main([*words, "--out-dir", str(tmp_path / "out")]) == 0
    assert "token for token: identical" in capsys.readouterr().out
    run = read(tmp_path / "out" / "results" / "local.json", ComparisonRun)
    for name, layers in {"feature:feature": "one layer", "block:block": "2 layers"}.items():
        rows = [row for row in run.rows if row.method == name and row.prompt_kind == "all"]
        assert [row.temperature for row in rows] == [0.0, 0.8]
        assert all(row.forecast is not None for row in rows)
        assert run.models[name].startswith(f"{name}: {layers} over the target's states")


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("feature:featur", 2, "give a head's folder or hub name, for example feature:build/feature/out"),
        ("feature:./nowhere", 3, "nowhere"),
        ("block:", 2, "unknown draft kind 'block:'"),
        ("dspark", 2, "unknown draft kind 'dspark'"),
        ("block:{draft}", 3, "speculators_model_type is None; the draft block reads dflash and dspark"),
        ("featur", 2, "unknown draft kind 'featur'"),
        ("feature:{draft}", 3, "speculators_model_type is None; the draft feature reads eagle3"),
    ],
)
def test_what_is_no_head_is_one_line(pair_folder, capsys, kind, code, message):
    words = [
        "--target",
        str(pair_folder / "target"),
        "--prompt",
        "x",
        "--draft",
        kind.format(draft=pair_folder / "draft"),
    ]
    assert optimized_speculative.main([*words, "--threads", "1", "--engine", "eager"]) == code
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_a_lab_without_the_head_says_how_to_train_it(monkeypatch, capsys, tmp_path, kind):
    monkeypatch.setitem(LAB_HEADS, kind, str(tmp_path / kind))
    assert optimized_speculative.main(["--draft", kind, "--prompt", "x"]) == 2
    assert f"type: python -m training.heads {kind}" in capsys.readouterr().err
