"""What the config.json of a head or of an early-exit adapter may say: every entry that the lab reads, declared once.

An entry is there with its type and its range, or it is refused by its name. An entry of the format that would change
what a head computes, and that the lab does not compute, is declared with the one value that changes nothing. Entries
that are not declared are never read; those that nobody knows are named in one line (`unknown`).

Reading needs pydantic, so this module is imported where a head is read and nowhere else.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
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
Size = Annotated[int, Field(ge=1, le=2**24)]  # products of a few sizes stay far below 2**63
Positive = Annotated[float, Field(gt=0, le=1e12)]
Base = Annotated[float, Field(gt=1, le=1e12)]  # of the rotary frequencies, whose logarithm is a divisor
States = Annotated[list[Size], Field(min_length=1, max_length=MOST_LAYERS)]
Rope = Literal["default", "linear", "llama3", "yarn"]  # the same for a position, however long the text is
Whole = Annotated[float, Field(ge=1, le=1)]  # the lab rotates every number of an attention head
NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _known_activation(name: str) -> str:
    if name not in ACT2FN:
        raise ValueError("it is no activation that the library knows")
    return name


class Entries(BaseModel):
    """Base: other types and numbers that are not finite are refused."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class Rotary(Entries):
    """How positions turn queries and keys. Every entry changes that, so an unknown one is refused."""

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
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    truncate: bool | None = None
    partial_rotary_factor: Whole | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "Rotary":
        kind = self.rope_type or self.type or "default"
        if lacking := [name for name in NEEDED.get(kind, ()) if getattr(self, name) is None]:
            raise ValueError(f"rope_type {kind} needs {lacking[0]}")
        return self


class Layer(Entries):
    """Sizes of the decoder layers. What is left out is what the library takes for this model_type."""

    model_type: Literal["llama", "qwen3"] | None = None
    vocab_size: Size | None = None
    hidden_size: Size | None = None
    intermediate_size: Size | None = None
    num_hidden_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None = None
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
    partial_rotary_factor: Whole | None = None
    layer_types: (
        Annotated[list[Literal["full_attention", "sliding_attention"]], Field(max_length=MOST_LAYERS)] | None
    ) = None
    use_sliding_window: bool | None = None
    sliding_window: Size | None = None
    max_window_layers: Annotated[int, Field(ge=0, le=2**24)] | None = None
    attn_logit_softcapping: None = None
    final_logit_softcapping: None = None
    logit_scale: None = None
    quantization_config: None = None

    def options(self) -> dict[str, Any]:
        """What a config of the library takes."""
        return self.model_dump(exclude_none=True, exclude={"model_type"})


class Head(Entries):
    """What heads of all kinds say."""

    transformer_layer_config: Layer
    draft_vocab_size: Size
    target_hidden_size: Size | None = None
    final_logit_softcapping: None = None
    logit_scale: None = None
    embedding_scale: None = None
    quantization_config: None = None


class Feature(Head):
    """eagle3."""

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
    """dflash and dspark."""

    speculators_model_type: Literal["dflash", "dspark"]
    aux_hidden_state_layer_ids: States
    block_size: Annotated[int, Field(ge=1, le=MOST_SLOTS)]
    mask_token_id: Annotated[int, Field(ge=0, lt=2**24)]
    sample_from_anchor: bool = False  # as engines take it where it is not said
    sliding_window_non_causal: bool = False
    causal: bool | None = None
    markov_rank: Annotated[int, Field(ge=0, le=2**24)] = 256
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


class Exit(Entries):
    """An adapter of early exit."""

    format: Literal["speculative-decoding-lab early exit 1"]
    exit_layer: Size
    target_layers: Size
    transformer_layer_config: Layer

    @model_validator(mode="after")
    def _is_one_layer(self) -> "Exit":
        own = self.transformer_layer_config.num_hidden_layers
        if self.exit_layer >= self.target_layers or own != 1:
            raise ValueError(
                f"it exits after layer {self.exit_layer} of {self.target_layers}, with layers of its own: {own}; "
                "the lab reads adapters of one layer, behind a layer that is not the last"
            )
        if self.transformer_layer_config.model_type == "qwen3":
            raise ValueError("its decoder is not one layer of llama")
        return self


KINDS: dict[str, type[Entries]] = {"feature": Feature, "block": Block, "exit": Exit}  # by the kind of draft
Kind = TypeVar("Kind", bound=Entries)


def checked(found: dict[str, Any], kind: type[Kind]) -> Kind:
    """The entries as they are declared; null counts as left out. ValueError with the first wrong entry's name."""
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    try:
        return kind.model_validate(dict.fromkeys(needed) | _without_nulls(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = first["msg"].removeprefix("Value error, ").replace("Input should be None", "it should be left out")
        why = why.replace("Input should", "it should")
        if first["type"] == "value_error" and where in ("", "transformer_layer_config"):
            raise ValueError(why) from None
        given = "is missing" if first["input"] is None else f"is {str(first['input'])!r}"
        if not isinstance(first["input"], str | None):
            given = f"is {first['input']!r}"
        raise ValueError(f"{where} {given[:60]}; {why}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def unknown(found: dict[str, Any], kind: type[Entries]) -> list[str]:
    """Names of entries that are neither declared nor known to change nothing, those of the layers included."""
    return sorted(_unknown(found, kind, ""))


def _unknown(found: dict[str, Any], kind: type[Entries], within: str) -> Iterator[str]:
    for name, value in found.items():
        if name == "transformer_layer_config" and isinstance(value, dict):
            yield from _unknown(value, Layer, f"{name}.")
        elif name not in kind.model_fields and name not in HARMLESS and not hasattr(PreTrainedConfig, name):
            yield within + name
