"""What the head of a GGUF file says about the model, as settings of the library's config.

The library's converter reads some entries of each family and drops the others without a word. So every entry of the
file's architecture is read here: it becomes a setting, it is known to change no number, or the file is refused by its
name. Meanings and defaults are llama.cpp's (src/llama-model.cpp, load_hparams).
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from speclab.system.errors import EnvironmentProblem

# An entry -> the names that families of the library give it. A family without any of them has no place for it.
NORM = "rms_norm_eps layer_norm_epsilon layer_norm_eps norm_epsilon norm_eps"
PLACES = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_epsilon": NORM,
    "attention.layer_norm_rms_epsilon": NORM,
    "attention.relative_buckets_count": "relative_attention_num_buckets",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "decoder_start_token_id": "decoder_start_token_id",
    "expert_used_count": "num_experts_per_tok",
    "expert_weights_norm": "norm_topk_prob",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Sizes of tensors: the library loads no weights of another size, so a family needs no place for them.
SIZES = {
    "context_length": "max_position_embeddings n_positions",
    "decoder_block_count": "num_decoder_layers",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "feed_forward_length": "intermediate_size ffn_hidden_size n_inner d_ff",
    "vocab_size": "vocab_size",
}
READ = "block_count embedding_length expert_count shortconv.l_cache ssm.conv_kernel ssm.group_count ssm.inner_size"
SIZES |= dict.fromkeys([*READ.split(), "ssm.state_size", "ssm.time_step_rank"], "")  # the library reads all of these
# The tensors or the library itself say the same (llama.cpp does not read use_parallel_residual of this family either).
HARMLESS = ["full_attention_interval", "nextn_predict_layers", "pooling_type", "tensor_data_layout"]
HARMLESS += ["use_parallel_residual", "rope.scaling.finetuned"]
NEUTRAL = dict.fromkeys(["expert_weights_scale", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"], 1)
LARGEST = {"gemma2": 46, "gemma3_text": 62}  # layers of the model whose queries are scaled by hidden_size / heads
FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")  # tensors, not entries
ENDS = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]


class _Entries(dict):
    """The entries of the file's architecture that nobody has read yet, without its name before them."""

    def __init__(self, entries: Mapping[str, Any], family: str):
        self.prefix, self.family = f"{entries['general.architecture']}.", family
        super().__init__((k.removeprefix(self.prefix), v) for k, v in entries.items() if k.startswith(self.prefix))

    def refuse(self, entry: str, value: Any) -> NoReturn:
        """Raise EnvironmentProblem with the name of an entry."""
        raise EnvironmentProblem(
            f"its entry {self.prefix}{entry} = {value} may change what the model computes, and the library's "
            f"{self.family} has no place for it"
        )

    def expect(self, entry: str, right: Any) -> None:
        """Take an entry that may have one value only, where it is there at all."""
        if (value := self.pop(entry, right)) != right:
            self.refuse(entry, value)


