"""Passes in two parts: the first layers of a target run ahead of the others, which go on from their outputs. The engine
`c` alone runs some of a model's layers."""

from typing import Any

import torch
from torch import Tensor

from speclab.engines.c_pass import CBackend
from speclab.models.cached import CachedModel
from speclab.models.checks import WIDTHS, WRONG, cached_logits, check_passes, random_text


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
        backend, last = self.target.backend, self.n_layers - 1
        assert isinstance(backend, CBackend)
        with torch.inference_mode():
            backend.run(self._n_before + self.n_ahead, 0, tokens, layers=range(self.n_layers), kept=(last,))
        self.n_ahead += tokens.shape[1]
        return backend.hidden[last]

    def finish(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Run the other layers.  (1, m) ids and the states (1, j, hidden) of the first j -> (1, m, vocab) logits"""
        n_given, n = states.shape[1], tokens.shape[1]
        if n_given != self.n_ahead:
            raise RuntimeError(f"the first layers are {self.n_ahead} tokens ahead, and states of {n_given} are given")
        self._check_others()
        if n_given < n:
            states = torch.cat([states, self.forward(tokens[:, n_given:])], dim=1)
        self.n_ahead = 0

        def rest(backend: Any, length: int) -> Tensor:
            kept = [layer for layer in backend._hidden_layers if layer >= self.n_layers]
            logits = backend.run(length, n, states=states, layers=backend.layers[self.n_layers :], kept=kept)
            backend.hidden[self.n_layers - 1] = states
            return logits

        return self.target.run(n, rest)

    def _check_others(self) -> None:
        """Raise RuntimeError where the target has made a pass or a crop of its own since these went ahead."""
        if self.n_ahead and self.target.length != self._n_before:
            raise RuntimeError(
                f"the first layers went ahead after {self._n_before} tokens, and the target holds {self.target.length}"
            )


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
