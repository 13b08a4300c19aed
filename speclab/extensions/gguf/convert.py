"""The conversion of a GGUF file: the library reads it, and here every entry of its head becomes a setting of the model.

The library's converter reads some entries of each family and drops the others without a word. So every entry of the
file's architecture is read here: it becomes a setting, it is known to change no number, or the file is refused by its
name. Meanings and defaults are llama.cpp's (src/llama-model.cpp, load_hparams).
"""

import copy
import math
import os
import shutil
import tempfile
from typing import Any

import torch
from gguf import GGUFReader, GGUFValueType, dequantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

OPTIONS: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
FAMILIES = ("llama", "qwen2", "qwen3", "starcoder2", "gemma2", "gemma3_text")  # as the library calls them
# An entry -> the names that families of the library give it. A family without any of them has no place for it.
PLACES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_epsilon": "rms_norm_eps norm_epsilon",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_epsilon",
    "attention.sliding_window": "sliding_window",
}
PLACES |= {name: name for name in ("vocab_size", "attn_logit_softcapping", "final_logit_softcapping")}
# Entries without a place -> the values that change nothing; of every other one it is 0, of WIDTHS the width of a head.
NEUTRAL = {"attention.causal": (True,), "rope.scaling.attn_factor": (1,), "rope.scaling.type": ("linear", "none")}
NEUTRAL |= {f"rope.scaling.{name}": (0, 1) for name in ("finetuned", "yarn_attn_factor", "yarn_ext_factor")}
WIDTHS = [f"attention.{name}" for name in ("value_length", "key_length_swa", "value_length_swa")]
WIDTHS += ["rope.dimension_count", "rope.dimension_count_swa"]
LARGEST = {"gemma2": 46, "gemma3_text": 62}  # layers of the model whose queries are scaled by hidden_size / heads
FACTORS = "rope_freqs.weight"  # a tensor, not an entry: what Llama 3 divides its frequencies by
ENDS = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]


def convert(file: str, folder: str) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder. Raises ValueError, and the library's errors."""
    with tempfile.TemporaryDirectory() as alone:  # so that the library reads no other file beside it
        place = os.path.join(alone, "model.gguf")
        (shutil.copyfile if os.name == "nt" else os.symlink)(file, place)  # Windows asks for a privilege for links
        read_model(alone, "model.gguf").save_pretrained(folder)
        AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", **OPTIONS).save_pretrained(folder)


def read_model(folder: str, name: str) -> Any:
    """Return the model of a GGUF file. Raises as `convert`."""
    reader = GGUFReader(os.path.join(folder, name))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    entries = {k: None if f.types[0] == GGUFValueType.ARRAY else f.contents() for k, f in reader.fields.items()}
    factors = tensors.pop(FACTORS, None)
    numbers = dequantize(factors.data, factors.tensor_type).tolist() if factors else []
    config = config_of(PreTrainedConfig.get_config_dict(folder, gguf_file=name, **OPTIONS)[0], entries, numbers)
    if not 1 <= config.num_hidden_layers <= len(tensors):
        raise ValueError(f"it names {config.num_hidden_layers} layers and {len(tensors)} tensors")
    loader: Any = AutoModelForCausalLM
    wanted = {"dtype": torch.float32, "output_loading_info": True, "config": config, **OPTIONS}
    model, report = loader.from_pretrained(folder, gguf_file=name, **wanted)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"it lacks the weights {', '.join(missing[:3])}" + " and more" * (len(missing) > 3))
    if config.tie_word_embeddings:
        tensors.pop("output.weight", None)  # the embeddings again
    own = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    if (n_unused := sum(int(tensor.n_elements) for tensor in tensors.values()) - sum(own.values())) > 0:
        raise ValueError(f"{n_unused} numbers of its tensors have no place in the library's {config.model_type}")
    if hasattr(model.config, "quantization_config"):  # the weights are plain numbers from here on
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    return model


def config_of(settings: dict[str, Any], entries: dict[str, Any], factors: list[float]) -> PreTrainedConfig:
    """Return what the library's converter says of a file, with all entries of its head applied. factors: the tensor
    FACTORS, or none. Raises ValueError with the name of an entry that the library's model cannot follow."""
    family, prefix = settings["model_type"], f"{entries['general.architecture']}."
    family = "llama" if family == "mistral" else family  # so the library calls some files of the architecture llama
    if family not in FAMILIES:
        raise ValueError(f"its entries are known for {', '.join(FAMILIES)}, and it is {family}")
    default = AutoConfig.for_model(family)
    names, rope = {*default.to_dict(), *default.attribute_map}, copy.deepcopy(default.rope_parameters)
    if "use_sliding_window" in names:  # such a model has windows in some of its layers, and no entry says in which
        names -= {"sliding_window"}
    left = {name.removeprefix(prefix): value for name, value in entries.items() if name.startswith(prefix)}
    usual = left["embedding_length"] // left["attention.head_count"]
    width = left.setdefault("attention.key_length", usual)
    left.setdefault("attention.head_count_kv", left["attention.head_count"])
    full = rope.get("full_attention", rope)  # layers with a window have a base of their own, and no scaling
    if full is not rope:
        rope["sliding_attention"]["rope_theta"] = left.pop("rope.freq_base_swa", 10000.0)
    full.clear()
    full.update(_rotation(left, factors))
    # What the file does not name must not be what the library's class has for another checkpoint.
    ends = list(dict.fromkeys(entries[end] for end in ENDS if end in entries)) or None
    found = {"pad_token_id": None, **settings, "model_type": family, "rope_parameters": rope, "eos_token_id": ends}
    found.pop("rope_theta", None)  # it is one of the parameters
    if "query_pre_attn_scalar" in names:
        found["query_pre_attn_scalar"] = usual if left["block_count"] == LARGEST[family] else width
    neutral = {**NEUTRAL, **dict.fromkeys(WIDTHS, (width,)), "attention.key_length": (usual,)}
    for entry, value in left.items():
        place = next((name for name in PLACES.get(entry, "").split() if name in names), None)
        if place and value is not None:
            found[place] = value or None if "softcapping" in entry or "window" in entry else value
        elif value not in neutral.get(entry, (0,)):
            raise ValueError(
                f"its entry {prefix}{entry} = {'a list' if value is None else value} may change what the model "
                f"computes, and the library's {family} has no place for it"
            )
    return type(default).from_dict(found)


def _rotation(left: dict[str, Any], factors: list[float]) -> dict[str, Any]:
    """Take what says how queries and keys are turned out of `left`.  -> the library's parameters"""
    kind, base = left.get("rope.scaling.type"), dict[str, Any](rope_theta=left.pop("rope.freq_base", 10000.0))
    factor = left.pop("rope.scaling.factor", left.pop("rope.scale_linear", 0)) or 1
    factor = 1 if kind == "none" else factor
    length = left.pop("rope.scaling.original_context_length", 0) or left["context_length"]
    scaled = base | {"original_max_position_embeddings": length}
    if factors:
        scaled["short_factor"] = scaled["long_factor"] = [factor * x for x in factors]
        return scaled | {"rope_type": "longrope", "attention_factor": 1.0}
    if kind == "yarn":
        del left["rope.scaling.type"]
        mean = left.pop("rope.scaling.attn_factor", 1) * (0.1 * math.log(factor) + 1)
        for beta, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            scaled[beta] = left.pop(f"rope.scaling.yarn_{beta}", usual)
        return scaled | {"rope_type": "yarn", "factor": factor, "attention_factor": mean}
    return base | ({"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"})
