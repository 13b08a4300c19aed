"""What the head of a GGUF file says about the model, as settings of the library's config.

The library's converter reads some entries of each family and drops the others without a word. So every entry of the
file's architecture is read here: it becomes a setting, it is known to change no number, or the file is refused by its
name. Meanings and defaults are llama.cpp's (src/llama-model.cpp, load_hparams).
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from speclab.system.errors import EnvironmentProblem

FAMILIES = ("llama", "qwen2", "qwen3", "starcoder2", "gemma2", "gemma3_text")  # as the library calls them
# An entry -> the names that families of the library give it. A family without any of them has no place for it.
PLACES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_epsilon": "rms_norm_eps norm_epsilon",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_epsilon",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Values that change nothing. So is 0, of every entry.
NEUTRAL = {"rope.scaling.finetuned": True, "rope.scaling.yarn_attn_factor": 1, "rope.scaling.yarn_ext_factor": 1}
LARGEST = {"gemma2": 46, "gemma3_text": 62}  # layers of the model whose queries are scaled by hidden_size / heads
FACTORS = "rope_freqs.weight"  # a tensor, not an entry: what Llama 3 divides its frequencies by
ENDS = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]


class _Entries(dict):
    """The entries of the file's architecture that nobody has read yet, without its name before them."""

    def __init__(self, entries: Mapping[str, Any], family: str):
        self.prefix, self.family = f"{entries['general.architecture']}.", family
        super().__init__((k.removeprefix(self.prefix), v) for k, v in entries.items() if k.startswith(self.prefix))

    def refuse(self, entry: str, value: Any) -> NoReturn:
        raise EnvironmentProblem(
            f"its entry {self.prefix}{entry} = {value} may change what the model computes, and the library's "
            f"{self.family} has no place for it"
        )

    def expect(self, entry: str, right: Any) -> None:
        """Take an entry that may have one value only, where it is there at all."""
        if (value := self.pop(entry, right)) != right:
            self.refuse(entry, value)


def applied(settings: Mapping[str, Any], entries: Mapping[str, Any], factors: list[float]) -> dict[str, Any]:
    """Return the library's settings of a file with all entries of its head applied. factors: the tensor FACTORS, or
    none.

    Raises EnvironmentProblem with the name of an entry that the library's model of this family cannot follow.
    """
    from transformers import AutoConfig

    settings = dict(settings)
    if settings["model_type"] == "mistral":  # so the library calls some files of the architecture llama
        settings["model_type"] = "llama"
    family = settings["model_type"]
    if family not in FAMILIES:
        raise EnvironmentProblem(f"its entries are known for {', '.join(FAMILIES)}, and it is {family}")
    default, left = AutoConfig.for_model(family), _Entries(entries, family)
    names = {*default.to_dict(), *default.attribute_map}
    if "use_sliding_window" in names:  # such a model has windows in some of its layers, and no entry says in which
        names -= {"sliding_window"}
    usual = left["embedding_length"] // left["attention.head_count"]
    width = left.setdefault("attention.key_length", usual)
    left.setdefault("attention.head_count_kv", left["attention.head_count"])
    if "head_dim" not in names:
        left.expect("attention.key_length", usual)
    for entry in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        left.expect(entry, width)
    if "query_pre_attn_scalar" in names:
        settings["query_pre_attn_scalar"] = usual if left["block_count"] == LARGEST[family] else width
    left.expect("attention.causal", True)
    _set_rope(left, settings, copy.deepcopy(default.rope_parameters), width, factors)
    for entry, value in left.items():
        place = next((name for name in PLACES.get(entry, "").split() if name in names), None)
        if place and value is not None:
            settings[place] = value or None if "softcapping" in entry or "window" in entry else value
        elif value is None or value not in (0, NEUTRAL.get(entry)):
            left.refuse(entry, "a list" if value is None else value)
    library = settings.get("eos_token_id")
    ends = [*(library if isinstance(library, list) else [library]), *(entries.get(end) for end in ENDS)]
    ids = list(dict.fromkeys(end for end in ends if end is not None))
    # What the file does not name must not be what the library's class has for another checkpoint.
    settings["eos_token_id"] = ids if len(ids) > 1 else next(iter(ids), None)
    settings.setdefault("pad_token_id", None)
    return settings


def _set_rope(left: _Entries, settings: dict[str, Any], rope: dict[str, Any], width: int, factors: list[float]) -> None:
    """Set the rotation of queries and keys. rope: the library's parameters, those of each type of layer where they
    differ."""
    full = rope.get("full_attention", rope)  # layers with a window have a base of their own, and no scaling
    if full is not rope:
        rope["sliding_attention"]["rope_theta"] = left.pop("rope.freq_base_swa", 10000.0)
    for entry in ("rope.dimension_count", "rope.dimension_count_swa"):
        left.expect(entry, width)
    kind = left.pop("rope.scaling.type", "linear")
    factor = left.pop("rope.scaling.factor", left.pop("rope.scale_linear", 0)) or 1
    factor = 1 if kind == "none" else factor
    original = left.pop("rope.scaling.original_context_length", 0) or left["context_length"]
    scaled: dict[str, Any] = {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}
    if kind == "yarn" and not factors:
        scaled = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        scaled["attention_factor"] = left.pop("rope.scaling.attn_factor", 1) * (0.1 * math.log(factor) + 1)
        for beta, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            scaled[beta] = left.pop(f"rope.scaling.yarn_{beta}", usual)
    elif kind not in ("linear", "none"):
        left.refuse("rope.scaling.type", kind)
    elif factors:
        scaled = {"rope_type": "longrope", "original_max_position_embeddings": original, "attention_factor": 1.0}
        scaled |= {f"{name}_factor": [factor * x for x in factors] for name in ("short", "long")}
    left.expect("rope.scaling.attn_factor", 1)
    settings.pop("rope_theta", None), settings.pop("rope_scaling", None)
    full.clear()
    full.update({"rope_theta": left.pop("rope.freq_base", 10000.0)} | scaled)
    settings["rope_parameters"] = rope
