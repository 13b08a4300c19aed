"""The eager backend: the model as its library runs it, with a cache that grows. Readable, and right for every model."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class EagerBackend:
    """The model as its library runs it, with a cache that grows. The reference: readable, and right for every model."""

    def __init__(self, model: PreTrainedModel, rolls_back: bool):
        self._model, self._rolls_back = model, rolls_back
        self._cache = DynamicCache(config=model.config)

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits of the last one."""
        options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        logits = self._model(input_ids=prompt, **options).logits
        if self._rolls_back and hasattr(self._cache, "activate_past_recording"):
            self._cache.activate_past_recording()
            layers: list[Any] = self._cache.layers
            for layer in layers:
                if getattr(layer, "is_sliding", False):
                    layer.update = functools.partial(_update, layer, layer.update)
        return logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids -> (1, m, vocab) logits. `length` is in the cache already."""
        return self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True).logits

    def crop(self, n_tokens: int) -> None:
        """Drop the last `n_tokens` of the cache."""
        # The negative form is the portable one, and for sliding windows a crop of 0 is what frees old entries.
        self._cache.crop(-n_tokens)


def _update(layer: Any, update: Callable, key_states: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """What a sliding-window layer gives to attention: its window and this pass.

    Until it is cropped it holds more. transformers 5.17 gives all of that, with masks for the window alone.
    """
    keys, values = update(key_states, *rest, **options)
    n_read = layer.sliding_window - 1 + key_states.shape[-2]
    return keys[:, :, -n_read:], values[:, :, -n_read:]
