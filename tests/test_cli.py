"""Bad input: one line that names the cause and the next thing to type, exit code 2 or 3, nothing half-written."""

import io
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import baseline_autoregressive
import compare
import optimized_speculative
from experiments import comparison


@pytest.fixture
def run(pair_folder, capsys, monkeypatch):
    """Call a script's main() on the tiny pair; returns (exit code, stdout, stderr)."""

    def call(script, *words, target=True):
        flags = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager"] if target else []
        code = script.main([*flags, *words])
        return (code, *capsys.readouterr())

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return call


def refused(result: tuple[int, str, str], code: int, *words: str) -> None:
    """Exactly one line on stderr, with these words in it, and the exit code."""
    assert result[0] == code
    lines = [line for line in result[2].splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in result[2]
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("script", "words", "code", "named"),
    [
        (optimized_speculative, ["-k", "-1"], 2, ["-1", "--help"]),
        (optimized_speculative, ["-k", "many"], 2, ["many"]),
        (compare, ["-k", "2,-4"], 2, ["-k 2,-4"]),
        (compare, ["-k", "two"], 2, ["-k 2,4,8"]),
        (compare, ["--temperature", "warm"], 2, ["--temperature"]),
        (compare, ["--draft", ""], 2, ["--draft model,ngram"]),
        (compare, ["--quick", "--full"], 2, ["--quick"]),
        (compare, ["--sweep", "context", "--profile", "x.json"], 2, ["--profile"]),
        (baseline_autoregressive, ["--engine", "slow"], 2, ["slow"]),
        (baseline_autoregressive, ["--target", "lab:big"], 2, ["lab:big", "lab:200m"]),
        (baseline_autoregressive, ["--target", "lab:1m"], 2, ["lab:1m", "smallest"]),
        (baseline_autoregressive, ["--target", "lab:900b"], 3, ["lab:900b", "GB"]),
        (optimized_speculative, ["--prompt", "x", "--draft", "lab:1k"], 2, ["tokenizer"]),
        (baseline_autoregressive, ["--temperature", "-1"], 2, ["temperature"]),
        (baseline_autoregressive, ["--top-p", "0"], 2, ["top-p"]),
        (baseline_autoregressive, ["--prompt", ""], 2, ["empty", "--prompt"]),
        (baseline_autoregressive, ["--prompt", "x", "--max-new-tokens", "600"], 2, ["512", "--max-new-tokens"]),
        (baseline_autoregressive, ["--prompts", "no/such/file.txt"], 2, ["no/such/file.txt"]),
        (baseline_autoregressive, ["--max-new-tokens", "0"], 2, ["0 is too small"]),
        (baseline_autoregressive, ["--nonsense"], 2, ["--nonsense", "--help"]),
        (optimized_speculative, ["--prompt", "x", "--draft", "dial:1.5"], 2, ["dial:0.8"]),
        (optimized_speculative, ["--prompt", "x", "--draft", "dial:high"], 2, ["dial:0.8"]),
        (optimized_speculative, ["--prompt", "x", "--draft", "dial:1", "--temperature", "1"], 2, ["--temperature 0"]),
        (optimized_speculative, ["--prompt", "x", "--draft", "./no/such/draft"], 3, ["./no/such/draft"]),
        (optimized_speculative, ["--prompt", "x", "--draft", "no-such-draft-kind"], 3, ["no-such-draft-kind"]),
    ],
)
def test_bad_words_are_one_line(run, script, words, code, named, pair_folder):
    if "dial" in " ".join(words):
        words = [w + f":{pair_folder / 'draft'}" if w.startswith("dial") else w for w in words]
    refused(run(script, *words), code, *named)


def test_missing_target_folder(run):
    refused(run(baseline_autoregressive, "--target", "./nowhere", target=False), 3, "./nowhere", "save_pretrained")


def test_hub_name_without_network(run):
    refused(run(baseline_autoregressive, "--target", "somebody/some-model", target=False), 3, "somebody/some-model")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu(run):
    refused(run(baseline_autoregressive, "--device", "cuda"), 3, "--device cuda", "--device cpu")


def test_folder_that_is_no_model(run, tmp_path):
    refused(run(baseline_autoregressive, "--target", str(tmp_path), target=False), 3, "cannot load")


def test_other_tokenizer_is_refused_by_its_ids_not_its_width(run, pair_folder, tmp_path):
    """Same number of ids, two of them swapped: the logits' width cannot tell."""
    shutil.copytree(pair_folder / "draft", tmp_path / "swapped")
    file = tmp_path / "swapped" / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(content))
    result = run(optimized_speculative, "--prompt", "ab", "--draft", str(tmp_path / "swapped"))
    refused(result, 2, "different tokenizers", "--draft ngram")


def test_wider_draft_with_the_same_tokenizer_is_welcome(run, pair_folder, tmp_path):
    """Padded output rows (as in Qwen2.5) are cut off, not refused."""
    from tests.conftest import tiny_llama

    shutil.copytree(pair_folder / "draft", tmp_path / "wide")
    width = json.loads((pair_folder / "draft" / "config.json").read_text())["vocab_size"]
    tiny_llama(1, vocab_size=width + 64, dtype=torch.float32).save_pretrained(tmp_path / "wide")
    code, out, _ = run(optimized_speculative, "--prompt", "def f", "--draft", str(tmp_path / "wide"))
    assert code == 0
    assert "rounds" in out


def test_empty_prompts_file(run, tmp_path):
    (tmp_path / "p.txt").write_text("%%\n\n%%\n")
    refused(run(baseline_autoregressive, "--prompts", str(tmp_path / "p.txt")), 2, "no prompt in")


def test_binary_prompts_file(run, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    refused(run(baseline_autoregressive, "--prompts", str(tmp_path / "p.txt")), 2, "UTF-8")


def test_damaged_weights_are_named(run, pair_folder, tmp_path):
    """One NaN in the target's norm: the error comes before any text is called good."""
    shutil.copytree(pair_folder / "target", tmp_path / "bad")
    weights = load_file(tmp_path / "bad" / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "bad" / "model.safetensors", metadata={"format": "pt"})
    for script in (baseline_autoregressive, optimized_speculative):
        words = ["--draft", "ngram"] if script is optimized_speculative else []
        result = run(script, "--target", str(tmp_path / "bad"), "--prompt", "def f", *words, target=False)
        refused(result, 3, "not finite")


def test_unwritable_output_folder_is_found_before_measuring(run, tmp_path, monkeypatch):
    """A file where the folder should be. Nothing is measured, nothing is written."""
    (tmp_path / "results").write_text("in the way")
    monkeypatch.setattr(comparison, "measure", lambda *a: pytest.fail("measured before checking the folder"))
    refused(run(compare, "--out-dir", str(tmp_path)), 3, "--out-dir")
    assert [p.name for p in tmp_path.iterdir()] == ["results"]


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
    refused(run(optimized_speculative, "--draft", f"./no{evil}"), 3, "./no␛]0;mine␇")


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
