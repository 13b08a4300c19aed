"""A learner's functions inside the lab's drafts with a head: what a head reads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from draft_models import as_draft, as_drawn
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Drawn, Sampling, draw_draft, to_device
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.learner.ask import Impossible, ask, each, short, whole


class LearnerFeature(FeatureDrafter):
    """A head that reads the target's states as exercise 11 says: which ones, beside which tokens, and what a chain's
    further passes read. Wrong answers are lossless here, too; what cannot be read at all is a Problem."""

    def __init__(self, drafter: FeatureDrafter, new_pairs: Callable, draft_chain: Callable):
        super().__init__(drafter.head, drafter.ids)
        self._new_pairs, self._draft_chain = new_pairs, draft_chain
        self._text: list[int] = []

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Begin a text; the first `observe` asks for the pairs of its prompt."""
        super().prefill(target, prompt, sampling)
        self._text = prompt[0].tolist()
        self._hidden, self._tokens = self._hidden[:, :0], self._tokens[:, :0]

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Ask what there is to read of the target's last pass."""
        self._text += committed
        states = self._target.hidden(self._layers)[0].clone()  # (rows, layers * width)
        n_read = self._length + self._tokens.shape[1]
        states, tokens = ask(11, self._new_pairs, self._text, n_read, states, check=self._pairs)
        self._hidden = torch.cat([self._hidden, states[None]], dim=1)
        self._tokens = torch.cat([self._tokens, to_device(tokens, self.device)[None]], dim=1)

    def _pairs(self, answer: Any) -> tuple[Tensor, list[int]]:
        """States of the target's width, and as many ids."""
        states, tokens = each("a pair (states, ids)", lambda states: states, lambda tokens: list(tokens))(answer)
        ids = [whole(0, self._vocab_size - 1)(token) for token in tokens]
        width = self._hidden.shape[2]
        if not isinstance(states, Tensor) or states.shape != (len(ids), width):
            raise Impossible(f"{short(states)} beside {short(ids)}, not states of width {width} and as many ids")
        return states, ids

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens, each drawn from what the learner's pass before it gave."""
        n_new = self._tokens.shape[1]
        if k == 0 or n_new == 0:
            return as_draft([], self.device)
        drawn: list[Drawn] = []
        end = self._length + n_new + k  # behind the last position that a pass of this round may have

        def forward(states: Tensor, tokens: list[int], position: int) -> Tensor:
            """(m, hidden) and m ids -> the last one's output, (1, hidden)"""
            if not tokens or len(states) != len(tokens) or not 0 <= position <= end - len(tokens):
                raise ValueError(f"forward was called with {len(states)} states, {tokens} and position {position}")
            return self._forward(states[None], to_device(tokens, self.device)[None], position)[0][0]

        def draw_one(state: Tensor) -> int:
            """(1, hidden) -> an id"""
            if len(drawn) == k:
                raise ValueError(f"draw was called more than k = {k} times")
            logits = self.as_target_logits(self.head.logits(state[None])[:, -1], self._vocab_size)  # (1, vocab)
            drawn.append(draw_draft(logits, self._sampling, uniforms[:, len(drawn)]))
            return int(drawn[-1].token)

        def check(answer: Any) -> None:
            ids = [int(one.token) for one in drawn]
            if list(answer) != ids or len(ids) != k:
                raise Impossible(f"{short(answer)}, not the {k} ids that were drawn, {ids}")

        with torch.inference_mode():
            states = self.head.fuse(self._hidden)[0]  # (n_new, hidden)
            args = (states, self._tokens[0].tolist(), self._length, k)
            ask(11, self._draft_chain, forward, draw_one, *args, check=check, lab_inside=True)
        self._length += n_new
        self._hidden, self._tokens = self._hidden[:, :0], self._tokens[:, :0]
        return as_drawn(drawn)
