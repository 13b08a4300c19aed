"""Models whose encoder reads the prompt and whose decoder writes the text: the family, and the eager backend for them.

The encoder runs once, over the prompt. The decoder's text begins with a token of its own, the start. It reads the
prompt through cross-attention, whose keys and values no rollback touches: self-attention alone is cropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel

from speclab.engines.eager import EagerBackend, whole_text_cache
from speclab.models.family import POSITIONS, Family, Room, named_positions
from speclab.system.errors import EnvironmentProblem, UsageProblem

# A config's own names for the positions of each part, where they differ.
OF_ENCODERS = ("max_encoder_position_embeddings", "max_source_positions", *POSITIONS)
HEAD = "encoder reads the prompt once, in the prefill; steps and rounds are passes of the decoder"


class EncoderDecoderBackend(EagerBackend):
    """The eager backend for a decoder behind an encoder. `_cache` is that of its self-attention."""

    def __init__(self, model: PreTrainedModel, hidden_layers: Iterable[int] = ()):
        super().__init__(model, hidden_layers)
        self._cache = whole_text_cache(model.get_decoder().config)
        # A config with sliding windows is about self-attention: every token reads the whole prompt.
        self._both = EncoderDecoderCache(self._cache, DynamicCache())
        self._encoded: Any = None  # what the encoder gave, in the form of the family

    def prefill(self, prompt: Tensor) -> Tensor:
        """Run the encoder over (1, prompt) ids, and the decoder over its start.  -> (1, 1, vocab) logits"""
        self._encoded = self._model.get_encoder()(input_ids=prompt, attention_mask=torch.ones_like(prompt))
        return self._read(start_of(self._model))

    def _read(self, tokens: Tensor, **options: Any) -> Tensor:
        """Run the decoder alone: (1, m) ids -> (1, m, vocab) logits."""
        options |= {"encoder_outputs": self._encoded, "past_key_values": self._both, "use_cache": True}
        return self._model(decoder_input_ids=tokens, **options).logits


def start_of(model: PreTrainedModel) -> Tensor:
    """Return the token that a decoder's text begins with, (1, 1) ids on the model's device."""
    return torch.tensor([[start_id(model)]], device=model.device)


def start_id(model: PreTrainedModel) -> int:
    """Return the id that a decoder's text begins with, as the library's `generate` chooses it.

    Raises EnvironmentProblem where the checkpoint names none.
    """
    for name in ("decoder_start_token_id", "bos_token_id"):
        for settings in (model.generation_config, model.config):
            if isinstance(found := getattr(settings, name, None), int):
                return found
    raise EnvironmentProblem(
        f"{model.config.model_type} is an encoder-decoder whose config names no decoder_start_token_id; add the id "
        "that its decoder begins with to its generation_config.json"
    )


@dataclass(frozen=True)
class EncoderRoom(Room):
    """The numbers of positions of the two parts; None where one has no limit.

    text: positions of the output and the token that it begins with. encoder: positions of the prompt.
    """

    encoder: int | None = None

    def length_after(self, n_prompt: int) -> int:
        """Return the number of tokens in the decoder's cache after the prefill: its start alone."""
        return 1

    def for_prompt(self, n_new: int = 0) -> int | None:
        """Return the largest number of tokens of a prompt, whatever follows it."""
        return self.encoder

    def check(self, n_prompt: int, max_new_tokens: int = 0, whose: str = "the model's") -> None:
        """Raise UsageProblem for a prompt that does not fit the encoder, or an output that does not fit the decoder."""
        if self.encoder is not None and n_prompt > self.encoder:
            raise UsageProblem(
                f"prompt of {n_prompt} tokens does not fit the {self.encoder} positions of {whose} encoder; "
                "shorten the prompt"
            )
        if self.text is not None and 1 + max_new_tokens > self.text:
            raise UsageProblem(
                f"{max_new_tokens} new tokens do not fit the {self.text} positions of {whose} decoder; "
                + f"use --max-new-tokens {self.text - 1}" * (self.text > 1)
            )


class EncoderDecoder(Family):
    """An encoder, and a decoder that reads the encoder's output through cross-attention."""

    plural = "encoder-decoder models"
    loader = AutoModelForSeq2SeqLM
    one_text = False
    why_eager = "the eager engine alone runs an encoder"
    positions = ("max_decoder_position_embeddings", *POSITIONS)
    backend = EncoderDecoderBackend

    def claims(self, config: PreTrainedConfig) -> bool:
        """Tell whether the config names an encoder and a decoder."""
        return bool(config.is_encoder_decoder)

    def room(self, config: PreTrainedConfig) -> EncoderRoom:
        """Return the number of positions that the config names."""
        decoder = super().room(config)
        encoder = getattr(config, "encoder", config).get_text_config()  # a config of its own, or one for both parts
        return EncoderRoom(decoder.text, decoder.rope, named_positions(encoder, OF_ENCODERS))

    def cache(self, model: PreTrainedModel) -> DynamicCache:
        """Return an empty cache of the decoder's self-attention."""
        return DynamicCache(config=model.get_decoder().config)

    def fill(self, model: PreTrainedModel, cache: DynamicCache, ids: Tensor) -> None:
        """Run both parts over (1, n) ids, so that the decoder fills an empty cache."""
        options = {"past_key_values": EncoderDecoderCache(cache, DynamicCache()), "use_cache": True}
        model(encoder_outputs=model.get_encoder()(input_ids=ids), decoder_input_ids=ids, **options)

    def start_id(self, model: PreTrainedModel) -> int:
        """Return the id that the decoder's text begins with."""
        return start_id(model)

    def logits_after(self, model: PreTrainedModel, prompt: Tensor, text: Tensor, n_last: int | None = None) -> Tensor:
        """The encoder reads the prompt, and the decoder its start and the text: (1, m + 1, ids of the output layer)."""
        ids = torch.cat([start_of(model), text], dim=1)
        masks = {"attention_mask": torch.ones_like(prompt), "decoder_attention_mask": torch.ones_like(ids)}
        return model(input_ids=prompt, decoder_input_ids=ids, use_cache=False, **masks).logits

    def n_prompt(self, n_tokens: int, n_compared: int) -> int:
        """Return the number of tokens for the encoder: all but the last ones."""
        return n_tokens - n_compared

    def weights(self, model: PreTrainedModel) -> list[nn.Parameter]:
        """Return all weights but those that the encoder alone reads, once for a text.

        A little too many: cross-attention's weights of keys and values are read once for a text, too.
        """
        of_decoder = {id(p) for p in model.get_decoder().parameters()}
        of_encoder = {id(p) for p in model.get_encoder().parameters()} - of_decoder
        return [p for p in model.parameters() if id(p) not in of_encoder]

    def head(self, model: PreTrainedModel) -> str:
        """Return a line that says which passes a reader will see."""
        return HEAD


FAMILY = EncoderDecoder()
