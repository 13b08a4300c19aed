"""Drafts with the target's own first layers (early exit: LayerSkip, arXiv 2404.16710; Kangaroo, 2404.18911).

A draft of n tokens runs the first N layers over the last committed token and the drafted ones but the last, one token a
pass; an adapter and the target's own output layer make the next token of each state (speclab/drafts/heads/exit.py).
These passes write the target's own cache, in those layers. Verification takes the states up and runs the other layers
over all n + 1 positions: no layer runs twice over a token, and the draft has no cache of its own.

So between rounds there is nothing to keep but the last committed token. CachedModel asserts that the first layers are
never ahead of the others when a round ends.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling, draw_draft, probability, to_device
from speclab.drafts.heads.drafter import StateDrafter
from speclab.drafts.heads.exit import ExitAdapter


class ExitDrafter(StateDrafter):
    """Proposes tokens one by one, and gives the target's states with them."""

    head: ExitAdapter

    def __init__(self, head: ExitAdapter, ids: None = None):
        super().__init__(head, ids)
        self.keep_drafting: Callable[[float], bool] | None = None  # asked after each token: another one? (-k auto)

    @property
    def exit_layer(self) -> int:
        """N: the target's layers that a draft runs."""
        return self.head.config.exit_layer

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Nothing is read: the target's cache holds the prompt, (1, prompt length) ids, in all layers."""
        self._target, self._sampling, self._vocab_size = target, sampling, target.vocab_size
        self._last = prompt[0, -1:]  # (1,)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens. uniforms (1, k), in [0, 1)."""
        if k == 0:
            return as_draft([], self._last.device)
        drawn: list[tuple[Tensor, Tensor | None]] = []
        states: list[Tensor] = []
        token = self._last
        with torch.inference_mode():
            for i in range(k):
                states.append(self._target.forward_first(token[:, None], self.exit_layer))  # (1, 1, hidden)
                logits = self.of_target(self.head.logits(states[-1])[:, -1], self._vocab_size)
                drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
                token = drawn[-1][0]
                if self.keep_drafting and not self.keep_drafting(probability(logits, *drawn[-1])):
                    break
        tokens, probs = zip(*drawn, strict=True)
        size = torch.full((1,), len(drawn), device=token.device)
        of_drawn = None if self._sampling.greedy else torch.stack(probs, dim=1)
        return Draft(torch.stack(tokens, dim=1), size, of_drawn, torch.cat(states, dim=1))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the last token."""
        self._last = to_device(committed[-1:], self._last.device)

    def of_target(self, logits: Tensor, vocab_size: int) -> Tensor:
        """Logits of the target's own output layer (n, its rows) -> (n, vocab_size)"""
        return logits[:, :vocab_size]

    def describe(self) -> str:
        """What it is, in a few words."""
        config, millions = self.head.config, sum(weight.numel() for weight in self.head.parameters()) / 1e6
        return (
            f"the target's first {config.exit_layer} of {config.target_layers} layers, and an adapter of "
            f"{millions:.1f} M parameters"
        )
