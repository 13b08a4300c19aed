"""Drafts and rules that are wrong on purpose, each in one way that is known from public threads.

The text stays the target's with all of them but the two rules at the end: what is
wrong shows in the acceptance by position.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from draft_models import ModelDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, Draft, Target
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.feature import FeatureHead

LOW_LAYERS = (0, 1, 2)  # of the target, where the head was trained with three others
WINDOW = 240  # positions that the buffer of states has


class WrongLayers(FeatureDrafter):
    """Reads the states after other layers than those that its head was trained with."""

    def __init__(self, head: FeatureHead, ids: Tensor | None = None):
        super().__init__(head, ids)
        self._layers = LOW_LAYERS


class OneOff(FeatureDrafter):
    """Reads every state with the token at its own place, where it should read the token after it."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids."""
        super().prefill(target, prompt, sampling)
        self._tokens, self._last = prompt[:, :-1], int(prompt[0, -1])

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the states of the tokens that are final, and the tokens one place too early."""
        tokens = [self._last, *committed[:-1]]
        self._last = committed[-1]
        super().observe(n_accepted, tokens)


def overwrite(weight: Tensor, seed: int) -> None:
    """Put random numbers of the same spread into a matrix."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=generator) * weight.std())


class StaleToken(FeatureDrafter):
    """Reads in every pass after the first one the token before the one that it should read."""

    _before: Tensor | None

    def _catch_up(self) -> tuple[Tensor, Tensor]:
        self._before = None
        return super()._catch_up()

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
        read = tokens if self._before is None else self._before
        self._before = tokens[:, -1:]
        return super()._forward(states, read, length)


def without_markov(drafter: Any) -> Drafter:
    """Return a block draft without its Markov bias: no place of a block knows which token the one before it has got."""
    head = copy.deepcopy(drafter.head)
    head.markov_head = None
    return type(drafter)(head, drafter.ids)


class Window(FeatureDrafter):
    """Hands the states over in a buffer that ends: behind it, the states of the text's beginning are read again."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids."""
        super().prefill(target, prompt, sampling)
        self._buffer = self._hidden[:, :WINDOW]

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens. uniforms (1, k), in [0, 1)."""
        places = torch.arange(self._length, self._length + self._hidden.shape[1])
        missing = WINDOW - self._buffer.shape[1]
        self._buffer = torch.cat([self._buffer, self._hidden[:, places >= self._buffer.shape[1]][:, :missing]], dim=1)
        old = self._buffer[:, places % self._buffer.shape[1]]
        self._hidden = torch.where((places < WINDOW)[None, :, None], self._hidden, old)
        return super().propose(k, uniforms)


class ForgetsCached(FeatureDrafter):
    """Gets the state of the last token alone where the target has read the prompt before, and all of its tokens.

    The states of a cached prompt were not stored with its keys and values. From then on every state is read with a
    token of long ago.
    """

    def __init__(self, head: FeatureHead, ids: Tensor | None = None):
        super().__init__(head, ids)
        self.seen: set[tuple[int, ...]] = set()

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Take the target's states of a new prompt, (1, prompt length) ids; of an old one the last alone."""
        super().prefill(target, prompt, sampling)
        tokens = tuple(prompt[0].tolist())
        self._queue: list[int] = []
        if tokens in self.seen:
            self._queue = list(tokens[1:])
            self._hidden, self._tokens = self._hidden[:, -1:], prompt[:, :0]
        self.seen.add(tokens)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the states of the tokens that are final, and as many tokens from the queue."""
        self._queue += committed
        tokens, self._queue = self._queue[: len(committed)], self._queue[len(committed) :]
        super().observe(n_accepted, tokens)


class Rotated(FeatureDrafter):
    """Reads the right layers in another order."""

    def __init__(self, head: FeatureHead, ids: Tensor | None = None):
        super().__init__(head, ids)
        self._layers = (*self._layers[1:], self._layers[0])


class Certain(ModelDrafter):
    """Proposes its most probable token at any temperature, as some engines do. The rule knows that, so it is exact."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Read the prompt, (1, prompt length) ids."""
        super().prefill(target, prompt, GREEDY)


def one_row_off(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Judge every token but the first one by the row before its own: the target's wide pass is one row off."""
    return accept_from_logits(draft, torch.cat([logits[:, :1], logits[:, :-1]], dim=1), sampling, uniforms)


def keeps_everything(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Keep every drafted token: nothing is verified."""
    return AcceptResult(draft.size, logits[:, -1].argmax(-1))
