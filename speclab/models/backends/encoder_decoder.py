"""The eager backend of an encoder-decoder model (T5, BART): one pass of the encoder, then passes of the decoder.

The encoder reads the prompt once, whole, and nothing else. The decoder begins with one token that the checkpoint names,
and its text is the output: it reads the prompt through cross-attention alone. A decoder that has committed L tokens,
its start token among them, holds L - 1 of them in its self-attention cache, as every decoder of this lab does.

                 encoder       self-attention cache   cross-attention cache
    prefill      the prompt    the start token        keys and values of the whole prompt, made once
    verify       nothing       + k + 1 tokens         the same
    roll back    nothing       - rejected tokens      the same
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from speclab.models.backends.eager import EagerBackend, keep_what_leaves
from speclab.models.limits import decoder_config
from speclab.system.errors import EnvironmentProblem


class EncoderDecoderBackend(EagerBackend):
    """The model as its library runs it. The encoder runs in `prefill` alone."""

    def __init__(self, model: PreTrainedModel, rolls_back: bool, hidden_layers: Iterable[int] = ()):
        super().__init__(model, rolls_back, hidden_layers)
        self._cache = DynamicCache(config=decoder_config(model))
        # A config with sliding windows is about self-attention: every token reads the whole prompt.
        self._both = EncoderDecoderCache(self._cache, DynamicCache())
        self._encoded: Any = None  # what the encoder gave, in the form of the family

    def prefill(self, prompt: Tensor) -> Tensor:
        """Run the encoder over (1, prompt) ids, and the decoder over its start token.  -> (1, 1, vocab) logits"""
        self._encoded = self._model.get_encoder()(input_ids=prompt, attention_mask=torch.ones_like(prompt))
        logits = self.forward(start_of(self._model), 0)
        if self._rolls_back:
            keep_what_leaves(self._cache)
        return logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """A pass of the decoder: (1, m) ids -> (1, m, vocab) logits. `length` is in the cache already."""
        options = {"encoder_outputs": self._encoded, "past_key_values": self._both, "use_cache": True}
        return self._model(decoder_input_ids=tokens, **options).logits


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
