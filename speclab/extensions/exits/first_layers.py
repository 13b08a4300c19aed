"""Passes in two parts: the first layers of a target run ahead of the others, which go on from their outputs."""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from speclab.engines.c_pass import CBackend
from speclab.engines.eager import decoder_layers, layer_outputs
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import WIDTHS, WRONG, cached_logits, check_passes, random_text


class FirstLayers:
    """The first layers of a target, which are ahead of its other layers within a round and never between two.

    n_ahead: tokens that these layers have read and the others have not.
    """

    def __init__(self, target: CachedModel, n_layers: int):
        self.target, self.n_layers, self.n_ahead = target, n_layers, 0
        self._n_before = 0  # tokens in the other layers' cache when these went ahead

    def forward(self, tokens: Tensor) -> Tensor:
        """Append tokens to the cache of these layers alone.  (1, m) ids -> their outputs (1, m, hidden)"""
        if self.n_ahead == 0:
            self._n_before = self.target.length
        self._check_others()
        with torch.inference_mode():
            states = forward_first(self.target.backend, tokens, self._n_before + self.n_ahead, self.n_layers)
        self.n_ahead += tokens.shape[1]
        return states

    def finish(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Run the other layers.  (1, m) ids and the states (1, j, hidden) of the first j -> (1, m, vocab) logits"""
        n_given, n = states.shape[1], tokens.shape[1]
        if n_given != self.n_ahead:
            raise RuntimeError(f"the first layers are {self.n_ahead} tokens ahead, and states of {n_given} are given")
        self._check_others()
        if n_given < n:
            states = torch.cat([states, self.forward(tokens[:, n_given:])], dim=1)
        self.n_ahead = 0
        return self.target.run(n, lambda backend, length: forward_rest(backend, states, length, self.n_layers))

    def _check_others(self) -> None:
        """Raise RuntimeError where the target has made a pass or a crop of its own since these went ahead."""
        if self.n_ahead and self.target.length != self._n_before:
            raise RuntimeError(
                f"the first layers went ahead after {self._n_before} tokens, and the target holds {self.target.length}"
            )


def forward_first(backend: Any, tokens: Tensor, length: int, n_layers: int) -> Tensor:
    """Run the first `n_layers` layers alone: (1, m) ids after `length` tokens -> their outputs (1, m, hidden)."""
    last = n_layers - 1
    if isinstance(backend, CBackend):
        backend.run(length, 0, tokens, layers=range(n_layers), kept=(last,))
        return backend.hidden[last]
    model = backend._model
    check_length(backend._cache, range(n_layers), length)
    with only_layers(model, range(n_layers)), layer_outputs(model, (last,)) as outputs:
        model.base_model(input_ids=tokens, past_key_values=backend._cache, use_cache=True)
    return outputs[last]


def forward_rest(backend: Any, states: Tensor, length: int, n_layers: int) -> Tensor:
    """Run all other layers: the outputs of the first ones, (1, m, hidden), after `length` tokens -> (1, m, vocab)
    logits."""
    kept, width = [layer for layer in backend._hidden_layers if layer >= n_layers], states.shape[1]
    if isinstance(backend, CBackend):
        logits = backend.run(length, width, states=states, layers=backend.layers[n_layers:], kept=kept)
    else:
        layers = backend._cache.layers
        rest = range(n_layers, len(layers))
        check_length(backend._cache, rest, length)
        check_length(backend._cache, range(n_layers), length + width)
        # The library asks the first layer of a cache how long the text is, and that one is ahead.
        cache = Cache(layers=[layers[n_layers]] * n_layers + layers[n_layers:])
        positions = torch.arange(length, length + width, device=states.device)[None]
        ids = torch.zeros_like(positions)  # their embeddings are not read
        with only_layers(backend._model, rest, states), layer_outputs(backend._model, kept) as backend.hidden:
            options = {"position_ids": positions, "past_key_values": cache, "use_cache": True}
            logits = backend._model(input_ids=ids, **options).logits
    if n_layers - 1 in backend._hidden_layers:
        backend.hidden[n_layers - 1] = states
    return logits


def check_length(cache: Any, layers: Iterable[int], length: int) -> None:
    """Raise RuntimeError where one of these layers of a cache does not hold `length` tokens."""
    for layer in layers:
        if (found := cache.layers[layer].get_seq_length()) != length:
            raise RuntimeError(f"the cache of layer {layer} holds {found} tokens, not {length}")


@contextlib.contextmanager
def only_layers(model: PreTrainedModel, chosen: range, states: Tensor | None = None) -> Iterator[None]:
    """While this is open, passes of the model skip all layers but `chosen`, without a gap.

    A skipped layer gives what it gets; the one before the first of `chosen` gives `states`, (batch, m, hidden).
    """

    def skipped(given: Tensor | None, hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
        return hidden_states if given is None else given

    parts = {i: vars(module) for i, module in enumerate(decoder_layers(model)) if i not in chosen}
    before = {i: {"forward": part["forward"]} if "forward" in part else {} for i, part in parts.items()}
    try:
        for i, part in parts.items():
            part["forward"] = functools.partial(skipped, states if i == chosen.start - 1 else None)
        yield
    finally:
        for i, part in parts.items():
            del part["forward"]
            part.update(before[i])


def check_split(target: CachedModel, n_layers: int) -> None:
    """Prove that passes in two parts, the first `n_layers` layers and the others, give the uncached logits, also after
    a rollback; EnvironmentProblem where they do not."""
    model, text, cached = target.model, random_text(target.model), target.with_own_cache()
    reason, first = "cannot be run in two parts", FirstLayers(cached, n_layers)

    def in_parts(_: CachedModel, ids: Tensor) -> Tensor:
        """Let the first layers read token by token up to the last one, as a draft does."""
        states = [first.forward(ids[:, i : i + 1]) for i in range(ids.shape[1] - 1)]
        return first.finish(ids, torch.cat(states, dim=1))

    check_passes(
        model, reason, lambda: cached_logits(cached, text, wrong=WRONG, one_pass=in_parts), [text], sum(WIDTHS)
    )
