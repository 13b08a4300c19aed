"""How much a model can take in, and what it keeps of it: found by asking it, since configs name things differently."""

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel

from speclab.system.errors import EnvironmentProblem, UsageProblem

N_PROBE = 4  # tokens that fill the states, and as many that are then read in one pass and one by one
PROBE_GAP = 1e-5  # times the largest logit: a pass that does not read its states is off by much more
# A config's names for its number of positions; where encoder and decoder have different ones, those come first.
POSITIONS = ("max_position_embeddings", "max_target_positions", "max_seq_len")
OF_DECODERS = ("max_decoder_position_embeddings",)
OF_ENCODERS = ("max_encoder_position_embeddings", "max_source_positions")
_layers: weakref.WeakKeyDictionary[nn.Module, list] = weakref.WeakKeyDictionary()
_reads_several: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


class NoFastBackend(Exception):
    """Why a model cannot run on a fast backend, or its keys and values not lie in buffers, in one line."""


class Room(NamedTuple):
    """How many positions a model has. None: it sets no limit.

    text: of the prompt and the output together; of an encoder-decoder, of the output and the token that it begins with.
    encoder: of an encoder, which reads the prompt.
    rope: the kind of rotary positions whose factors change behind `text`, "" where no such change is the limit.
    """

    text: int | None
    encoder: int | None = None
    encodes: bool = False  # whether there is an encoder
    rope: str = ""

    @property
    def reason(self) -> str:
        """Why the text ends there although the model reads longer ones, to stand behind the number; "" if it does not.

        A longer text changes the rotary factors of all its positions. The keys in the cache were made with the factors
        from before, so a cached pass and an uncached one give different logits.
        """
        if not self.rope:
            return ""
        return (
            f" (its rope_type is {self.rope}: after it the factors of all positions change, so cached keys would be "
            "those of another model)"
        )

    def length_after(self, n_prompt: int) -> int:
        """Tokens in the cache after a prompt of `n_prompt`; a decoder behind an encoder holds one, its start."""
        return 1 if self.encodes else n_prompt

    def for_prompt(self, n_new: int = 0) -> int | None:
        """Most tokens of a prompt that `n_new` follow."""
        return self.encoder if self.encodes else None if self.text is None else self.text - n_new


def check_room(n_prompt: int, max_new_tokens: int, room: Room) -> None:
    """Raise UsageProblem for a prompt of `n_prompt` tokens that does not fit, or leaves no room for the output."""
    if room.encoder is not None and n_prompt > room.encoder:
        raise UsageProblem(
            f"prompt of {n_prompt} tokens does not fit the {room.encoder} positions of the model's encoder; shorten "
            "the prompt"
        )
    n_before, most = room.length_after(n_prompt), room.text
    if most is None or n_before + max_new_tokens <= most:
        return
    way_out = f"use --max-new-tokens {most - n_before}" if most > n_before else ""
    what = f"{max_new_tokens} new tokens do not fit the {most} positions of the model's decoder; {way_out}"
    if not room.encodes:
        what = f"prompt of {n_prompt} tokens and {max_new_tokens} new ones do not fit the model's context of {most}"
        what += f"{room.reason}; shorten the prompt" + f" or {way_out}" * bool(way_out)
    raise UsageProblem(what)


def check_draft_prompts(
    room: Room,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    read_as: Callable[[list[int]], list[int]],
    whose: str,
) -> str | None:
    """UsageProblem where a prompt, as a draft model reads it, does not fit its room.

    whose: whose tokens these are. -> what to know where the new tokens reach its end, or None
    """
    longest, n = max(((len(read_as(prompt)), len(prompt)) for prompt in prompts), key=lambda pair: pair[0])
    most = room.for_prompt()
    if most is not None and longest > most:
        raise UsageProblem(
            f"a prompt has {longest}{whose} and the draft model's context only {most}{room.reason}; shorten the prompt "
            "or use --draft ngram"
        )
    # The new ones in its own tokens, where it cuts them as it cuts the prompt.
    end = room.length_after(longest) + max_new_tokens * longest / n
    if room.text is None or end <= room.text + 1:
        return None
    return (
        f"the draft model's context is {room.text} tokens{room.reason}: near and beyond it rounds draft fewer, or none"
    )


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Whether an encoder reads the prompt and a decoder makes the text."""
    return model.config.is_encoder_decoder and "decoder_input_ids" in inspect.signature(model.forward).parameters


def decoder_config(model: PreTrainedModel) -> PreTrainedConfig:
    """The config of what makes the text: of the decoder behind an encoder, else the model's own."""
    return model.get_decoder().config if is_encoder_decoder(model) else model.config


def room_of(model: PreTrainedModel) -> Room:
    """How many positions can be decoded with a cache."""
    room = configured_room(model.config)
    if not is_encoder_decoder(model):
        return room._replace(text=_positions(model, room.text))
    text, encoder = _positions(model.get_decoder(), room.text), _positions(model.get_encoder(), room.encoder)
    return Room(text, encoder, encodes=True, rope=room.rope)


def context_length(model: PreTrainedModel) -> int | None:
    """How many positions can be decoded with a cache; None where the model sets no limit."""
    return room_of(model).text


def _positions(model: nn.Module, configured: int | None) -> int | None:
    """Learned positions after a padding index are fewer than the table has rows."""
    limits = [configured]
    for name, module in model.named_modules():
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min((n for n in limits if n), default=None)


def configured_room(config: PreTrainedConfig) -> Room:
    """The same from the config alone, before weights are read: the model's own limits are not above it."""
    decoder = config.get_text_config()
    if not config.is_encoder_decoder:
        return _up_to_borders(decoder, Room(_named(decoder)))
    encoder = getattr(config, "encoder", config).get_text_config()  # a config of its own, or one for both parts
    return _up_to_borders(decoder, Room(_named(decoder, OF_DECODERS), _named(encoder, OF_ENCODERS), True))


