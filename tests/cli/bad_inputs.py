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
from transformers import BertConfig, BertLMHeadModel, RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from tests.llamas import tiny_llama

TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
KINDS = "--draft help"


def places(folder: Path, pair: Path) -> None:
    """Fill `folder`. `pair` is the tiny pair of conftest.py."""
    for role in ("target", "draft"):
        (folder / role).symlink_to(pair / role)
    for file, damages in DAMAGES.items():
        for name, changes in damages.items():
            edited(copied(folder, name), file, **changes)
    families(folder)
    weights(folder)
    tokenizers(folder)
    for name in ("empty-folder", "blocked/results/local.json"):
        (folder / name).mkdir(parents=True)
    texts = {"long.txt": b"x = 1; " * 500, "file": b"in the way", "lists.json": b"[" + b"[]," * 6_000_000 + b"[]]"}
    for name, content in texts.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")


def copied(folder: Path, name: str) -> Path:
    """A model folder that starts as a copy of the tiny target."""
    shutil.copytree(folder / "target", folder / name, dirs_exist_ok=True)
    return folder / name


def edited(model: Path, name: str, **changes) -> None:
    """Change entries of a JSON file of a model folder; None removes one."""
    content = json.loads((model / name).read_text()) | changes
    (model / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 30}
LONGROPE |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
# Model folders that differ from the tiny target in these entries of one file.
DAMAGES = {
    "config.json": {
        "few-positions": {"max_position_embeddings": 8},
        "short-draft": {"max_position_embeddings": 30},
        "longrope": {"rope_parameters": LONGROPE},
        "hub-attention": {"attn_implementation": "somebody/evil-attention"},
        "esc-type": {"model_type": "\x1b]0;owned\x07\u202e"},
        "own-code": {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}},
        "text-eos": {"eos_token_id": "</s>"},
        "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}},
    },
    "generation_config.json": {"eos-text": {"eos_token_id": "</s>"}},
    "tokenizer_config.json": {"template-refuses": {"chat_template": "{{ raise_exception('no user may speak') }}"}},
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
    """Weights that are missing, cut off, of another shape, not numbers, too few, an adapter's, or no plain files."""
    good = load_file(folder / "target" / "model.safetensors")
    norms = {"other-shape": torch.ones(3), "nan": torch.full((64,), torch.nan), "lacking": None}
    for name, norm in norms.items():
        damaged = good | {"model.norm.weight": norm}
        file = copied(folder, f"weights-{name}") / "model.safetensors"
        save_file({k: v for k, v in damaged.items() if v is not None}, file, metadata={"format": "pt"})
    (copied(folder, "adapter") / "adapter_config.json").write_text("{}")
    tiny_llama(0, vocab_size=271).save_pretrained(copied(folder, "few-ids"))  # a prompt below has the id 271
    cut = copied(folder, "weights-cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:10_000])
    for name in ("missing", "pickled"):
        (copied(folder, f"weights-{name}") / "model.safetensors").unlink()
    torch.save({**good, "more": Path("here")}, folder / "weights-pickled" / "pytorch_model.bin")


def tokenizers(folder: Path) -> None:
    """Tokenizers that are missing, wider than the model, or another model's."""
    for file in copied(folder, "tokenizer-missing").glob("tokenizer*"):
        file.unlink()
    content = json.loads((folder / "target" / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    for name, other in {"swapped": {"a": vocab["b"], "b": vocab["a"]}, "huge-id": {"a": 10**9}}.items():
        changed = content | {"model": content["model"] | {"vocab": vocab | other}}
        (copied(folder, f"tokenizer-{name}") / "tokenizer.json").write_text(json.dumps(changed))


class Row(NamedTuple):
    """A command as typed after `python`, its exit code, words that its one line must have, and its standard input.
    early: it is refused before weights are read."""

    command: str
    code: int
    said: tuple[str, ...]
    stdin: bytes = b""
    early: bool = False


MODEL = ["--target", "target", "--threads", "1", "--engine", "eager"]
FILED = [*MODEL, "--out-dir", "out"]
USUAL = dict.fromkeys(("baseline_autoregressive.py", "optimized_speculative.py"), MODEL)
USUAL |= dict.fromkeys(("compare.py", "benchmarks.peers", "benchmarks.roofline"), FILED)
USUAL |= {"benchmarks.gpu": ["--out", "out", "--device", "cpu"], "training.heads": ["target", "--out", "out"]}
B, S, C = "baseline_autoregressive.py", "optimized_speculative.py --prompt x", "compare.py"
PEERS, ROOFLINE, GPU = "-m benchmarks.peers", "-m benchmarks.roofline", "-m benchmarks.gpu"
SAME, EXPERTS, TRAIN = "-m benchmarks.same_text", "-m benchmarks.experts", "-m training.heads"

ROWS = [
    # --- flags of every decoding script ---
    Row(f"{B} --nonsense", 2, ("--nonsense", "--help")),
    Row(f"{B} '\x1b[31m'", 2, ("␛[31m",)),
    Row(f"{B} --top-p 1.5", 2, ("top-p", "1.5"), early=True),
    Row(f"{B} --max-new-tokens 600 --prompt x", 2, ("context of 512", "at most 511 new tokens")),
    *(Row(f"{B} {flag} ''", 2, (flag, "it is empty, give a name")) for flag in ("--prompts", "--texts", "--target")),
    Row(f"{B} --device cuda", 3, ("device cuda", "device cpu")),
    # --- prompts ---
    Row(f"{B} --prompt ''", 2, ("empty", "def main():")),
    Row(f"{B} --prompt '\udcff'", 2, ("refuses a prompt",)),
    Row(f"{B} --prompts long.txt", 2, ("2501 tokens", "context of 512; shorten the prompt\n")),
    Row(f"{B} --prompts no/such/file.txt", 2, ("no/such/file.txt", "- for standard input")),
    Row(f"{B} --prompts -", 2, ("read -", "UTF-8"), b"def f(\xff"),
    # --- names of models ---
    Row(f"{B} --prompt x --target ./nowhere", 3, ("./nowhere", "save_pretrained")),
    Row(f"{B} --prompt x --target somebody/some-model", 3, ("somebody/some-model", "check the name and the network")),
    Row(f"{B} --prompt x --target 'a\0b'", 3, ("a␀b", "check the name")),
    Row(f"{B} --prompt x --target 'two\nlines\x1b]0;x\x07'", 3, ("two lines␛]0;x␇",)),
    Row(f"{B} --prompt x --target lab:5m", 2, ("lab:5m", "too small", "lab:200m")),
    # --- config.json ---
    Row(f"{B} --prompt x --max-new-tokens 2 --target few-positions", 3, ("too few tokens or positions",)),
    Row(f"{B} --prompt x --max-new-tokens 40 --target longrope", 2, ("30 (its rope_type is longrope", "most 29 new")),
    Row(f"{B} --prompt x --target hub-attention", 3, ("somebody/evil-attention", "never run")),
    Row(f"{B} --prompt x --target esc-type", 3, ("config.json", "␛]0;owned␇‹202E›")),
    Row(f"{B} --prompt x --target own-code", 3, ("code of its own, which is never run",)),
    Row(f"{B} --prompt x --target text-eos", 3, ("config.json", "eos_token_id")),
    Row(f"{B} --prompt x --target gptq", 3, ("cannot load",)),
    # --- weights, tokenizer, generation_config.json ---
    Row(f"{B} --prompt x --target encoder", 3, ("bert attends to later tokens", "causal language model")),
    Row(f"{B} --prompt x --target recurrent", 3, ("recurrent_gemma keeps a state", "rolled back")),
    Row(f"{B} --prompt x --target target --device-map map.json", 2, ("--device-map", "auto", "sequential")),
    Row(f"{B} --prompt x --target lab:20m --device-map auto", 2, ("lab:20m is made on one device",)),
    Row(f"{B} --prompt x --target weights-other-shape", 3, ("shape", "config.json")),
    Row(f"{B} --prompt x --target weights-cut", 3, ("weights-cut", "incomplete")),
    Row(f"{B} --prompt x --target weights-missing", 3, ("weights-missing", "model.safetensors")),
    Row(f"{B} --prompt x --target weights-pickled", 3, ("safetensors",)),
    Row(f"{B} --target weights-nan --prompt x", 3, ("not finite",)),
    Row(f"{B} --prompt x --target weights-lacking", 3, ("lacks the weights model.norm.weight",)),
    Row(f"{B} --prompt x --target adapter", 3, ("holds an adapter",)),
    Row(f"{B} --prompt 'def f(x):' --target few-ids", 3, ("token 271", "do not belong together")),
    Row(f"{B} --prompt x --target tokenizer-missing", 3, ("its tokenizer cannot be used",)),
    Row(f"{B} --prompt x --target template-refuses", 3, ("chat template", "no user may speak; use --no-chat")),
    Row(f"{B} --target tokenizer-huge-id --prompt a", 3, ("token 1000000000", "do not belong together")),
    Row(f"{B} --prompt x --target eos-text", 3, ("generation_config.json", "</s>")),
    # --- drafts ---
    Row(f"{S} -k -1", 2, ("-k", "0 or more")),
    Row(f"{S} --draft ngrm", 2, ("'ngrm'; did you mean ngram?", KINDS), early=True),
    Row(f"{S} --draft featur", 2, ("unknown draft kind 'featur'",)),
    Row(f"{S} --draft feature:", 2, ("unknown draft kind 'feature:'",)),
    Row(f"{S} --draft feature:./nowhere", 3, ("nowhere",)),
    Row(f"{S} --draft feature:draft", 3, ("is None; the draft feature reads eagle3",)),
    Row(f"{S} --tempereture 0.8", 2, ("--tempereture 0.8; did you mean --temperature?",)),
    Row(f"{S} --draft hybrid:suffix+ngram", 2, ("a draft with a model", "hybrid:suffix+feature")),
    Row(f"{S} -k auto --draft dial:0.5:free", 2, ("-k auto", "dial:0.5:free", "give -k a number")),
    Row(f"{S} --draft dial", 2, ("dial:0.8",)),
    Row(f"{S} --draft dial:0.5:draft --temperature 1", 2, ("--temperature 0",), early=True),
    Row(f"{S} --draft lab:20m", 2, ("different tokenizers", "or ngram")),
    Row(f"{S} --draft tokenizer-swapped", 2, ("different tokenizers", "is 'b' to the draft, 'a' to the target")),
    Row(f"{S} --draft short-draft --prompt '{'x = 1; ' * 20}'", 2, ("draft model's context of 30; shorten",)),
    # --- compare.py ---
    Row(f"{C} --draft short-draft --prompt '{'x = 1; ' * 30}'", 2, ("the draft model's context of 30;",)),
    Row(f"{C} -k 2,-4", 2, ("-k 2,-4", "0 or more")),
    *(Row(f"{C} -k {lengths}", 2, ("-k",)) for lengths in ("autos", "2,auto,x", "auto,-1", "''")),
    Row(f"{C} --draft model,ngrm", 2, ("'ngrm'; did you mean ngram?",), early=True),
    Row(f"{S} --draft ''", 2, ("unknown draft kind ''",)),
    Row(f"{C} --draft ''", 2, ("example model,ngram",)),
    Row(f"{C} --draft ngram,ngram", 2, ("twice",)),
    Row(f"{C} --draft dial:0.5:draft --temperature 1 --prompt x", 2, ("add 0 to the temperatures",)),
    Row(f"{C} --quick --full", 2, ("--quick", "--full")),
    Row(f"{C} --max-new-tokens 1", 2, ("--max-new-tokens 2",)),
    Row(f"{C} --name a/b", 2, ("a/b", "--out-dir")),
    Row(f"{C} --out-dir file", 3, ("file/results", "--out-dir")),
    Row(f"{C} --out-dir blocked", 3, ("local.json", "no regular file", "--out-dir")),
    # --- readme, plots, training ---
    Row("-m tools.plots lists.json", 3, ("lists.json is no record", "more than 16 MiB")),
    Row(f"{TRAIN} --rate 0", 2, ("--rate", "too small")),
    Row("-m exercises.distilled --impl solutions draft", 2, ("different tokenizers",), early=True),
    Row(f"{TRAIN} --out file", 3, ("file", "File exists", "--out")),
    # --- benchmarks ---
    Row(f"{PEERS} --draft suffix --prompt x", 2, ("--draft suffix", "must be a model")),
    Row(f"{ROOFLINE} --context 600", 2, ("--context 600", "--context 495")),
    Row(f"{GPU} --sizes lab,lab", 2, ("lab,lab", "different")),
    Row(f"{ROOFLINE} --draft ngram", 2, ("--draft ngram", "only a model")),
    Row(f"{GPU} --out file", 3, ("file/log.txt", "--out")),
    Row(f"{SAME} --dtype float32", 2, ("float32 and bfloat16", "leave out --dtype")),
    Row(f"{SAME} -k 0 --target draft", 2, ("-k 0", "1 or more")),
    Row(f"{SAME} --target ./nowhere", 3, ("./nowhere", "save_pretrained")),
    Row(f"{EXPERTS} --used 9", 2, ("9 of 8 experts", "--used 8")),
    Row(f"{B} --prompt x --chat", 2, ("no chat template", "use --no-chat")),
    Row("-m tests.gallery --only x", 2, ("--only x", "numbers")),
]
