"""`-k auto` with `tree:best`: how large a tree is, and how deep, is chosen in every round.

A tree of n tokens in d levels costs the seconds of drafting d levels and of verifying n tokens, and is expected to
commit 1 + the sum of the probabilities of its n branches. Of all d and n the one is taken that maximises

    E[tokens] - S * seconds(d, n)

S is the rate, in tokens per second, that the best d and n are expected to reach on average here. After each level that
is drafted the levels that might follow are weighed again; they are estimated by how often the draft's first, second,
third choice was right so far. The draft's own probabilities may be too high or too low, so they are corrected by how
often such probabilities came true so far.

Some tokens are looked at and left out of the tree, and the output stays exact. In a chain of drawn tokens it would not
(speclab/drafts/lengths.py): the rule takes a token's law for the distribution that the token was drawn from, and
leaving tokens out changes that distribution. Here nothing is drawn. A tree is a function of the committed text and of
the draft's probabilities, it has no laws, and either rule is exact for every tree that is made before the target's
uniforms are used. The target has read none of the tokens that were left out.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling
from speclab.drafts.lengths import HIGHEST, PAUSE, REST, WEIGHT
from speclab.drafts.tree import BestTreeDrafter, GrowingDrafter, Looked, best_of

LARGEST = 32  # tokens of a tree, unless costs say otherwise
EDGES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97)  # between the ranges of the draft's probabilities
RANKS = (0.6, 0.12, 0.06, 0.03, 0.02, 0.01, 0.01, 0.01)  # acceptance by rank before anything is known
BELIEVED = 2.0  # right tokens in every range that the draft's own probabilities count as


@dataclass(frozen=True)
class TreeCosts:
    """What a round with a tree costs, in seconds; measured here, with this draft.

    levels: [d] drafting d levels. rest: [n] everything else: the pass over n + 1 tokens, accept rule, rollback, host.
    Both from 0.
    """

    levels: tuple[float, ...]
    rest: tuple[float, ...]

    @property
    def deepest(self) -> int:
        """Levels whose cost is known."""
        return len(self.levels) - 1

    @property
    def largest(self) -> int:
        """Tokens of the largest tree whose cost is known."""
        return len(self.rest) - 1

    def describe(self) -> str:
        """For a terminal."""
        levels, rest = (" ".join(f"{1000 * s:.2f}" for s in curve) for curve in (self.levels, self.rest[::4]))
        return (
            f"milliseconds of drafting 0 to {self.deepest} levels: {levels}; of the rest of a round with a tree of 0, "
            f"4, 8 to {self.largest} tokens: {rest} (a level: the tokens of one depth, drafted together; the "
            f"rest: {REST})"
        )


class TreeAcceptance:
    """What was right so far, at one temperature: by rank among the draft's choices for a place, and by the draft's
    probability. Counted for all that was looked at after a token that was committed, in the tree or not."""

    def __init__(self) -> None:
        self.places, self.right = WEIGHT, np.array(RANKS) * WEIGHT
        self.stated, self.came = (np.full(len(EDGES) + 1, BELIEVED) for _ in range(2))

    def by_rank(self, n: int) -> np.ndarray:
        """(n,) how often the first, second, ... choice is right; 0 beyond the ranks that are counted."""
        rates = np.minimum(self.right / self.places, HIGHEST)[:n]
        return np.pad(rates, (0, n - len(rates)))

    def believed(self, stated: Tensor) -> Tensor:
        """Logarithms of the draft's probabilities -> of the same, corrected by what came true in their range."""
        edges = torch.tensor(EDGES, dtype=stated.dtype, device=stated.device)
        factors = torch.tensor(self.came / self.stated, dtype=stated.dtype, device=stated.device)
        factor = factors[torch.bucketize(stated.exp().contiguous(), edges)]
        return (stated + factor.log()).clamp(max=float(np.log(HIGHEST)))

    def add(self, looked: Looked, committed: list[int]) -> None:
        """Compare what was looked at with the text that came."""
        tokens, parents = looked.tokens.cpu().numpy(), looked.parents.cpu().numpy()
        stated, node = looked.stated.exp().cpu().numpy(), -1
        for token in committed:
            children = np.flatnonzero(parents == node)
            if not len(children):
                return
            ranges = np.searchsorted(EDGES, stated[children])
            np.add.at(self.stated, ranges, stated[children])
            self.places += 1
            [hits] = np.nonzero(tokens[children] == token)
            if not len(hits):
                return
            self.came[ranges[hits[0]]] += 1
            if hits[0] < len(self.right):
                self.right[hits[0]] += 1
            node = children[hits[0]]


def further_levels(start: np.ndarray, by_rank: np.ndarray, n_levels: int) -> np.ndarray:
    """The best branches expected at each of so many levels behind branches of these probabilities.

    start: (m,). by_rank: (width,). -> (n_levels, width), falling in each row
    """
    width, rows = len(by_rank), []
    for _ in range(n_levels):
        start = -np.sort(-np.outer(start, by_rank).ravel())[:width]
        rows.append(np.pad(start, (0, width - len(start))))
    return np.array(rows).reshape(n_levels, width)


