"""The config.json of a head may have these entries: each one that the lab reads is declared once.

An entry is there with its type and its range, or it is refused by its name. An entry of the format that would change
what a head computes, and that the lab does not compute, is declared with the one value that changes nothing. Entries
that are not declared are never read; those that nobody knows are named in one line (`unknown`).

Reading needs pydantic, so this module is imported where a head is read and nowhere else.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

MOST_LAYERS, MOST_SLOTS = 64, 256  # several times more than any published head has
# Entries of the format that say how a head was trained, or when a draft may stop: they change no logits.
HARMLESS = {
    *("speculators_version", "speculators_config", "auto_map", "has_no_defaults_at_init", "target", "format"),
    *("embed_requires_grad", "enable_sp_ulysses", "num_anchors", "max_anchors", "ce_loss_alpha", "l1_loss_alpha"),
    *("confidence_head_alpha", "loss_decay_gamma", "enable_confidence_head", "confidence_head_with_markov", "auf"),
    *("lambda_base_start", "lambda_base_decay_ratio", "pure_draft_prefix_len", "emb_dim", "gru_hidden_dim"),
    *("initializer_range", "use_cache", "attention_dropout", "pretraining_tp", "num_labels", "torch_dtype"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "_name_or_path", "_attn_implementation", "attn_implementation"),
    *("tie_word_embeddings", "transformers_version", "output_attentions"),
}


def _as_whole(value: Any) -> Any:
    """JSON has one kind of number, and some tools write 8192 as 8192.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _neutral(said: Any) -> Any:
    if said not in (1, {}):
        raise ValueError("the lab does not compute it, so it should be left out")
    return said


Whole = Annotated[int, BeforeValidator(_as_whole)]
Size = Annotated[Whole, Field(ge=1, le=2**24)]  # products of a few sizes stay far below 2**63
Positive = Annotated[float, Field(gt=0, le=1e12)]
Scale = Annotated[float, Field(ge=0, le=1e12)]  # 0: it is as if it were left out
Base = Annotated[float, Field(gt=1, le=1e12)]  # of the rotary frequencies, whose logarithm is a divisor
States = Annotated[list[Size], Field(min_length=1, max_length=MOST_LAYERS)]
Rope = Literal["default", "linear", "llama3", "yarn"]  # the same for a position, however long the text is
# Entries of the types One and Empty change nothing, so no config of the library is given them. One is a factor that the
# lab does not compute, or the part of an attention head that turns: the lab turns the whole.
One = Annotated[Annotated[float, AfterValidator(_neutral)] | None, Field(exclude=True)]
Empty = Annotated[Annotated[dict[str, Any], AfterValidator(_neutral)] | None, Field(exclude=True)]
WORDS = {
    "Input should": "it should",
    "List should": "it should",
    "Extra inputs are not permitted": (
        "the lab does not know it, and it may change how positions turn; it should be left out where it does not"
    ),
}
NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _known_activation(name: str) -> str:
    if name not in ACT2FN:
        raise ValueError("it is no activation that the library knows")
    return name


