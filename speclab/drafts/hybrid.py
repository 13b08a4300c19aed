"""Two drafts in one: a lookup where its match promises more tokens per second, a model elsewhere.

A lookup costs almost nothing; its long drafts are right where the text repeats itself. A model is partly right
everywhere. Before each round the lookup's proposal is made, and it is used where

    (1 + expected tokens of it) / seconds of the rest of a round

is more than the model's draft promises. Where lengths are chosen (`-k auto`), as many of its tokens are drafted as make
this highest. How often tokens after a match of that length were right is counted in every round, also where the model
drafts; how often the model's were, where it does. The seconds are measured here. What is compared is known before
anything is drawn, so the output stays exact.
"""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Drafter, Lookup, Wrapper
from speclab.core.rounds import Draft, Round, Target
from speclab.core.sampling import Sampling
from speclab.drafts.lengths import LONGEST, AutoLength, RoundCosts, expected_tokens

# Before anything is measured: a drafted token costs an eighth of a step, a token more to verify a fifteenth.
USUAL = RoundCosts(tuple(n / 8 for n in range(LONGEST + 1)), tuple(1 + n / 15 for n in range(LONGEST + 1)))


class HybridDrafter(Wrapper):
    """A lookup where it pays more, `drafter` elsewhere. Both follow the text all the time.

    Its law is the model's: where the lookup drafts instead depends on the rounds before.

    drafter: counts what is accepted, and chooses lengths if it is an AutoLength already. costs: of rounds with the
    model, by temperature; USUAL where there are none.
    """

    drafter: AutoLength
    costs: dict[float, RoundCosts]

    def __init__(self, lookup: Lookup, drafter: Drafter):
        self.lookup = lookup
        self.drafter = drafter if isinstance(drafter, AutoLength) else AutoLength(drafter, chooses_length=False)
        self.chooses_length, self.costs = self.drafter.chooses_length, self.drafter.costs
        self._found: list[int] = []  # what the lookup shows in this round
        self._looked_up = False  # whether the lookup made the last draft, not the model

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.lookup, *self.drafter.parts)

    def forget(self) -> None:
        self.drafter.forget()

    def with_draft(self, change: Callable[[Drafter], Drafter]) -> Drafter:
        return type(self)(self.lookup, change(self.drafter.drafter))

    def __deepcopy__(self, memo: dict) -> "HybridDrafter":
        return type(self)(copy.deepcopy(self.lookup, memo), copy.deepcopy(self.drafter, memo))

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._found, self._device = [], prompt.device
        self.lookup.prefill(target, prompt, sampling)
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens, all from the lookup or all from the model. uniforms (1, k), in [0, 1)."""
        self._found = self.lookup.lookup(k)
        n = self._choose(len(self._found), k)
        self._looked_up = n > 0
        return as_draft(self._found[:n], self._device) if n else self.drafter.propose(k, uniforms)

    def _choose(self, n: int, k: int) -> int:
        """Decide how many of n found tokens are drafted; 0 where the model promises more tokens per second.

        The model would draft k tokens, or as many as it has room for. Where lengths are chosen, the best number of each
        is compared. Nothing is counted beyond what has a known cost.
        """
        if n == 0:
            return 0
        costs, seen = self.costs.get(self.drafter.temperature, USUAL), self.drafter.acceptance
        longest, most = min(k, costs.longest, self.drafter.room), min(n, len(costs.rest) - 1)
        first, least = (0, 1) if self.chooses_length else (longest, most)
        modelled = expected_tokens(seen.chain(longest))
        found = expected_tokens([seen.after(self.lookup.matched).rate] * most)
        best = max(range(least, most + 1), key=lambda m: found[m] / costs.rest[m])
        if found[best] / costs.rest[best] <= max(modelled[m] / costs.seconds(m) for m in range(first, longest + 1)):
            return 0
        return best if self.chooses_length else n

    def described(self, round_: Round) -> Round:
        return round_._replace(looked_up=self._looked_up and not round_.prefill)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Count what the lookup had right, up to its first wrong token; let both follow the text."""
        for found, token in zip(self._found, committed, strict=False):
            self.drafter.acceptance.after(self.lookup.matched).add(found == token)
            if found != token:
                break
        self._found = []
        self.lookup.observe(n_accepted, committed)
        self.drafter.observe(n_accepted, committed)
