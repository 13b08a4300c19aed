"""A gate for hybrids (SwitchSD, arXiv 2609.20186): does the target's hidden state say that it is about to copy?

One logistic regression on the last state that the head reads, fitted on texts that the target wrote after other
prompts, in place of today's rule: how often tokens after a match of that length were right so far. Both say how likely
each token of the lookup is right; what follows from that, and what rounds cost, is the same.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speclab.core.drafter import Drafter, Lookup
from speclab.core.sampling import GREEDY
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.rollout import target_pass
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import Tally
from speclab.drafts.suffix import SuffixDrafter
from speclab.lab.training import corpus
from speclab.models.setup import Setup
from training.texts import Prompts, written_after

N_TEXTS, N_NEW = 48, 160  # greedy texts that the regression is fitted on, and the tokens of each
STEPS, DECAYS = 200, (1e-3, 1e-2, 1e-1, 1.0)  # of the fit; the decay is chosen on a quarter of the texts


@dataclass(frozen=True)
class Tested:
    """Tokens of lookups along texts. states: (n, width), the last state before each lookup. matched: (n,) tokens of the
    match, at most 6. right: (n,)."""

    states: Tensor
    matched: Tensor
    right: Tensor

    @classmethod
    def along(cls, setup: Setup, layers: tuple[int, ...], prompt: list[int], text: list[int], k: int) -> "Tested":
        """Look up at every place of a text, and test tokens up to the first wrong one."""
        ids = torch.tensor([[*prompt, *text]])
        hidden, _ = target_pass(setup.target.model, ids, layers)
        lookup = SuffixDrafter(n_ids=setup.target.vocab_size)
        rows: list[tuple[int, int, bool]] = []
        lookup.prefill(setup.target, torch.tensor([prompt]), GREEDY)
        for i, token in enumerate(text):
            found = lookup.lookup(k) if i else []
            for one, own in zip(found, text[i:], strict=False):
                rows.append((len(prompt) + i - 2, lookup.matched, one == own))
                if one != own:
                    break
            lookup.observe(0, [token])
        places, matches, right = torch.tensor(rows, dtype=torch.long).reshape(-1, 3).unbind(1)
        return cls(hidden[0, places], matches.clamp(max=6), right.float())

    @classmethod
    def together(cls, parts: "list[Tested]") -> "Tested":
        """Return the tokens of several texts."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


class Regression:
    """The logarithm of the odds that a token of a lookup is right, linear in the state."""

    def __init__(self, tested: Tested, with_match: bool, decay: float):
        """Fit it. with_match: the length of the match is given to it, too. decay: of the squared weights."""
        self.with_match = with_match
        self.mean, self.spread = tested.states.mean(0), tested.states.std(0) + 1e-6
        x = self._inputs(tested.states, tested.matched)
        self.weight = torch.zeros(x.shape[1], requires_grad=True)
        fit = torch.optim.LBFGS([self.weight], max_iter=STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            fit.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ self.weight, tested.right)
            loss = loss + decay * self.weight.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            fit.step(closure)
        self.weight = self.weight.detach()

    def _inputs(self, states: Tensor, matched: Tensor) -> Tensor:
        one = torch.ones(len(states), 1)
        lengths = torch.nn.functional.one_hot(matched - 1, 6).float()
        return torch.cat([(states - self.mean) / self.spread, one, *([lengths] if self.with_match else [])], dim=1)

    def chance(self, states: Tensor, matched: Tensor) -> Tensor:
        """Return the probability that a token is right, (n,)."""
        return (self._inputs(states, matched) @ self.weight).sigmoid()


class GatedHybrid(HybridDrafter):
    """A hybrid that asks a regression how likely the lookup's tokens are right."""

    drafter: FeatureDrafter

    def __init__(self, lookup: Lookup, drafter: Drafter, gate: Regression):
        super().__init__(lookup, drafter)
        self.gate = gate

    def __deepcopy__(self, memo: dict) -> "GatedHybrid":
        other = type(self)(copy.deepcopy(self.lookup, memo), copy.deepcopy(self.drafter, memo), self.gate)
        other.costs, other.known = self.costs, self.known
        return other

    def _choose(self, n: int, k: int) -> int:
        if n == 0:
            return 0
        state = self.drafter._hidden[0, -1:].float()
        matched = torch.tensor([min(6, self.lookup.matched)])
        guessed = Tally(float(self.gate.chance(state, matched)))
        own = self._known.matches[matched - 1]
        self._known.matches[matched - 1] = guessed
        try:
            return super()._choose(n, k)
        finally:
            self._known.matches[matched - 1] = own


def area(score: Tensor, right: Tensor) -> float:
    """Return the probability that a right token has a higher score than a wrong one; equal scores count half."""
    order = torch.unique(score, return_inverse=True)[1]
    up, down = (torch.bincount(order[right == side], minlength=int(order.max()) + 1).double() for side in (1, 0))
    below = down.cumsum(0) - down
    return float((up * (below + down / 2)).sum() / (up.sum() * down.sum()))


def fitted(setup: Setup, layers: tuple[int, ...], k: int, seed: int) -> dict[str, Regression]:
    """Fit on greedy texts after prompts that no measurement uses."""
    documents = list(corpus.standard_library())
    given = Prompts(setup.tokenizer, setup.target.model, documents, [], seed).some(
        N_TEXTS, torch.Generator().manual_seed(seed), lambda: None
    )
    draws = torch.Generator().manual_seed(seed)
    texts = written_after(setup.target.model, given, (1e-4,) * len(given), N_NEW, frozenset(), draws)
    tested = [Tested.along(setup, layers, a, b, k) for a, b in zip(given, texts, strict=True)]
    learned, kept_out = Tested.together(tested[: 3 * N_TEXTS // 4]), Tested.together(tested[3 * N_TEXTS // 4 :])

    def best(with_match: bool) -> Regression:
        tries = [Regression(learned, with_match, decay) for decay in DECAYS]
        return max(tries, key=lambda one: area(one.chance(kept_out.states, kept_out.matched), kept_out.right))

    return {"state": best(False), "state and match": best(True)}


def arms(setup: Setup, feature: FeatureDrafter, gates: dict[str, Regression]) -> dict[str, tuple[Drafter, int]]:
    """Return the drafters of this method by name, each with its draft length."""

    def parts() -> tuple[Any, Any]:
        return SuffixDrafter(n_ids=setup.target.vocab_size), FeatureDrafter(feature.head, feature.ids)

    found: dict[str, tuple[Drafter, int]] = {"hybrid": (HybridDrafter(*parts()), 6)}
    for name, gate in gates.items():
        found[f"hybrid by {name}"] = (GatedHybrid(*parts(), gate), 6)
    return found
