"""Nothing from a model folder runs, nothing is filled in, and the target keeps its vocabulary."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertLMHeadModel, GenerationConfig

import baseline_autoregressive
import compare
import optimized_speculative
from speclab.lab.decodings import library_generate
from speclab.models import loading
from speclab.models.family import DECODER_ONLY
from speclab.models.outside import generation
from speclab.records.files import ComparisonRun, read
from speclab.system.errors import EnvironmentProblem
from tests.llamas import tiny_llama

FLAGS = ["--threads", "1", "--engine", "eager", "--prompt", "def f(x):", "--max-new-tokens", "12"]
CODE = "import pathlib\npathlib.Path({!r}).write_text('ran')\n"


def edited(folder: Path, name: str, **changes) -> None:
    """Change entries of a JSON file of a model folder; None removes one."""
    file = folder / name
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.fixture
def copied(pair_folder, tmp_path):
    """A copy of the tiny pair whose files a test may change."""
    shutil.copytree(pair_folder, tmp_path / "pair")
    return tmp_path / "pair"


AUTO = {"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
EVIL = {  # a file of a model folder, and the entries that ask for code
    "config": ("config.json", {"model_type": "evil", **AUTO}),
    "known config": ("config.json", AUTO),
    "tokenizer": (
        "tokenizer_config.json",
        {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}},
    ),
    "generate": ("config.json", {}),
    "kernel": ("config.json", {"attn_implementation": "somebody/evil-attention"}),
}


def arm(folder: Path, kind: str) -> Path:
    """Let a model folder ask for code of its own.  -> the file that the code would write"""
    trap, (file, entries) = folder.parent / "trap", EVIL[kind]
    place = folder / ("custom_generate/generate.py" if kind == "generate" else "evil.py")
    place.parent.mkdir(exist_ok=True)
    place.write_text(CODE.format(str(trap)))
    edited(folder, file, **entries)
    return trap


@pytest.mark.parametrize(("role", "kind"), [*(("target", kind) for kind in EVIL), ("draft", "config")])
def test_code_of_a_model_folder_never_runs(copied, monkeypatch, capsys, role, kind):
    """Either the folder is refused in one line, or the library's own code is used; nobody is asked."""
    trap = arm(copied / role, kind)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["--target", str(copied / "target"), "--draft", str(copied / "draft"), *FLAGS]
    code = optimized_speculative.main(words)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert not trap.exists()
    assert (code, len(lines)) == ((0, 0) if kind in ("known config", "generate") else (3, 1))
    assert sys.stdin.read() == "y\n" * 20, "nobody read the standard input"
    for line in lines:
        assert "trust_remote_code" not in line
        assert "y/N" not in line


@pytest.mark.full
def test_yes_on_standard_input_is_no_answer(copied):
    """As a user meets it: a process of its own, and a real standard input."""
    trap, root = arm(copied / "target", "config"), Path(__file__).parent.parent.parent
    words = ["compare.py", "--quick", "--target", str(copied / "target"), "--out-dir", str(copied)]
    given = {"input": "y\n" * 20, "env": {**os.environ, "HF_HUB_OFFLINE": "1"}}
    done = subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, **given)
    assert not trap.exists()
    assert (done.returncode, done.stdout) == (3, "")
    first, last = done.stderr.splitlines()
    assert first == "loading PyTorch"
    assert last.startswith("error: cannot load")
    assert "never run" in last


def refused(capsys, folder: Path, *words: str, script=baseline_autoregressive, code: int = 3) -> str:
    """Run a script on a folder; its one error line."""
    assert script.main(["--target", str(folder), *FLAGS, *words]) == code
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "=== " not in out, "nothing was decoded"
    return lines[0]


def test_missing_weights_are_named(copied, capsys):
    weights = load_file(copied / "target" / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, copied / "target" / "model.safetensors", metadata={"format": "pt"})
    assert "lacks the weights model.norm.weight" in refused(capsys, copied / "target")
    (copied / "target" / "adapter_config.json").write_text("{}")
    assert "holds an adapter" in refused(capsys, copied / "target")


