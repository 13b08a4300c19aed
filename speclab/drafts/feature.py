"""Drafts with a head that reads the target's hidden states (speclab/drafts/heads/feature.py), one token a pass.

Between rounds the head's keys and values hold every token that was committed before its last draft. The states that the
target computed for these (of its last committed token then, and of the accepted drafts; never of a rejected one) go in
together with the first pass of the next round, each with the token after it. Within a round the head's own output takes
the place of the states that the target has not computed yet; those keys and values are overwritten in the next round.
"""

from typing import Self

import torch
from torch import Tensor

from draft_models import as_draft, as_drawn
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Drawn, Sampling, draw_draft, probability, to_device
from speclab.drafts.heads.drafter import HeadDrafter
from speclab.drafts.heads.feature import FeatureHead, parts_of_head
from speclab.engines.c_pass import CBackend, CModel


class FeatureDrafter(HeadDrafter):
    """Proposes tokens one by one."""

    head: FeatureHead
    asks_to_go_on = True
    packed: CModel | None = None  # the head on the engine `c`, where the target's passes run on it
    _on_c: CBackend | None = None

    def use_c(self) -> None:
        """Run its passes on the engine `c`. Raises NoFastBackend where that cannot be."""
        self.packed = CModel(parts_of_head(self.head))

    def __deepcopy__(self, memo: dict) -> Self:
        twin = super().__deepcopy__(memo)
        twin.packed = self.packed
        return twin

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._tokens = prompt[:, 1:]  # (1, rows), the token after each; the last one's comes with `observe`
        self._on_c = self.packed.start((0,)) if self.packed else None

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        if k == 0:
            return as_draft([], self.device)
        drawn: list[Drawn] = []
        with torch.inference_mode():
            output, logits = self._catch_up()
            for i in range(k):
                if i:
                    tokens = self._known(drawn[-1].token[:, None])
                    output, logits = self._forward(output, tokens, self._length + i - 1)
                logits = self.as_target_logits(logits, self._vocab_size)  # (1, the target's vocabulary)
                drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
                if self.keep_drafting and not self.keep_drafting(probability(logits, drawn[-1])):
                    break
        return as_drawn(drawn)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        if self._tokens.shape[1] == self._hidden.shape[1]:  # not right after the prompt, whose states are here already
            self._take_states(n_accepted + 1)
        self._tokens = torch.cat([self._tokens, to_device(committed, self.device)[None]], dim=1)

    def _catch_up(self) -> tuple[Tensor, Tensor]:
        """Read what was committed since the last round -> the last position's output, (1, 1, hidden), and logits."""
        output = self._forward(self.head.fuse(self._hidden), self._known(self._tokens), self._length)
        self._length += self._tokens.shape[1]
        self._hidden, self._tokens = self._hidden[:, :0], self._tokens[:, :0]
        return output

    def _known(self, tokens: Tensor) -> Tensor:
        """Replace ids that the head lacks: a target may know more ids."""
        return tokens.clamp(0, self._n_ids - 1)

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Run a pass over states (1, m, hidden) from position `length` on, with the token after each, which it knows.

        -> the last output, (1, 1, hidden), and its logits, (1, draft vocabulary)
        """
        if self._on_c is None:
            rotation = self._rotation(length, tokens.shape[1])
            return self.head.step(states, tokens, rotation, length, self._keys[0], self._values[0])
        logits = self._on_c.run(length, 1, tokens, states)
        output = self._on_c.hidden[0][:, -1:]
        return self.head.norm(output) if self.head.config.norm_output else output, logits[:, 0]