def _named(config: PreTrainedConfig, names: tuple[str, ...] = ()) -> int | None:
    """Families name it differently; those in `names` come first."""
    named = (getattr(config, name, None) for name in (*names, *POSITIONS))
    return next((n for n in named if isinstance(n, int) and n > 0), None)


def _up_to_borders(config: PreTrainedConfig, room: Room) -> Room:
    """The room with the border of its rotary factors as the limit, where the config has such a border.

    "longrope" has other factors for texts beyond its original length, and "dynamic" has others for every length beyond
    the named one. The keys that were cached before the border would be wrong after it. Layers may have different kinds.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):
        kind = part.get("rope_type") if isinstance(part, dict) else None
        if kind == "longrope":
            border = part.get("original_max_position_embeddings")
            border = border or getattr(config, "original_max_position_embeddings", None)
            if border and (room.text is None or border < room.text):
                room = room._replace(text=border, rope=kind)
        elif kind == "dynamic" and room.text and not room.rope:
            room = room._replace(rope=kind)
    return room


def start_of(model: PreTrainedModel) -> Tensor:
    """The token that a decoder's text begins with, (1, 1) ids on the model's device."""
    return torch.tensor([[start_id(model)]], device=model.device)


def start_id(model: PreTrainedModel) -> int:
    """The id that a decoder's text begins with, as the library's `generate` chooses it.

    EnvironmentProblem where the checkpoint names none.
    """
    for name in ("decoder_start_token_id", "bos_token_id"):
        for settings in (model.generation_config, model.config):
            if isinstance(found := getattr(settings, name, None), int):
                return found
    raise EnvironmentProblem(
        f"{model.config.model_type} is an encoder-decoder whose config names no decoder_start_token_id; add the id "
        "that its decoder begins with to its generation_config.json"
    )


def embedded_ids(model: PreTrainedModel) -> int:
    """How many ids can be fed: the rows of the input embedding, which may be fewer than the output's."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    except (AttributeError, NotImplementedError):  # no such method, or no single matrix
        return model.config.get_text_config().vocab_size


@torch.inference_mode()
def cached_layers(model: PreTrainedModel) -> list:
    """The layers of a cache that holds two tokens, of a decoder those of its self-attention.

    A config does not tell: layers may differ, share a cache, or keep something smaller than keys and values. Found out
    once for each model.
    """
    if model in _layers:
        return _layers[model]
    cache = DynamicCache(config=decoder_config(model))
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    if is_encoder_decoder(model):
        options = {"past_key_values": EncoderDecoderCache(cache, DynamicCache()), "use_cache": True}
        model(encoder_outputs=model.get_encoder()(input_ids=ids), decoder_input_ids=ids, **options)
    else:
        model(input_ids=ids, **pass_options(model, cache, 0, 2))
    _layers[model] = cache.layers
    return cache.layers


def pass_options(model: PreTrainedModel, cache: Any, length: int, width: int) -> dict[str, Any]:
    """The options of a pass over `width` tokens that goes on from a cache with `length` tokens.

    Some families begin at position 0 where none is given, and those without attention layers know no positions and have
    another name for the cache.
    """
    names = inspect.signature(model.forward).parameters
    options = {"cache_params" if "cache_params" in names else "past_key_values": cache, "use_cache": True}
    if "position_ids" in names:
        options["position_ids"] = torch.arange(length, length + width, device=model.device)[None]
    return options


def shortest_window(model: PreTrainedModel) -> int | None:
    """Tokens that a layer with a sliding window reads, of several the fewest; None where no layer has one."""
    windows = (getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers)
    return min((window for window in windows if window), default=None)


def is_recurrent(model: PreTrainedModel) -> bool:
    """Whether a layer keeps a state that a pass replaces, beside or instead of rows for each token.

    Such layers have their states by name in dictionaries. They cannot be cropped.
    """
    layers = DynamicCache(config=model.config).layers
    return any(isinstance(value, dict) for layer in layers for value in vars(layer).values())


@torch.inference_mode()
def reads_several(model: PreTrainedModel) -> bool:
    """Whether a pass over several tokens goes on from the states that are there, as passes over one token do.

    In some families of the library it begins with empty states instead. Found out once for each model.
    """
    if model not in _reads_several:
        n_ids = min(embedded_ids(model), model.config.get_text_config().vocab_size)
        ids = torch.randint(n_ids, (1, 2 * N_PROBE), generator=torch.Generator().manual_seed(0)).to(model.device)

        def logits(width: int) -> Tensor:
            cache, parts = DynamicCache(config=model.config), []
            for start, end in [(0, N_PROBE), *((n, n + width) for n in range(N_PROBE, 2 * N_PROBE, width))]:
                options = pass_options(model, cache, start, end - start)
                parts.append(model(input_ids=ids[:, start:end], **options).logits)
            return torch.cat(parts[1:], dim=1)

        one_by_one = logits(1)
        allowed = max(PROBE_GAP, 8 * torch.finfo(one_by_one.dtype).eps) * one_by_one.abs().max()
        _reads_several[model] = bool((logits(N_PROBE) - one_by_one).abs().max() <= allowed)
    return _reads_several[model]


def is_mixture_of_experts(model: PreTrainedModel) -> bool:
    """Does the config, or a part of it, name several experts?"""

    def several(entries: dict[str, Any]) -> bool:
        counts = (v for k, v in entries.items() if "experts" in str(k) and "_per_" not in k and isinstance(v, int))
        return any(n > 1 for n in counts) or any(several(v) for v in entries.values() if isinstance(v, dict))

    return several(model.config.get_text_config().to_dict())
