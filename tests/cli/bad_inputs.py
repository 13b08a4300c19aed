"""Bad inputs: the files they need, and a table of commands with their exit codes and what must be said.

`places` fills a folder with model folders and other files, most of them damaged. The commands of ROWS are typed there.
A command has USUAL's flags of its script before its own, and what is given twice counts as given last.
"""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)

ROOT = Path(__file__).parents[2]
TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
DEEP = "[" * 100_000
LONG = "n" * 300
DIGITS = "9" * 5000  # Python reads no number of so many
KINDS = "--draft help"

# --- the files --------------------------------------------------------------------------------------------------------


def places(folder: Path, pair: Path) -> None:
    """Fill `folder`. `pair` is the tiny pair of conftest.py."""
    for role in ("target", "draft"):
        (folder / role).symlink_to(pair / role)
    for name, changes in CONFIGS.items():
        edited(copied(folder, name), "config.json", **changes)
    for name, content in FILES.items():
        model, _, file = name.partition("/")
        (copied(folder, model) / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, changes in GENERATION.items():
        edited(copied(folder, name), "generation_config.json", **changes)
    families(folder)
    weights(folder)
    tokenizers(folder)
    loose_files(folder)


def copied(folder: Path, name: str) -> Path:
    """A model folder that starts as a copy of the tiny target."""
    shutil.copytree(folder / "target", folder / name, dirs_exist_ok=True)
    return folder / name


def edited(model: Path, name: str, **changes) -> None:
    """Change entries of a JSON file of a model folder; None removes one."""
    content = json.loads((model / name).read_text()) | changes
    (model / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


# Model folders that differ from the tiny target in these entries of config.json.
CONFIGS = {
    "of-images": {"model_type": "vit"},
    "no-layers": {"num_hidden_layers": 0, "layer_types": None},
    "more-layers": {"num_hidden_layers": 3, "layer_types": None},
    "few-positions": {"max_position_embeddings": 8},
    "longrope": {
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 30}
        | {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    },
    "dynamic-rope": {
        "max_position_embeddings": 30,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    },
    "zero-rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
    "hub-attention": {"attn_implementation": "somebody/evil-attention"},
    "hub-attention-inside": {
        "model_type": "gemma3",
        "attn_implementation": {"text_config": "kernels-community/attention"},
    },
    "unknown-type": {"model_type": "nonsense"},
    "esc-type": {"model_type": "\x1b]0;owned\x07\u202e"},
    "own-code": {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}},
    "text-eos": {"eos_token_id": "</s>"},
}
# Model folders with one file of other bytes.
FILES = {
    "config-empty/config.json": "",
    "config-deep/config.json": DEEP,
    "tokenizer-torn/tokenizer.json": '{"version": ',
    "generation-torn/generation_config.json": "{",
}
# Model folders with a chat template.
TEMPLATES = {
    "template-refuses": "{{ raise_exception('no user may speak') }}",
}
# Model folders that differ in generation_config.json.
GENERATION = {
    "eos-text": {"eos_token_id": "</s>"},
    "generation-cache": {"cache_implementation": "nonsense"},
}


def families(folder: Path) -> None:
    """Models of families that cannot be decoded with a cache that rolls back."""
    vocab_size = json.loads((folder / "target" / "config.json").read_text())["vocab_size"]
    size = {**TINY, "vocab_size": vocab_size}
    for name, model in {
        "encoder": BertLMHeadModel(BertConfig(**size)),
        "recurrent": RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**size | {"num_hidden_layers": 3})),
    }.items():
        model.save_pretrained(folder / name)
        for file in (folder / "target").glob("tokenizer*"):
            shutil.copy(file, folder / name)


