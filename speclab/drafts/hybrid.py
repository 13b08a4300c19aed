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
from speclab.drafts.lengths import LONGEST, AutoLength, RoundCosts, Tally, expected_tokens

MATCHES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)  # guesses for matches of one token, two, ... and more
# Before anything is measured: a drafted token costs an eighth of a step, a token more to verify a fifteenth.
USUAL = RoundCosts(tuple(n / 8 for n in range(LONGEST + 1)), tuple(1 + n / 15 for n in range(LONGEST + 1)))


class RightCounts:
    """Counts of the tokens that were right so far, at one temperature: after matches of each length, and for the
    model."""

    def __init__(self) -> None:
        self.matches = [Tally(guess) for guess in MATCHES]
        self.model = Tally(0.7)

    def after(self, matched: int) -> Tally:
        """Return the tally for matches of so many tokens, at least 1."""
        return self.matches[min(matched, len(self.matches)) - 1]


class HybridDrafter(Wrapper):
    """A lookup where it pays more, `drafter` elsewhere. Both follow the text all the time.

    Its law is the model's: where the lookup drafts instead depends on the rounds before.

    costs: the costs of rounds with the model, by temperature; USUAL where there are none. Costs and what is known are
    kept from text to text and shared by copies.
    """

    costs: dict[float, RoundCosts]

    def __init__(self, lookup: Lookup, drafter: Drafter):
        self.lookup, self.drafter = lookup, drafter
        self.chooses_length = drafter.chooses_length
        self.costs = {} if drafter.costs is None else drafter.costs
        self.known: dict[float, RightCounts] = {}  # by temperature
        self._begin(0.0)

    @property
    def parts(self) -> tuple[Any, ...]:
        """Return the drafters that propose the tokens, the lookup first."""
        return (self.lookup, *self.drafter.parts)

    def forget(self) -> None:
        """Drop the counts of what was right in other texts."""
        self.known = {}
        self.drafter.forget()

    def length_notes(self, name: str, asked: list[int]) -> list[str]:
        """The model inside says which lengths have no effect."""
        return self.drafter.length_notes(f"{name}: its block", asked)

    def with_draft(self, change: Callable[[Drafter], Drafter]) -> Drafter:
        """This gives the hybrid with a change of its model."""
        return type(self)(self.lookup, change(self.drafter))

    def __deepcopy__(self, memo: dict) -> "HybridDrafter":
        other = type(self)(copy.deepcopy(self.lookup, memo), copy.deepcopy(self.drafter, memo))
        other.costs, other.known = self.costs, self.known
        return other

    def _begin(self, temperature: float) -> None:
        self._temperature = temperature
        self._known = self.known.setdefault(temperature, RightCounts())
        self._found: list[int] = []  # what the lookup shows in this round
        self._n_drafted = 0  # by the model
        self._looked_up = False  # whether the lookup made the last draft, not the model

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let both read the prompt."""
        self._begin(sampling.temperature)
        self._device = prompt.device
        self.lookup.prefill(target, prompt, sampling)
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens, all from the lookup or all from the model. uniforms (1, k), in [0, 1)."""
        self._found, self._n_drafted = self.lookup.lookup(k), 0
        n = self._choose(len(self._found), k)
        self._looked_up = n > 0
        if self._looked_up:
            return as_draft(self._found[:n], self._device)
        draft = self.drafter.propose(k, uniforms)
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def _choose(self, n: int, k: int) -> int:
        """Decide how many of the n tokens that were found are drafted; 0 where the model promises more tokens per
        second.

        The model would draft k tokens, or as many as it has room for. Where lengths are chosen, the best number of each
        is compared. Nothing is counted beyond what has a known cost.
        """
        if n == 0:
            return 0
        costs, on_auto = self.costs.get(self._temperature, USUAL), self.drafter.costs is not None
        after_lookup = costs.lookup_rounds
        longest, most = min(k, costs.longest, self.drafter.room), min(n, len(after_lookup) - 1)
        modelled = expected_tokens([self._known.model.rate] * longest, 0, 1.0)
        found = expected_tokens([self._known.after(self.lookup.matched).rate] * most, 0, 1.0)
        model_speeds = [modelled[m] / costs.seconds(m) for m in (range(longest + 1) if on_auto else (longest,))]
        lookup_speeds = {m: found[m] / after_lookup[m] for m in (range(1, most + 1) if on_auto else (most,))}
        best = max(lookup_speeds, key=lookup_speeds.__getitem__)
        if lookup_speeds[best] <= max(model_speeds):
            return 0
        return best if on_auto else n

    def described(self, round_: Round) -> Round:
        """The round says whether the lookup drafted in it."""
        return round_._replace(looked_up=self._looked_up and not round_.prefill)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Count what was right; let both follow the text."""
        for i in range(min(n_accepted + 1, self._n_drafted)):
            self._known.model.add(i < n_accepted)
        for found, token in zip(self._found, committed, strict=False):
            self._known.after(self.lookup.matched).add(found == token)
            if found != token:
                break
        self._found, self._n_drafted = [], 0
        self.lookup.observe(n_accepted, committed)
        self.drafter.observe(n_accepted, committed)


def auto_length(drafter: Drafter) -> Drafter:
    """Return the drafter with its draft lengths chosen in every round; in a hybrid, those of its model are chosen."""
    return drafter.with_draft(AutoLength)
