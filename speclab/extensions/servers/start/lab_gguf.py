"""Writes the lab's models as GGUF files, which llama-server reads: one function, with the package `gguf`.

    python -m speclab.extensions.servers.start.lab_gguf models/lab-pair/target target.gguf

For models of this lab's form alone (Llama, byte-level BPE with the splitting rule of GPT-2). For any other model there
is llama.cpp's own convert_hf_to_gguf.py.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import shown

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
SPECIAL, NORMAL = 3, 1  # types of tokens, as llama.cpp numbers them


def write(folder: Path, path: Path, altered: Callable[[Any], Any] = lambda model: model) -> Path:
    """Write the model of a folder in float32. altered: what becomes of it before. EnvironmentProblem where it has
    another form."""
    try:
        from gguf import GGUFWriter
    except ImportError:
        raise EnvironmentProblem("the package gguf is not installed; type: pip install gguf") from None
    words = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    model = altered(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True))
    config = model.config
    if config.model_type != "llama" or not config.tie_word_embeddings or words["model"]["type"] != "BPE":
        raise EnvironmentProblem(
            f"{shown(folder)} is no model of the lab's form; use llama.cpp's convert_hf_to_gguf.py"
        )
    n_heads, n_kv, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    file = GGUFWriter(path, "llama")
    file.add_name(folder.name)
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(n_heads)
    file.add_head_count_kv(n_kv)
    file.add_key_length(width)
    file.add_value_length(width)
    file.add_rope_dimension_count(width)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_vocab_size(config.vocab_size)
    tokens = sorted(words["model"]["vocab"], key=words["model"]["vocab"].__getitem__)
    special = {token["content"] for token in words["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in words["model"]["merges"]]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types([SPECIAL if token in special else NORMAL for token in tokens])
    file.add_token_merges(merges)
    file.add_eos_token_id(config.eos_token_id)
    file.add_add_bos_token(False)
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        for part, heads in (("q_proj", n_heads), ("k_proj", n_kv)):
            values = _interleaved(values, heads) if part in name else values
        file.add_tensor(_named(name), np.ascontiguousarray(values))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def _interleaved(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Return the rows of each head with its halves in turns, as llama.cpp turns pairs. weight: (heads x width, n)"""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[1])  # (heads, half, width / 2, n)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _named(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, number, part = name.split(".", 3)
        return f"blk.{number}.{NAMES[part.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]


@reports_problems
def main() -> int:
    """Write one file.  -> exit code"""
    write(Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
