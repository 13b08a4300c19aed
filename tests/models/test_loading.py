"""Nothing from a model folder runs, nothing is filled in, and the target keeps its vocabulary."""

import io
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

import baseline_autoregressive
import optimized_speculative
from speclab.lab.instruments import library_generate
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem
from tests.cli.bad_inputs import edited
from tests.llamas import tiny_llama

FLAGS = ["--threads", "1", "--engine", "eager", "--prompt", "def f(x):", "--max-new-tokens", "12"]
CODE = "import pathlib\npathlib.Path({!r}).write_text('ran')\n"


@pytest.fixture
def copied(pair_folder, tmp_path):
    shutil.copytree(pair_folder, tmp_path / "pair")
    return tmp_path / "pair"


HUB = "kernels-community/attention"  # a kernel of the hub
AUTO = {"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
OF_TOKENIZER = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
EVIL = {  # a file of a model folder, the entries that ask for code, and whether the library's own code is used instead
    "config": ("config.json", {"model_type": "evil", **AUTO}, False),
    "known config": ("config.json", AUTO, True),
    "tokenizer": ("tokenizer_config.json", OF_TOKENIZER, False),
    "generate": ("config.json", {}, True),
    "kernel": ("config.json", {"attn_implementation": "somebody/evil-attention"}, False),
    "kernel inside": ("config.json", {"model_type": "gemma3", "attn_implementation": {"text_config": HUB}}, False),
}


def arm(folder: Path, kind: str) -> Path:
    """Let a model folder ask for code of its own.  -> the file that the code would write"""
    trap, (file, entries, _) = folder.parent / "trap", EVIL[kind]
    place = folder / ("custom_generate/generate.py" if kind == "generate" else "evil.py")
    place.parent.mkdir(exist_ok=True)
    place.write_text(CODE.format(str(trap)))
    edited(folder, file, **entries)
    return trap


@pytest.mark.parametrize(("proxies", "known"), [({}, False), ({"https": "a-proxy"}, True)])
def test_without_an_address_of_the_hub_its_cache_alone_is_looked_into(monkeypatch, tmp_path, proxies, known):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: (tmp_path / "missing").stat())
    monkeypatch.setattr("urllib.request.getproxies", lambda: proxies)
    rules_for = loading.rules_for.__wrapped__
    assert [rules_for(place)["local_files_only"] for place in ("a/model", str(tmp_path))] == [not known, False]


@pytest.mark.parametrize(("role", "kind"), [*(("target", kind) for kind in EVIL), ("draft", "config")])
def test_code_of_a_model_folder_never_runs(copied, monkeypatch, capsys, role, kind):
    """Either the folder is refused in one line, or the library's own code is used; nobody is asked."""
    trap = arm(copied / role, kind)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    code = optimized_speculative.main(["--target", f"{copied}/target", "--draft", f"{copied}/draft", *FLAGS])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert not trap.exists()
    assert (code, len(lines)) == ((0, 0) if EVIL[kind][2] else (3, 1))
    assert sys.stdin.read() == "y\n" * 20, "nobody read the standard input"
    assert not any(word in line for line in lines for word in ("trust_remote_code", "y/N"))
    assert all("asks for code from the hub" in line for line in lines if kind.startswith("kernel"))


def test_the_library_cannot_ask_on_standard_input(monkeypatch):
    """Should it ever ask, it gets no answer and the real standard input stays as it was."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(EnvironmentProblem, match="EOFError"):
        loading.loaded("some/model", "its code", lambda: input("Run the code of this folder? [y/N]"))
    assert sys.stdin.read() == "y\n"


def test_what_is_no_fault_loads(copied, capsys):
    """Pickled tensors, a tied output layer, kernels that are not PyTorch's, and weights that are not used."""
    folder, options = copied / "target", (torch.device("cpu"), torch.float32)
    changes = {"attn_implementation": "flash_attention_2", "num_hidden_layers": 1, "layer_types": None}
    edited(folder, "config.json", **changes)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert loading.load_model(str(folder), *options).config._attn_implementation == "sdpa"
    assert "model.layers.1." in capsys.readouterr().err
    model = tiny_llama(0, dtype=torch.float32)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(copied / "draft")
    assert "lm_head.weight" not in load_file(copied / "draft" / "model.safetensors")
    assert loading.load_model(str(copied / "draft"), *options) is not None


def test_settings_that_the_lab_leaves_out_are_named_once(copied, capsys):
    penalties = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[5]], "min_length": 3}
    edited(copied / "target", "generation_config.json", top_p=1.0, **penalties)
    assert baseline_autoregressive.main(["--target", str(copied / "target"), *FLAGS, "--prompt", "class A:"]) == 0
    named = [line for line in capsys.readouterr().err.splitlines() if "generation settings" in line]
    assert len(named) == 1
    assert all(f"{name} {value}" in named[0] for name, value in penalties.items())
    assert "top_p" not in named[0]
    quiet = {"temperature": 1.0, "repetition_penalty": 1.0, "eos_token_id": [1, 2], "max_length": 50, "do_sample": True}
    quiet |= {"min_length": 0, "encoder_repetition_penalty": 1.0, "epsilon_cutoff": 0.0, "suppress_tokens": None}
    assert loading.unapplied_settings(GenerationConfig(**quiet)) == ""


def test_the_library_runs_with_the_labs_settings_and_gets_its_own_back():
    """A penalty and an end token of the checkpoint must not change the yardstick, nor be lost."""
    model, ids = tiny_llama(0), torch.tensor([[1, 2, 3]])
    plain = library_generate(model, ids, 16)[1]
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.eos_token_id = plain[3]
    assert library_generate(model, ids, 16)[1] == plain
    with pytest.raises(IndexError):
        library_generate(model, torch.tensor([[10**6]]), 4)
    assert (model.generation_config.repetition_penalty, model.generation_config.eos_token_id) == (50.0, plain[3])


def text_of(script, capsys, *words: str) -> str:
    assert script.main([*words, *FLAGS]) == 0
    return capsys.readouterr().out.split("=" * 60)[1].split("of them decoded")[0].rsplit("\n", 2)[0]


def test_a_narrow_draft_leaves_the_target_its_text(copied, capsys):
    """It equals the baseline's, which says ids that this draft lacks."""
    tiny_llama(1, vocab_size=100, dtype=torch.float32).save_pretrained(copied / "draft")
    target = ["--target", str(copied / "target"), "--ignore-eos"]
    right = text_of(baseline_autoregressive, capsys, *target)
    assert text_of(optimized_speculative, capsys, *target, "--draft", str(copied / "draft")) == right
