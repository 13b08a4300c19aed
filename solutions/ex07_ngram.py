"""Solution 7: a draft without a model."""

import torch
from torch import Tensor

from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel


def lookup(tokens: list[int], k: int, longest: int = 4, shortest: int = 2) -> list[int]:
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        ending = tokens[-n:]
        # `after` is the index right after a candidate. It starts one short of the end, so the end does not find
        # itself, and goes down, so the first hit is the most recent one.
        for after in range(len(tokens) - 1, n - 1, -1):
            if tokens[after - n : after] == ending:
                return tokens[after : after + k]  # a slice stops at the end of the text by itself
    return []


class MyDrafter:
    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        self._text: list[int] = prompt[0].tolist()  # a new list, so nothing of the last text is left
        self._device = prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        ids = lookup(self._text, k)
        # An empty list says nothing about its type, and torch would take it for floats.
        tokens = torch.tensor([ids], dtype=torch.long, device=self._device)  # (1, n)
        return Draft(tokens, torch.tensor([len(ids)], device=self._device))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._text.extend(committed)  # the accepted proposals are among them: adding those as well would double them