def prospects(
    costs: TreeCosts, known: np.ndarray, ahead: np.ndarray, drafted: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What trees promise if 0, 1, ... levels more are drafted.

    known: (m,) probabilities of the branches that were looked at. ahead: (n_levels, width) those expected of further
    levels. drafted: levels up to here.

    -> expected tokens [j, n] and seconds [j, n] of a round with a tree of n tokens after j levels more; branches
       [j, i], the probabilities of what is there to choose from, falling
    """
    n_levels, width = ahead.shape
    found = np.zeros((n_levels + 1, max(costs.largest, len(known) + n_levels * width)))
    found[:, : len(known)] = known
    for j in range(n_levels):
        found[j + 1 :, len(known) + j * width : len(known) + (j + 1) * width] = ahead[j]
    branches = -np.sort(-found, axis=1)[:, : costs.largest]
    expected = 1 + np.pad(branches.cumsum(1), ((0, 0), (1, 0)))
    levels = np.array(costs.levels[drafted : drafted + n_levels + 1])
    return expected, levels[:, None] + np.array(costs.rest), branches


class AutoTreeDrafter(BestTreeDrafter):
    """Drafts the most probable branches, as many and as deep as pays.

    costs: by temperature; where there are none yet, all that is asked for is drafted. Costs and what was right are kept
    from text to text and shared by copies.
    """

    def __init__(self, drafter: GrowingDrafter, width: int = len(RANKS)):
        super().__init__(drafter, width)
        self.costs: dict[float, TreeCosts] = {}
        self.seen: dict[float, TreeAcceptance] = {}  # by temperature
        self._begin(0.0)

    def __deepcopy__(self, memo: dict) -> "AutoTreeDrafter":
        other = type(self)(copy.deepcopy(self.drafter, memo), self.width)
        other.costs, other.seen = self.costs, self.seen
        return other

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter read the prompt."""
        self._begin(sampling.temperature)
        super().prefill(target, prompt, sampling)

    def _begin(self, temperature: float) -> None:
        self._temperature = temperature
        self._acceptance = self.seen.setdefault(temperature, TreeAcceptance())
        self._n_idle, self._rate = 0, 0.0
        self._looked: Looked | None = None  # at in this round

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most as many tokens as there are uniforms, at most `k` on a branch."""
        n, deepest = uniforms.shape[1], min(k, self.drafter.room)
        self._looked, self.n_levels = None, 0
        if costs := self.costs.get(self._temperature):
            deepest = min(deepest, costs.deepest)
            n = min(n, costs.largest)
            if min(n, deepest) > 0 and self._best_at_first(costs, n, deepest) == 0:
                self._n_idle = (self._n_idle + 1) % PAUSE
                deepest = int(self._n_idle == 0)  # now and then one level shows whether that is still so
        if min(n, deepest) <= 0:
            return as_draft([], self._device)
        self._looked = self.looked(n, deepest)
        if costs:
            known = self._looked.scores.exp().cpu().numpy()
            expected, seconds, _ = prospects(costs, known, np.zeros((0, 1)), self.n_levels)
            n = int((expected - self._rate * seconds)[0, : n + 1].argmax())
        return best_of(self._looked, n) if n else as_draft([], self._device)

    def _best_at_first(self, costs: TreeCosts, n: int, deepest: int) -> int:
        """Levels of the tree that promises most before anything is drafted; note the rate that it reaches."""
        ahead = further_levels(np.ones(1), self._acceptance.by_rank(self.width), costs.deepest)
        expected, seconds, _ = prospects(costs, np.zeros(0), ahead, 0)
        self._rate = float((expected / seconds).max())
        gains = (expected - self._rate * seconds)[: deepest + 1, : n + 1]
        return int(gains.max(1).argmax())

    def _believed(self, stated: Tensor) -> Tensor:
        return self._acceptance.believed(stated)

    def _n_to_grow(self, scores: Tensor, best: Tensor, n: int, n_left: int) -> int:
        """Those that can have a child in the tree that promises most."""
        costs = self.costs.get(self._temperature)
        if costs is None:
            return super()._n_to_grow(scores, best, n, n_left)
        known, newest = (probs.exp().cpu().numpy() for probs in (scores, best))
        if np.isnan(newest[0]):
            return super()._n_to_grow(scores, best, n, n_left)  # which says so
        ahead = further_levels(newest, self._acceptance.by_rank(self.width), n_left)
        expected, seconds, branches = prospects(costs, known, ahead, self.n_levels)
        gains = (expected - self._rate * seconds)[:, : n + 1]
        j, size = np.unravel_index(gains.argmax(), gains.shape)
        return int((newest >= branches[j, size - 1]).sum()) if j and size else 0

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Count what was right of all that was looked at."""
        if self._looked is not None:
            self._acceptance.add(self._looked, committed)
            self._looked = None
        super().observe(n_accepted, committed)

    def describe(self) -> str:
        """What it is, in a few words."""
        return f"{super().describe()}, as many as pays, at most {LARGEST}"