def applied(
    settings: Mapping[str, Any],
    entries: Mapping[str, Any],
    tensors: Collection[str],
    factors: Mapping[str, list[float]],
) -> dict[str, Any]:
    """Return the library's settings of a file with all entries of its head applied.

    tensors: their names. factors: the values of those in FACTORS. Raises EnvironmentProblem with the name of an entry
    that the library's model of this family cannot follow.
    """
    from transformers import AutoConfig

    default = AutoConfig.for_model(settings["model_type"])
    names, settings = {*default.to_dict(), *default.attribute_map}, dict(settings)
    if "use_sliding_window" in names:  # such a model has windows in some of its layers, and no entry says in which
        names -= {"sliding_window", "layer_types"}
    left = _Entries(entries, settings["model_type"])
    if rope := getattr(default, "rope_parameters", None):
        _set_rope(left, settings, settings.get("rope_parameters") or rope, factors)
    if left.get("attention.head_count"):
        _set_heads(left, settings, names, getattr(default, "multi_query", False))
    if settings["model_type"] == "mistral":
        left.setdefault("attention.sliding_window", 0)  # llama.cpp runs these models without a window
    if "feed_forward_proj" in names:
        settings["feed_forward_proj"] = "gated-gelu" if any("ffn_gate" in name for name in tensors) else "relu"
        settings.pop("is_gated_act", None)
    left.expect("attention.causal", True)
    left.expect("expert_gating_func", 2 if settings["model_type"] == "minimax_m2" else 1)
    if "layer_types" in names and (pattern := left.pop("attention.sliding_window_pattern", None)):
        n_layers = left["block_count"]
        slides = pattern if isinstance(pattern, list) else [i % pattern < pattern - 1 for i in range(n_layers)]
        settings["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in slides[:n_layers]]
    for entry, value in left.items():
        place = next((name for name in (PLACES | SIZES).get(entry, "").split() if name in names), None)
        if place and entry in SIZES:
            settings.setdefault(place, value)  # the library knows better where it counts layers in another way
        elif place and value is not None and not isinstance(value, list):
            settings[place] = value or None if "softcapping" in entry or "window" in entry else value
        elif entry not in (*SIZES, *HARMLESS) and (value is None or value not in (0, NEUTRAL.get(entry))):
            left.refuse(entry, "a list" if value is None else value)
    library = settings.get("eos_token_id")
    ends = [*(library if isinstance(library, list) else [library]), *(entries.get(end) for end in ENDS)]
    ids = list(dict.fromkeys(end for end in ends if end is not None))
    # What the file does not name must not be what the library's class has for another checkpoint.
    settings["eos_token_id"] = ids if len(ids) > 1 else next(iter(ids), None)
    settings.setdefault("pad_token_id", None)
    return settings


def _set_heads(left: _Entries, settings: dict[str, Any], names: Collection[str], one_pair: bool) -> None:
    """Set what heads are. one_pair: all heads of such a model have the same keys and values."""
    n_heads, n_wide = left["attention.head_count"], left["embedding_length"]
    left.setdefault("attention.head_count_kv", n_heads)
    if "num_key_value_heads" not in names:
        left.expect("attention.head_count_kv", 1 if one_pair else n_heads)
    elif isinstance(left["attention.head_count_kv"], list):  # a number for each layer, which the library reads
        del left["attention.head_count_kv"]
    width = left.setdefault("attention.key_length", n_wide // n_heads)
    if "head_dim" not in names:
        left.expect("attention.key_length", n_wide // n_heads)
    for entry in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        left.expect(entry, width)
    if "query_pre_attn_scalar" in names:
        largest = LARGEST.get(settings["model_type"]) == left["block_count"]
        settings["query_pre_attn_scalar"] = n_wide // n_heads if largest else width


def _set_rope(left: _Entries, settings: dict[str, Any], rope: dict[str, Any], factors: Mapping[str, Any]) -> None:
    """Set the rotation of queries and keys. rope: the library's parameters, those of each type of layer where they
    differ."""
    rope = {key: dict(value) if isinstance(value, dict) else value for key, value in rope.items()}
    full = rope.get("full_attention", rope)  # layers with a window have a base of their own, and no scaling
    if full is not rope:
        rope["sliding_attention"]["rope_theta"] = left.pop("rope.freq_base_swa", 10000.0)
    width = left.get("attention.key_length") or left["embedding_length"] // left["attention.head_count"]
    left.expect("rope.dimension_count_swa", width)
    if "partial_rotary_factor" in full:
        # One step up, since the library rounds the product with the width down.
        full["partial_rotary_factor"] = math.nextafter(left.pop("rope.dimension_count", width) / width, 1)
    left.expect("rope.dimension_count", settings.get("rotary_dim", width))
    if "mrope_section" in full:
        left.pop("rope.dimension_sections", None)
    kind = left.pop("rope.scaling.type", "linear")
    factor = left.pop("rope.scaling.factor", left.pop("rope.scale_linear", 0)) or 1
    factor = 1 if kind == "none" else factor
    attention = left.pop("rope.scaling.attn_factor", 1)
    original = left.pop("rope.scaling.original_context_length", 0) or left["context_length"]
    scaled: dict[str, Any] = {"rope_type": "default"}
    if factors and kind != "yarn":
        short, long = (factors.get(name, factors.get(FACTORS[0], [])) for name in FACTORS[1:])
        scaled = {"rope_type": "longrope", "original_max_position_embeddings": original, "attention_factor": attention}
        scaled |= {"short_factor": [factor * x for x in short], "long_factor": [factor * x for x in long]}
        settings["original_max_position_embeddings"] = original
    elif kind == "yarn" and not factors:
        scaled = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        scaled["attention_factor"] = attention * (0.1 * math.log(factor) + 1)
        for beta, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            scaled[beta] = left.pop(f"rope.scaling.yarn_{beta}", usual)
        settings["original_max_position_embeddings"] = original
    elif kind in ("linear", "none"):
        scaled = {"rope_type": "linear", "factor": factor} if factor != 1 else scaled
        if attention != 1:
            left.refuse("rope.scaling.attn_factor", attention)
    else:
        left.refuse("rope.scaling.type", kind)
    kept = ["partial_rotary_factor", "mrope_section", "mrope_interleaved"] + ["truncate"] * (kind == "yarn")
    same = {name: full[name] for name in kept if name in full}
    settings.pop("rope_theta", None), settings.pop("rope_scaling", None)
    full.clear()
    full.update({"rope_theta": left.pop("rope.freq_base", 10000.0)} | same | scaled)
    settings["rope_parameters"] = rope
