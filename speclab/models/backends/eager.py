"""The eager backend: the model as its library runs it, with a cache that grows. Readable, and right for every model."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's decoder layers in their order; none where they are not one list."""
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == n_layers)
    return list(next(lists, []))


@contextlib.contextmanager
def layer_outputs(model: PreTrainedModel, layers: Iterable[int]) -> Iterator[dict[int, Tensor]]:
    """While this is open, the passes of the model put the outputs of these layers here, (batch, m, hidden) each."""
    outputs: dict[int, Tensor] = {}

    def keep(layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[layer] = output if isinstance(output, Tensor) else output[0]

    modules = decoder_layers(model)
    handles = [modules[layer].register_forward_hook(functools.partial(keep, layer)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


class EagerBackend:
    """The model as its library runs it, with a cache that grows. The reference: readable, and right for every model."""

    def __init__(self, model: PreTrainedModel, rolls_back: bool, hidden_layers: Iterable[int] = ()):
        self._model, self._rolls_back, self._hidden_layers = model, rolls_back, hidden_layers
        self.hidden: dict[int, Tensor] = {}
        self._cache = DynamicCache(config=model.config)

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits of the last one."""
        options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
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
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
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