def test_a_model_too_large_for_the_memory_is_not_called_damaged(copied, capsys, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(DECODER_ONLY.loader, "from_pretrained", full)
    assert "out of memory" in refused(capsys, copied / "target")


def test_a_tied_output_layer_is_not_missing(tmp_path):
    model = tiny_llama(0, dtype=torch.float32)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert loading.load_model(str(tmp_path), torch.device("cpu"), torch.float32) is not None


def test_pickled_weights_may_hold_tensors_only(copied, capsys):
    folder = copied / "target"
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert baseline_autoregressive.main(["--target", str(folder), *FLAGS]) == 0
    capsys.readouterr()
    torch.save({**tensors, "more": Path("here")}, folder / "pytorch_model.bin")
    assert "safetensors" in refused(capsys, folder)


# --- Generation settings ----------------------------------------------------------------------------------------


def test_settings_that_the_lab_leaves_out_are_named_once(copied, capsys):
    penalties = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_p": 1.0, "bad_words_ids": [[5]]}
    edited(copied / "target", "generation_config.json", **penalties)
    prompts = ["--prompt", "class A:"]
    assert baseline_autoregressive.main(["--target", str(copied / "target"), *FLAGS, *prompts]) == 0
    _, err = capsys.readouterr()
    named = [line for line in err.splitlines() if "generation settings" in line]
    assert len(named) == 1
    for words in ("repetition_penalty 1.3", "no_repeat_ngram_size 2", "bad_words_ids [[5]]"):
        assert words in named[0]
    assert "top_p" not in named[0]


def test_neutral_and_unrelated_settings_are_not_named():
    quiet = {"temperature": 1.0, "repetition_penalty": 1.0, "eos_token_id": [1, 2], "max_length": 50, "do_sample": True}
    assert generation.unapplied_settings(GenerationConfig(**quiet)) == {}
    assert generation.unapplied_settings(GenerationConfig(temperature=0.6)) == {"temperature": 0.6}


def test_the_library_runs_with_the_labs_settings_and_gets_its_own_back():
    """A penalty and an end token of the checkpoint must not change the yardstick, nor be lost."""
    model, ids = tiny_llama(0), torch.tensor([[1, 2, 3]])
    plain = library_generate(model, ids, 16)[1]
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.eos_token_id = plain[3]
    assert library_generate(model, ids, 16)[1] == plain
    assert (model.generation_config.repetition_penalty, model.generation_config.eos_token_id) == (50.0, plain[3])
    with pytest.raises(IndexError):
        library_generate(model, torch.tensor([[10**6]]), 4)
    assert model.generation_config.repetition_penalty == 50.0


# --- The target's vocabulary ----------------------------------------------------------------------------------------


def narrow_draft(copied: Path, n_rows: int) -> str:
    """A draft folder whose model has fewer ids than the tokenizer."""
    folder = copied / f"narrow{n_rows}"
    shutil.copytree(copied / "draft", folder)
    tiny_llama(1, vocab_size=n_rows, dtype=torch.float32).save_pretrained(folder)
    return str(folder)


def text_of(script, capsys, *words: str) -> str:
    """The text that a script prints for FLAGS' prompt."""
    assert script.main([*words, *FLAGS]) == 0
    return capsys.readouterr().out.split("=" * 60)[1].split("of them decoded")[0].rsplit("\n", 2)[0]


def test_a_narrow_draft_leaves_the_target_its_text(copied, capsys):
    """It equals the baseline's, which says ids that this draft lacks."""
    target = ["--target", str(copied / "target"), "--ignore-eos"]
    right = text_of(baseline_autoregressive, capsys, *target)
    assert text_of(optimized_speculative, capsys, *target, "--draft", narrow_draft(copied, 100)) == right


def test_drafts_of_different_widths_work_side_by_side(copied, capsys):
    wide = copied / "wide"
    shutil.copytree(copied / "draft", wide)
    rows = json.loads((wide / "config.json").read_text())["vocab_size"]
    tiny_llama(1, vocab_size=rows + 64, dtype=torch.float32).save_pretrained(wide)
    drafts = ",".join([narrow_draft(copied, 100), str(wide)])
    words = ["--target", str(copied / "target"), *FLAGS, "-k", "2", "--temperature", "0,1", "--out-dir", str(copied)]
    assert compare.main([*words, "--draft", drafts]) == 0
    out, _ = capsys.readouterr()
    assert "token for token: identical" in " ".join(out.split())
    for name in ("narrow100", "wide"):
        assert name in out


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(copied, capsys):
    tiny_llama(0, vocab_size=40, dtype=torch.float32).save_pretrained(copied / "target")
    assert "do not belong together" in refused(capsys, copied / "target")


# --- The draft's context ----------------------------------------------------------------------------------------


@pytest.fixture
def short_draft(copied) -> str:
    """A draft folder whose context holds 30 tokens."""
    folder = copied / "short"
    shutil.copytree(copied / "draft", folder)
    edited(folder, "config.json", max_position_embeddings=30)
    return str(folder)


def test_compare_forecasts_beyond_the_drafts_context(copied, short_draft, capsys):
    words = ["--target", str(copied / "target"), "--draft", short_draft, "--threads", "1", "--engine", "eager"]
    words += ["--prompt", "def f(x):", "--max-new-tokens", "40", "--temperature", "0,1", "-k", "3"]
    assert compare.main([*words, "--out-dir", str(copied)]) == 0
    assert "context is 30 tokens" in capsys.readouterr().err
    rows = [r for r in read(copied / "results" / "local.json", ComparisonRun).rows if r.draft]
    assert {row.temperature for row in rows} == {0, 1}
    for row in rows:
        assert row.forecast_tokens_per_round is not None
        if row.temperature == 0:  # nothing is left to chance: a forecast of longer drafts would miss these rounds
            assert row.forecast_tokens_per_round == pytest.approx(row.tokens_per_round, rel=1e-6)


@pytest.mark.parametrize("script", [optimized_speculative, compare])
def test_a_prompt_longer_than_the_drafts_context_is_refused(copied, short_draft, capsys, script):
    words = ["--draft", short_draft, "--prompt", "x = 1; " * 30]
    words += ["--out-dir", str(copied)] if script is compare else []
    line = refused(capsys, copied / "target", *words, script=script, code=2)
    assert "draft model's context only 30" in line
    assert "draft ngram" in line


def test_a_hub_kernel_in_a_config_is_refused_by_name(copied):
    arm(copied / "target", "kernel")
    with pytest.raises(EnvironmentProblem, match="somebody/evil-attention"):
        loading.load_model(str(copied / "target"), torch.device("cpu"), torch.float32)


def test_the_library_cannot_ask_on_standard_input(monkeypatch):
    """Should it ever ask, it gets no answer and the real standard input stays as it was."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(EnvironmentProblem, match="EOFError"):
        loading.loaded("some/model", "its code", lambda: input("Run the code of this folder? [y/N]"))
    assert sys.stdin.read() == "y\n"


def test_an_encoder_is_refused_at_load(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertLMHeadModel(BertConfig(**sizes, vocab_size=64, initializer_range=0.3)).save_pretrained(tmp_path)
    with pytest.raises(EnvironmentProblem, match="attends to later tokens"):
        loading.load_model(str(tmp_path), torch.device("cpu"), torch.float32)


def test_kernels_that_are_not_pytorchs_are_left_out_and_weights_that_are_not_used_are_named(copied, capsys):
    changes = {"attn_implementation": "flash_attention_2", "num_hidden_layers": 1, "layer_types": None}
    edited(copied / "target", "config.json", **changes)
    model = loading.load_model(str(copied / "target"), torch.device("cpu"), torch.float32)
    assert model.config._attn_implementation == "sdpa"
    assert "model.layers.1." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("proxies", "is_known", "offline"), [({}, False, True), ({}, True, False), ({"https": "x"}, False, False)]
)
def test_a_hub_that_the_network_does_not_know_is_not_asked(monkeypatch, proxies, is_known, offline):
    """The library asks several times before it gives up; with its own switch it takes what it has at once."""

    def look_up(host, port):
        assert (host, port) == ("huggingface.co", 443)
        if not is_known:
            raise OSError("no such name")

    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading.urllib.request, "getproxies", lambda: proxies)
    monkeypatch.setattr(loading.socket, "getaddrinfo", look_up)
    loading.ask_no_hub_without_network.cache_clear()
    loading.check_place("echo")
    assert offline == loading.constants.HF_HUB_OFFLINE
    loading.ask_no_hub_without_network.cache_clear()
