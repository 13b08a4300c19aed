"""Writes a Llama model of this lab as a GGUF file, which llama.cpp reads, with the package `gguf`.

    python -m speclab.extensions.servers.written_gguf models/lab-pair/target target.gguf

Weights are written in float32. Only models of the Llama family with a byte-level BPE that splits texts as GPT-2's does
can be written, which the lab's and everything padded from it are; llama.cpp's own convert_hf_to_gguf.py knows the
others.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.cli import parsing
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import write_whole

NORMAL, SPECIAL, UNUSED = 1, 3, 5  # types of tokens, as llama.cpp numbers them


def convert(name: str, path: Path) -> Path:
    """Write a model, in float32, as `write_model` does. name: as --target takes it."""
    model = loading.load_model(name, torch.device("cpu"), torch.float32)
    return write_model(model, loading.load_tokenizer(name), path)


def write_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> Path:
    """Write a model, whole or not at all. Raises EnvironmentProblem where it has another form, or the package is
    missing.  -> path"""
    if not importlib.util.find_spec("gguf"):
        raise EnvironmentProblem("the package gguf is not installed; type: pip install gguf")
    merges = _merges(model, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "model.gguf")
        _write(model, tokenizer, merges, made)
        return write_whole(path, made.read_bytes())


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, merges: list[str], path: Path) -> None:
    from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map  # here: nothing but this needs the package

    config, file = model.config, GGUFWriter(path, "llama")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(heads["q_proj"])
    file.add_head_count_kv(heads["k_proj"])
    file.add_key_length(config.head_dim)
    file.add_value_length(config.head_dim)
    file.add_rope_dimension_count(config.head_dim)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_vocab_size(config.vocab_size)
    tokens, special = {i: name for name, i in tokenizer.get_vocab().items()}, set(tokenizer.all_special_ids)
    rows = range(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list([tokens.get(i, f"[PAD{i}]") for i in rows])
    file.add_token_types([SPECIAL if i in special else NORMAL if i in tokens else UNUSED for i in rows])
    file.add_token_merges(merges)
    file.add_add_bos_token(tokenizer("x").input_ids[0] == tokenizer.bos_token_id)
    if (eos := min(loading.eos_ids(model.generation_config), default=None)) is not None:
        file.add_eos_token_id(eos)
    if tokenizer.chat_template:
        file.add_chat_template(tokenizer.chat_template)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.named_parameters():  # a tied output layer is left out, as the format does
        values, module = weight.detach().float().cpu(), name.removesuffix(".weight")
        if (part := module.rpartition(".")[2]) in heads:
            values = interleaved(values, heads[part])
        file.add_tensor(f"{names.get_name(module)}.weight", values.contiguous().numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _merges(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the merges of the tokenizer. Raises EnvironmentProblem for a model or a tokenizer of another form."""
    config, backend = model.config, getattr(tokenizer, "backend_tokenizer", None)
    rope = getattr(config, "rope_parameters", None) or {}
    parts = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    splits, words = parts.get("pre_tokenizer") or {}, parts["model"]
    plain = config.model_type == "llama" and rope.get("rope_type", "default") == "default"
    plain = plain and not any(name.endswith(".bias") for name, _ in model.named_parameters())
    like_gpt2 = splits.get("type") == "ByteLevel" and splits.get("use_regex") and not splits.get("add_prefix_space")
    if not plain or words.get("type") != "BPE" or not like_gpt2 or parts.get("normalizer"):
        what = (
            "a tokenizer that does not split texts as GPT-2's" if plain else f"{config.model_type} with these settings"
        )
        raise EnvironmentProblem(f"{what} cannot be written as GGUF; use llama.cpp's convert_hf_to_gguf.py")
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in words["merges"]]


def interleaved(weight: Tensor, n_heads: int) -> Tensor:
    """Put (heads * size, width) rows into the order of llama.cpp's rotary embedding.

    The library rotates row i of a head with row i + size / 2, llama.cpp row 2 i with row 2 i + 1.
    """
    width = weight.shape[1]
    return weight.view(n_heads, 2, -1, width).transpose(1, 2).reshape(-1, width)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.written_gguf")
    parser.add_argument("model", help="its folder")
    parser.add_argument("file", type=parsing.some_path, help="the GGUF file, which is written")
    args = parser.parse_args(argv)
    convert(args.model, args.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
