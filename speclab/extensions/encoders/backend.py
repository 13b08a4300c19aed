"""The eager backend for encoder-decoders: the encoder runs once, over the prompt, and the decoder makes the text.

The decoder's text begins with a token of its own, the start. It reads the prompt through cross-attention, whose keys
and values no rollback touches: self-attention alone is cropped.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from speclab.engines.eager import EagerBackend, whole_text_cache
from speclab.system.errors import EnvironmentProblem


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