class Declared(BaseModel):
    """This is the base of all entries: it refuses other types, and numbers that are not finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class Rotary(Declared):
    """These say how positions turn queries and keys. An unknown one may change that, so it is refused."""

    model_config = ConfigDict(extra="forbid")

    rope_type: Rope | None = None
    type: Rope | None = None  # its older name
    rope_theta: Base | None = None
    factor: Annotated[float, Field(ge=1, le=1e12)] | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Size | None = None
    mscale: Scale | None = None
    mscale_all_dim: Scale | None = None
    truncate: bool | None = None
    # Parts of a head that turn by the time, height and width of an image; the three are one position in a text.
    mrope_section: Annotated[Annotated[list[Size], Field(max_length=3)] | None, Field(exclude=True)] = None
    mrope_interleaved: Annotated[bool | None, Field(exclude=True)] = None
    partial_rotary_factor: One = None

    @model_validator(mode="after")
    def _is_whole(self) -> "Rotary":
        kind = self.rope_type or self.type or "default"
        if lacking := [name for name in NEEDED.get(kind, ()) if getattr(self, name) is None]:
            raise ValueError(f"rope_type {kind} needs {lacking[0]}")
        return self


class Layer(Declared):
    """These are the sizes of the decoder layers. The library fills in what is left out, by the model_type."""

    model_type: Literal["llama", "qwen3"] | None = None
    vocab_size: Size | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_hidden_layers: Annotated[Whole, Field(ge=1, le=MOST_LAYERS)] | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Annotated[str, AfterValidator(_known_activation)] | None = None
    max_position_embeddings: Size | None = None
    rms_norm_eps: Annotated[float, Field(ge=0, le=1)] | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    rope_parameters: Rotary | None = None
    rope_scaling: Rotary | None = None  # the older name
    rope_theta: Base | None = None
    partial_rotary_factor: One = None
    layer_types: (
        Annotated[list[Literal["full_attention", "sliding_attention"]], Field(max_length=MOST_LAYERS)] | None
    ) = None
    use_sliding_window: bool | None = None
    sliding_window: Size | None = None
    max_window_layers: Annotated[Whole, Field(ge=0, le=2**24)] | None = None
    attn_logit_softcapping: None = None
    final_logit_softcapping: None = None
    logit_scale: One = None
    quantization_config: Empty = None

    def options(self) -> dict[str, Any]:
        """This gives what a config of the library takes."""
        return self.model_dump(exclude_none=True, exclude={"model_type"})


class Head(Declared):
    """Heads of all kinds have these."""

    transformer_layer_config: Layer
    draft_vocab_size: Size
    target_hidden_size: Size | None = None
    final_logit_softcapping: None = None
    logit_scale: One = None
    embedding_scale: One = None
    quantization_config: Empty = None


class Feature(Head):
    """A head of the kind eagle3 has these."""

    speculators_model_type: Literal["eagle3"]
    eagle_aux_hidden_state_layer_ids: States | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @model_validator(mode="after")
    def _has_one_norm(self) -> "Feature":
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm are both true, and the format knows no head with both")
        if (self.transformer_layer_config.num_hidden_layers or 1) != 1:
            raise ValueError("its decoder is not one layer of llama or qwen3")
        return self


class Block(Head):
    """Heads of the kinds dflash and dspark have these."""

    speculators_model_type: Literal["dflash", "dspark"]
    aux_hidden_state_layer_ids: States
    block_size: Annotated[Whole, Field(ge=1, le=MOST_SLOTS)]
    mask_token_id: Annotated[Whole, Field(ge=0, lt=2**24)]
    sample_from_anchor: bool = False  # as engines take it where it is not said
    sliding_window_non_causal: bool = False
    causal: bool | None = None
    markov_rank: Annotated[Whole, Field(ge=0, le=2**24)] = 256
    markov_head_type: Literal["vanilla"] = "vanilla"
    projector_type: Literal["dflash"] = "dflash"
    shift_label: Literal[False] = False

    @model_validator(mode="after")
    def _fits(self) -> "Block":
        layer = self.transformer_layer_config
        if layer.model_type not in (None, "qwen3") or layer.num_hidden_layers is None:
            raise ValueError(f"its decoder is not 1 to {MOST_LAYERS} layers of qwen3")
        if self.block_size == 1 and not self.sample_from_anchor:
            raise ValueError("block_size is 1 and sample_from_anchor is not true: it proposes nothing")
        return self


KINDS: dict[str, type[Declared]] = {"feature": Feature, "block": Block}  # by the kind of draft
Kind = TypeVar("Kind", bound=Declared)


def checked(found: dict[str, Any], kind: type[Kind]) -> Kind:
    """This reads the entries as they are declared; null counts as left out. A ValueError names the first wrong one."""
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    try:
        return kind.model_validate(dict.fromkeys(needed) | _without_nulls(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = first["msg"].removeprefix("Value error, ").replace("Input should be None", "it should be left out")
        why = re.sub("^(Input|List) should|Extra inputs are not permitted", lambda m: WORDS[m[0]], why)
        why = re.sub(" after validation| or instance of .*", "", why)
        if first["type"] == "value_error" and where in ("", "transformer_layer_config"):
            raise ValueError(why) from None
        given = "is missing or null" if first["input"] is None else f"is {str(first['input'])!r}"
        if not isinstance(first["input"], str | None):
            given = f"is {first['input']!r}"
        raise ValueError(f"{where} {given[:60]}; {why}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def unknown(found: dict[str, Any], kind: type[Declared]) -> list[str]:
    """This names the entries that are neither declared nor known to change nothing, those of the layers too."""
    return sorted(_unknown(found, kind, ""))


def _unknown(found: dict[str, Any], kind: type[Declared], within: str) -> Iterator[str]:
    for name, value in found.items():
        if name == "transformer_layer_config" and isinstance(value, dict):
            yield from _unknown(value, Layer, f"{name}.")
        elif name not in kind.model_fields and name not in HARMLESS and not hasattr(PreTrainedConfig, name):
            yield within + name
