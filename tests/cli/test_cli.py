"""Bad input: one line that names the cause and the next thing to type, exit code 2 or 3, nothing half-written."""

import io
import json
import shutil

import pytest
import torch

import baseline_autoregressive
import compare
import optimized_speculative


@pytest.fixture
def run(pair_folder, capsys, monkeypatch):
    """Call a script's main() on the tiny pair; returns (exit code, stdout, stderr)."""

    def call(script, *words, target=True):
        flags = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager"] if target else []
        code = script.main([*flags, *words])
        return (code, *capsys.readouterr())

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return call


def test_wider_draft_with_the_same_tokenizer_is_welcome(run, pair_folder, tmp_path):
    """Padded output rows (as in Qwen2.5) are cut off, not refused."""
    from tests.conftest import tiny_llama

    shutil.copytree(pair_folder / "draft", tmp_path / "wide")
    width = json.loads((pair_folder / "draft" / "config.json").read_text())["vocab_size"]
    tiny_llama(1, vocab_size=width + 64, dtype=torch.float32).save_pretrained(tmp_path / "wide")
    code, out, _ = run(optimized_speculative, "--prompt", "def f", "--draft", str(tmp_path / "wide"))
    assert code == 0
    assert "rounds" in out


def test_nothing_that_is_read_commands_the_terminal(run, pair_folder, tmp_path):
    """A prompt, a file's name and two models' names with an escape sequence in them."""
    evil = "\x1b]0;mine\x07"
    (tmp_path / f"p{evil}.txt").write_text(f"def f(x): {evil}")
    for role in ("target", "draft"):
        shutil.copytree(pair_folder / role, tmp_path / f"{role}{evil}")
    models = ["--target", str(tmp_path / f"target{evil}"), "--draft", str(tmp_path / f"draft{evil}")]
    words = [*models, "--prompts", str(tmp_path / f"p{evil}.txt"), "--max-new-tokens", "12"]
    for stream in ([], ["--stream"]):
        code, out, err = run(optimized_speculative, *words, *stream)
        assert code == 0
        assert "]0;mine" in out
        assert "]0;mine" in err
        assert not {"\x1b", "\x07"} & set(out + err)
    code, out, err = run(compare, *words, "-k", "2", "--temperature", "0", "--out-dir", str(tmp_path / "out"))
    assert code == 0
    page = (tmp_path / "out" / "results" / "local.md").read_text("utf-8")
    assert not {"\x1b", "\x07"} & set(out + err + page)
    code, _, err = run(optimized_speculative, "--draft", f"./no{evil}")
    assert code == 3
    assert "./no␛]0;mine␇" in err


def test_prompts_from_standard_input(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"def one():\n%%\ndef two():\n")))
    code, out, _ = run(baseline_autoregressive, "--prompts", "-", "--max-new-tokens", "4")
    assert code == 0
    assert out.count("=== stdin") == 2


def test_both_scripts_print_the_same_greedy_text(run, pair_folder):
    """Run as a user runs them, streamed and not."""
    words = ["--prompt", "def f(x):", "--max-new-tokens", "20"]
    _, plain, _ = run(baseline_autoregressive, *words)
    draft = ["--draft", str(pair_folder / "draft")]
    _, drafted, _ = run(optimized_speculative, *words, *draft)
    _, streamed, _ = run(optimized_speculative, *words, *draft, "--stream", "-k", "3")
    text = plain.rsplit("\n\n", 1)[0]
    assert len(text) > 40
    assert drafted.startswith(text)
    assert streamed.startswith(text)
    for word in ("rounds", "drafted", "accepted", "alpha", "tokens per round", "tok/s"):
        assert word in drafted
