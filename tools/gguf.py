"""Write a Llama model of this lab as a GGUF file, the one file that llama.cpp reads: config, tokenizer, weights.

    python -m tools.gguf --out folder                        # the lab's pair: folder/target.gguf, folder/draft.gguf
    python -m tools.gguf --out folder --target lab:200m --draft lab:200m

Weights are written in float32. Only models of the Llama family with a byte-level BPE that splits texts as GPT-2's does
can be written, which the lab's and everything padded from it are; llama.cpp's own convert_hf_to_gguf.py knows the
others. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from speclab.cli import parsing
from speclab.models import loading
from speclab.models.outside import generation
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import prepare_folder, shown, write_whole
from speclab.system.terminal import note

ALIGNMENT = 32  # bytes, of every tensor's place in the file; the format's default
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # the format's codes of types
TENSOR_FLOAT32 = 0
NORMAL, CONTROL, UNUSED = 1, 3, 5  # kinds of tokens
ADVICE = "llama.cpp's convert_hf_to_gguf.py may know it"
NAMES = {  # the library's name of a module -> the format's
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
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


class Entry(NamedTuple):
    """A key of the file's head and its value; the type of an array is that of its items."""

    key: str
    kind: int
    value: Any


# --- what is written --------------------------------------------------------------------------------------------------


def model_entries(model: PreTrainedModel) -> list[Entry]:
    """The entries of the config. Raises UsageProblem where the model is no plain Llama."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    biased = any(name.endswith(".bias") for name, _ in model.named_parameters())
    if config.model_type != "llama" or rope.get("rope_type", "default") != "default" or biased:
        raise UsageProblem(f"{config.model_type} with these settings cannot be written as GGUF here; {ADVICE}")
    numbers = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "rope.dimension_count": config.head_dim,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    return [
        Entry("general.architecture", STRING, "llama"),
        Entry("general.file_type", UINT32, TENSOR_FLOAT32),
        *(Entry(f"llama.{key}", UINT32, number) for key, number in numbers.items()),
        Entry("llama.rope.freq_base", FLOAT32, float(rope["rope_theta"])),
        Entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, config.rms_norm_eps),
    ]


def tokenizer_entries(tokenizer: PreTrainedTokenizerBase, n_rows: int, eos: int | None) -> list[Entry]:
    """The entries of the vocabulary, filled up to the rows of the output layer. Raises UsageProblem where texts are
    split in another way."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    splits = parts.get("pre_tokenizer") or {}
    like_gpt2 = splits.get("type") == "ByteLevel" and splits.get("use_regex") and not splits.get("add_prefix_space")
    if parts["model"].get("type") != "BPE" or not like_gpt2 or parts.get("normalizer"):
        raise UsageProblem(f"this tokenizer does not split texts as GPT-2's and cannot be written as GGUF; {ADVICE}")
    names = {i: name for name, i in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    tokens = [names.get(i, f"[PAD{i}]") for i in range(n_rows)]
    kinds = [CONTROL if i in special else NORMAL if i in names else UNUSED for i in range(n_rows)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in parts["model"]["merges"]]
    return [
        Entry("tokenizer.ggml.model", STRING, "gpt2"),
        Entry("tokenizer.ggml.pre", STRING, "gpt-2"),
        Entry("tokenizer.ggml.tokens", STRING, tokens),
        Entry("tokenizer.ggml.token_type", INT32, kinds),
        Entry("tokenizer.ggml.merges", STRING, merges),
        Entry("tokenizer.ggml.add_bos_token", BOOL, tokenizer("x").input_ids[0] == tokenizer.bos_token_id),
        *([] if eos is None else [Entry("tokenizer.ggml.eos_token_id", UINT32, eos)]),
    ]


def tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights in float32 under the format's names; a tied output layer is left out, as the format does."""
    for name, tensor in model.named_parameters():
        module = name.removesuffix(".weight")
        weight = tensor.detach().float().cpu()
        layer, _, part = module.removeprefix("model.layers.").partition(".")
        if not module.startswith("model.layers."):
            yield f"{NAMES[module]}.weight", weight
            continue
        heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
        if part in heads:
            weight = interleaved(weight, getattr(model.config, heads[part]))
        yield f"blk.{layer}.{NAMES[part]}.weight", weight


def interleaved(weight: Tensor, n_heads: int) -> Tensor:
    """Put (heads * size, width) rows into the order of llama.cpp's rotary embedding.

    The library rotates row i of a head with row i + size / 2, llama.cpp row 2 i with row 2 i + 1.
    """
    width = weight.shape[1]
    return weight.view(n_heads, 2, -1, width).transpose(1, 2).reshape(-1, width)


# --- the bytes --------------------------------------------------------------------------------------------------------


def gguf(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """The whole file of a model. Raises UsageProblem where it cannot be written."""
    eos = min(generation.eos_ids(model.generation_config), default=None)
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[index]
    entries = [*model_entries(model), *tokenizer_entries(tokenizer, int(rows), eos)]
    weights = list(tensors(model))
    head = [b"GGUF", struct.pack("<IQQ", 3, len(weights), len(entries))]
    for key, kind, value in entries:
        head.append(_string(key))
        if isinstance(value, list):
            head.append(struct.pack("<IIQ", ARRAY, kind, len(value)))
            head += [_value(kind, item) for item in value]
        else:
            head += [struct.pack("<I", kind), _value(kind, value)]
    data: list[bytes] = []
    offset = 0
    for name, weight in weights:
        shape = weight.shape[::-1]  # the format counts from the innermost dimension
        head += [_string(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TENSOR_FLOAT32, offset)]
        data.append(_aligned(weight.contiguous().numpy().tobytes()))
        offset += len(data[-1])
    return b"".join([_aligned(b"".join(head)), *data])


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(kind: int, value: Any) -> bytes:
    return (
        _string(value)
        if kind == STRING
        else struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)
    )


def _aligned(content: bytes) -> bytes:
    return content + bytes(-len(content) % ALIGNMENT)


# --- the command ------------------------------------------------------------------------------------------------------


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument(
        "--target", type=parsing.some_name, default=loading.LAB_TARGET, help="folder, hub name, lab:SIZE"
    )
    parser.add_argument("--draft", type=parsing.some_name, default="model", help="model (the lab's own), or the same")
    parser.add_argument("--out", type=parsing.some_path, required=True, help="folder of target.gguf and draft.gguf")
    args = parser.parse_args(argv)
    prepare_folder(args.out, "--out")
    names = {"target": args.target, "draft": loading.LAB_DRAFT if args.draft == "model" else args.draft}
    for role, name in names.items():
        tokenizer = loading.load_tokenizer(name)
        model = loading.load_model(name, torch.device("cpu"), torch.float32, role)
        note(f"wrote {shown(write_whole(Path(args.out) / f'{role}.gguf', gguf(model, tokenizer)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