def weights(folder: Path) -> None:
    """Weights that are missing, cut off, of another shape, not numbers, or no plain files."""
    good = load_file(folder / "target" / "model.safetensors")

    def saved(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, copied(folder, name) / "model.safetensors", metadata={"format": "pt"})

    saved("weights-other-shape", good | {"model.norm.weight": torch.ones(3)})
    saved("weights-nan", good | {"model.norm.weight": torch.full((64,), torch.nan)})
    saved("weights-none", {"x": torch.ones(1)})
    cut = copied(folder, "weights-cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:10_000])
    (copied(folder, "weights-missing") / "model.safetensors").unlink()
    pickled = copied(folder, "weights-pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({**good, "more": Path("here")}, pickled / "pytorch_model.bin")
    (copied(folder, "index-torn") / "model.safetensors").unlink()
    (folder / "index-torn" / "model.safetensors.index.json").write_text("{")
    device = copied(folder, "weights-device") / "model.safetensors"
    device.unlink()
    device.symlink_to("/dev/zero")
    for name, make in {"config-folder": os.mkdir, "config-fifo": os.mkfifo}.items():
        file = copied(folder, name) / "config.json"
        file.unlink()
        make(file)


def tokenizers(folder: Path) -> None:
    """Tokenizers that are missing, empty, wider than the model, or another model's."""
    for file in copied(folder, "tokenizer-missing").glob("tokenizer*"):
        file.unlink()
    content = json.loads((folder / "target" / "tokenizer.json").read_text())

    def saved(name: str, vocab: dict, **more) -> None:
        changed = content | {"model": content["model"] | {"vocab": vocab}} | more
        (copied(folder, name) / "tokenizer.json").write_text(json.dumps(changed))

    vocab = dict(content["model"]["vocab"])
    for name, template in TEMPLATES.items():
        edited(copied(folder, name), "tokenizer_config.json", chat_template=template)
    saved("tokenizer-without-words", {}, added_tokens=[])
    saved("tokenizer-swapped", vocab | {"a": vocab["b"], "b": vocab["a"]})
    saved("tokenizer-huge-id", vocab | {"a": 10**9})
    edited(copied(folder, "short-draft"), "config.json", max_position_embeddings=30)


def loose_files(folder: Path) -> None:
    """Prompt files, folders and devices."""
    texts = {
        "empty.txt": b"",
        "long.txt": b"x = 1; " * 500,
        "file": b"in the way",
        "good.txt": b"def f(x):",
        "lists.json": b"[" + b"[]," * 6_000_000 + b"[]]",
        "nan.json": b'{"rows": NaN}',
        "deep.json": DEEP.encode(),
    }
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    for name in ("empty-folder", "blocked/results/local.json", "blocked/results/local-roofline.json"):
        (folder / name).mkdir(parents=True)
    (folder / "blocked-file").mkdir()
    (folder / "blocked-file" / "results").write_text("in the way")
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")


# --- the table --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A command as typed after `python`, its exit code, words that its one line must have, and its standard input."""

    command: str
    code: int
    said: tuple[str, ...]
    stdin: bytes = b""


MODEL = ["--target", "target", "--threads", "1", "--engine", "eager"]
FILED = [*MODEL, "--out-dir", "out"]
USUAL = {
    "baseline_autoregressive.py": MODEL,
    "optimized_speculative.py": MODEL,
    "compare.py": FILED,
    "benchmarks.peers": FILED,
    "benchmarks.roofline": FILED,
    "benchmarks.gpu": ["--out", "out", "--device", "cpu"],
    "training.heads": ["target", "--out", "out"],
}
B, S, C = "baseline_autoregressive.py", "optimized_speculative.py --prompt x", "compare.py"
PEERS, ROOFLINE = "-m benchmarks.peers", "-m benchmarks.roofline"
GPU, TRAIN = "-m benchmarks.gpu", "-m training.heads"

ROWS = [
    # --- flags of every decoding script ---
    Row(f"{B} --nonsense", 2, ("--nonsense", "--help")),
    Row(f"{B} stray", 2, ("stray", "--help")),
    Row(f"{B} '\x1b[31m'", 2, ("␛[31m",)),
    Row(f"{B} --temperature -1", 2, ("temperature", "-1")),
    Row(f"{B} --temperature warm", 2, ("--temperature", "'warm'")),
    Row(f"{B} --top-p 1.5", 2, ("top-p", "1.5")),
    Row(f"{B} --top-k 1e3", 2, ("--top-k", "'1e3' is not a whole number")),
    Row(f"{B} --seed -1", 2, ("--seed", "0 or more")),
    Row(f"{B} --seed {'9' * 5000}", 2, ("--seed", "whole number")),
    Row(f"{B} --max-new-tokens 600 --prompt x", 2, ("context of 512", "at most 511 new tokens")),
    Row(f"{B} --engine slow", 2, ("slow", "eager")),
    Row(f"{C} --engine compiled", 2, ("compiled", "auto")),
    Row(f"{B} --device gpu", 2, ("gpu", "cuda")),
    Row(f"{B} --device cuda", 3, ("device cuda", "device cpu")),
    # --- prompts ---
    Row(f"{B} --prompt", 2, ("--prompt", "one argument")),
    Row(f"{B} --prompt ''", 2, ("empty", "def main():")),
    Row(f"{B} --prompt x --prompts good.txt", 2, ("--prompts", "--prompt")),
    Row(f"{B} --prompt '\udcff'", 2, ("not UTF-8", "--prompts")),
    Row(f"{B} --prompts empty.txt", 2, ("no prompt in empty.txt",)),
    Row(f"{B} --prompts long.txt", 2, ("2501 tokens", "context of 512", "shorten")),
    Row(f"{B} --prompts no/such/file.txt", 2, ("no/such/file.txt", "- for standard input")),
    Row(f"{B} --prompts 'two\nlines\x1b[31m'", 2, ("two lines␛[31m",)),
    Row(f"{B} --prompts -", 2, ("no prompt in standard input",)),
    Row(f"{B} --prompts -", 2, ("no prompt in standard input",), b"\r\n%%\r\n"),
    Row(f"{B} --prompts -", 2, ("file -", "UTF-8"), b"def f(\xff"),
    # --- names of models ---
    Row(f"{B} --prompt x --target ''", 2, ("--target", "empty")),
    Row(f"{B} --prompt x --target ./nowhere", 3, ("./nowhere", "save_pretrained")),
    Row(f"{B} --prompt x --target somebody/some-model", 3, ("somebody/some-model", "check the name and the network")),
    Row(f"{B} --prompt x --target 'a\0b'", 3, ("a␀b", "check the name")),
    Row(f"{B} --prompt x --target 'two\nlines\x1b]0;x\x07'", 3, ("two lines␛]0;x␇",)),
    Row(f"{B} --prompt x --target empty-folder", 3, ("empty-folder", "config.json", "save_pretrained")),
    Row(f"{B} --prompt x --target lab:", 2, ("lab:", "lab:200m")),
    Row(f"{B} --prompt x --target lab:1m", 2, ("lab:1m", "lab:200m")),
    Row(f"{B} --prompt x --target lab:5m", 2, ("lab:5m", "too small", "lab:200m")),
    # --- config.json ---
    Row(f"{B} --prompt x --target no-layers", 3, ("num_hidden_layers is 0",)),
    Row(f"{B} --prompt x --target more-layers", 3, ("lacks the weights model.layers.2.", "and 6 more")),
    Row(f"{B} --prompt x --max-new-tokens 2 --target few-positions", 3, ("context of 8 positions", "larger model")),
    Row(
        f"{B} --prompt x --max-new-tokens 40 --target longrope",
        2,
        ("context of 30 (its rope_type is longrope", "factors of all positions change", "at most 29 new tokens"),
    ),
    Row(
        f"{B} --prompt x --max-new-tokens 40 --target dynamic-rope",
        2,
        ("context of 30 (its rope_type is dynamic", "at most 29 new tokens"),
    ),
    Row(f"{B} --prompt x --target zero-rope", 3, ("not finite",)),
    Row(f"{B} --prompt x --target hub-attention", 3, ("somebody/evil-attention", "never run")),
    Row(f"{B} --prompt x --target hub-attention-inside", 3, ("kernels-community/attention", "never run")),
    Row(f"{B} --prompt x --target unknown-type", 3, ("config.json", "nonsense")),
    Row(f"{B} --prompt x --target esc-type", 3, ("config.json", "␛]0;owned␇‹202E›")),
    Row(f"{B} --prompt x --target own-code", 3, ("code of its own, which is never run",)),
    Row(f"{B} --prompt x --target text-eos", 3, ("config.json", "eos_token_id")),
    Row(f"{B} --prompt x --target config-empty", 3, ("config.json", "valid JSON")),
    Row(f"{B} --prompt x --target config-deep", 3, ("config.json", "recursion")),
    Row(f"{B} --prompt x --target config-folder", 3, ("config.json", "save_pretrained")),
    Row(f"{B} --prompt x --target config-fifo", 3, ("config-fifo/config.json is a device or a pipe",)),
    # --- weights, tokenizer, generation_config.json ---
    Row(f"{B} --prompt x --target encoder", 3, ("bert attends to later tokens", "causal language model")),
    Row(f"{B} --prompt x --target recurrent", 3, ("recurrent_gemma keeps a state", "rolled back")),
    Row(f"{B} --prompt x --target of-images", 3, ("kind of AutoModel",)),
    Row(f"{B} --prompt x --target target --device-map map.json", 2, ("--device-map", "auto", "sequential")),
    Row(f"{C} --engine vllm", 2, ("invalid choice: 'vllm'", "eager")),
    Row(f"{B} --prompt x --target lab:20m --device-map auto", 2, ("lab:20m is made on one device",)),
    Row("-m benchmarks.roofline --target lab:20m --device-map auto", 2, ("lab:20m is made on one device",)),
    # --- weights and tokenizer again ---
    Row(f"{B} --prompt x --target weights-other-shape", 3, ("differ in shape", "config.json")),
    Row(f"{B} --prompt x --target weights-none", 3, ("lacks the weights",)),
    Row(f"{B} --prompt x --target weights-cut", 3, ("weights-cut", "incomplete")),
    Row(f"{B} --prompt x --target weights-missing", 3, ("weights-missing", "model.safetensors")),
    Row(f"{B} --prompt x --target weights-pickled", 3, ("more than tensors", "safetensors")),
    Row(f"{B} --target weights-nan --prompt x", 3, ("not finite",)),
    Row(f"{B} --prompt x --target weights-device", 3, ("weights-device/model.safetensors is a device",)),
    Row(f"{B} --prompt x --target index-torn", 3, ("index-torn", "download")),
    Row(f"{B} --prompt x --target tokenizer-missing", 3, ("its tokenizer cannot be used",)),
    Row(f"{B} --prompt x --target tokenizer-torn", 3, ("its tokenizer",)),
    Row(f"{B} --prompt x --target tokenizer-without-words", 3, ("its tokenizer", "out of vocabulary")),
    Row(f"{B} --prompt x --target template-refuses", 3, ("chat template", "no user may speak; use --no-chat")),
    Row(f"{B} --target tokenizer-huge-id --prompt a", 3, ("token 1000000000", "do not belong together")),
    Row(f"{B} --prompt x --target generation-torn", 3, ("generation_config.json", "valid JSON")),
    Row(f"{B} --prompt x --target generation-cache", 3, ("generation_config.json", "nonsense")),
    Row(f"{B} --prompt x --target eos-text", 3, ("generation_config.json", "</s>")),
    # --- drafts ---
    Row(f"{S} -k -1", 2, ("-k", "0 or more")),
    Row(f"{S} -k many", 2, ("-k", "many")),
    Row(f"{S} --draft ''", 2, (KINDS,)),
    Row(f"{S} --draft ngrm", 2, ("'ngrm'; did you mean ngram?", KINDS)),
    Row(f"{S} --tempereture 0.8", 2, ("--tempereture 0.8; did you mean --temperature?",)),
    Row(f"{S} --draft model,ngram", 2, ("model,ngram", "compare.py takes several")),
    Row(f"{S} --draft hybrid:suffix", 2, ("a lookup (ngram or suffix)", "hybrid:suffix+feature")),
    Row(f"{S} --draft hybrid:suffix+ngram", 2, ("a draft with a model", "hybrid:suffix+feature")),
    Row(f"{C} --plan", 2, ("unrecognized arguments: --plan",)),
    Row(f"{S} -k autos", 2, ("-k", "'autos' is not a whole number")),
    Row(f"{S} -k auto --draft dial:0.5:free", 2, ("-k auto", "dial:0.5:free", "give -k a number")),
    Row(f"{S} --draft dial", 2, ("dial:0.8",)),
    Row(f"{S} --draft dial:0.5:./nowhere", 3, ("./nowhere", "save_pretrained")),
    Row(f"{S} --draft dial:0.5:free:free", 2, ("free:free",)),
    Row(f"{S} --draft dial:0.5:draft --temperature 1", 2, ("--temperature 0",)),
    Row(f"{S} --draft lab:20m", 2, ("different tokenizers", "or ngram")),
    Row(f"{S} --draft no-such-draft-kind", 3, ("no-such-draft-kind", "check the name")),
    Row(
        f"{S} --draft tokenizer-swapped",
        2,
        ("different tokenizers", "disagree about 2 of", "is 'b' to the draft, 'a' to the target", "or ngram"),
    ),
    Row(f"{S} --draft config-fifo", 3, ("config-fifo/config.json is a device or a pipe",)),
    Row(f"{S} --draft short-draft --prompt '{'x = 1; ' * 20}'", 2, ("context only 30;", "the draft ngram")),
    Row(f"{S} --draft longrope --prompt '{'x = 1; ' * 20}'", 2, ("context only 30 (its rope_type is longrope",)),
    # --- compare.py ---
    Row(f"{C} -k 2,-4", 2, ("-k 2,-4", "0 or more")),
    Row(f"{C} -k 257", 2, ("-k 257", "256 or less")),
    Row(f"{C} --draft ''", 2, ("example model,ngram",)),
    Row(f"{C} --draft ngram,ngram", 2, ("twice",)),
    Row(f"{C} --prompt x --draft draft,weights-nan", 3, ("not finite",)),
    Row(f"{C} --draft dial:0.5:draft --temperature 1 --prompt x", 2, ("add 0 to the temperatures",)),
    Row(f"{C} --quick --full", 2, ("--quick", "--full")),
    Row(f"{C} --max-new-tokens 1", 2, ("--max-new-tokens 2",)),
    Row(f"{C} --max-new-tokens 999 --draft draft --prompt x", 2, ("512", "at most 511 new tokens")),
    Row(f"{C} --name a/b", 2, ("a/b", "--out-dir")),
    Row(f"{C} --name 'esc\x1b[31m'", 2, ("plain word",)),
    Row(f"{C} --out-dir file", 3, ("file/results", "--out-dir")),
    Row(f"{C} --out-dir ''", 2, ("--out-dir", "empty")),
    Row(f"{C} --out-dir blocked", 3, ("local.json", "it is a folder", "--out-dir")),
    Row(f"{C} --out-dir /proc/nowhere", 3, ("/proc/nowhere", "--out-dir")),
    # --- readme, plots, training ---
    Row("-m tools.plots lists.json", 3, ("lists.json is no record", "more than 16 MiB")),
    Row("-m tools.plots nan.json", 3, ("nan.json", "no record that can be read")),
    Row("-m tools.readme --chekc", 2, ("--chekc", "--help")),
    Row(f"{TRAIN} --minutes nan", 2, ("--minutes", "nan")),
    Row(f"{TRAIN} --rate 0", 2, ("--rate", "too small")),
    Row(f"{TRAIN} --out loop", 3, ("loop", "File exists", "--out")),
    Row(f"{TRAIN} --out ''", 2, ("--out", "empty")),
    Row(f"{TRAIN} --out file", 3, ("file", "File exists", "--out")),
    # --- benchmarks ---
    Row(f"{PEERS} -k 0", 2, ("-k 0", "1 or more")),
    Row(f"{PEERS} --draft suffix --prompt x", 2, ("--draft suffix", "must be a model")),
    Row(f"{PEERS} --draft short-draft --prompt x", 2, ("context of 30", "at most 29 new tokens")),
    Row(f"{PEERS} --max-new-tokens 1", 2, ("--max-new-tokens 2",)),
    Row(f"{ROOFLINE} --widths 1,0", 2, ("--widths 1,0", "1 or more")),
    Row(f"{ROOFLINE} --context 600", 2, ("--context 600", "--context 495")),
    Row(f"{GPU} --sizes ,", 2, ("--sizes ,",)),
    Row(f"{GPU} --sizes lab,lab", 2, ("lab,lab", "different")),
    Row(f"{ROOFLINE} --draft ngram", 2, ("--draft ngram", "only a model")),
    Row(f"{GPU} --sizes lab:big", 2, ("lab:big", "lab:200m")),
    Row(f"{GPU} --out file", 3, ("file/log.txt", "--out")),
    Row(f"{PEERS} --prompt x --draft draft --llama-target nowhere.gguf", 2, ("--llama-target", "nowhere.gguf")),
    Row(f"{B} --prompt x --chat", 2, ("no chat template", "without --chat")),
    Row(f"{S} --draft dial:0.5:ngram", 2, ("dial:0.8:model",)),
    Row(f"{C} --draft model,ngrm --prompt x", 2, ("'ngrm'", KINDS)),
    # --- the gallery ---
    Row("-m tests.gallery --only x", 2, ("--only x", "--only 4,8")),
    Row("-m tests.gallery --timeout nan", 2, ("--timeout", "nan")),
]
