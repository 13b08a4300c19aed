"""Drafts with branches: several tokens for one place, each with continuations of its own.

A model drafts one level in one pass (growing.py). Trees whose shape is fixed before are in fixed.py.

`BestTreeDrafter` drafts the most probable branches, whatever shape that makes: among all continuations the draft's own
probabilities say which n are most likely on the target's path (EAGLE-2, arXiv 2406.16858; DDTree, 2604.12989). A tree
is made before the random numbers that judge it are used, and its tokens are not drawn: so its shape may depend on all
that the draft knows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import GREEDY, NOT_FINITE, Sampling, to_host
from speclab.extensions.trees.draft import TreeDraft, TreesDrafter
from speclab.extensions.trees.growing import growing


class Branching(TreesDrafter, Wrapper):
    """The base of drafters of trees. drafter: it says which tokens come next, and is of a kind that `growing` knows."""

    def __init__(self, drafter: Drafter):
        self.growing = growing(drafter)
        self.drafter = self.growing.drafter
        self._sampling = GREEDY
        self._device = torch.device("cpu")

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._sampling, self._device = sampling, prompt.device
        self.growing.prefill(target, prompt, sampling)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self.growing.end_tree()
        self.drafter.observe(n_accepted, committed)

    def describe(self, name: str, engine: str) -> str:
        return f"{name}: {self.shape_in_words()}"

    def shape_in_words(self) -> str:
        """Say in a few words what the trees are."""
        raise NotImplementedError


class Candidates(NamedTuple):
    """The candidates for a tree, level by level, (m,) each; those after one token stand in the order of their ranks."""

    tokens: Tensor
    parents: Tensor  # the number of the one before it on its branch, -1 for the last committed token
    scores: Tensor  # logarithm of the probability that the draft gives its branch


class BestTreeDrafter(Branching):
    """Drafts the most probable branches. width: the candidates after each token, and the tokens from which a level
    goes on."""

    def __init__(self, drafter: Drafter, width: int = 8):
        super().__init__(drafter)
        self.width = width

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose as many tokens as there are uniforms: the most probable ones that can be accepted, at most `k` on a
        branch.

        Whether another level is drafted is decided on the host, which waits for the device.
        """
        n, deepest = uniforms.shape[1], min(k, self.room)
        if min(n, deepest) <= 0:
            return as_draft([], self._device)
        return _best_of(self._candidates(n, deepest), n)

    def _candidates(self, n: int, deepest: int) -> Candidates:
        """Find the candidates for a tree of n tokens with at most `deepest` on a branch."""
        width, parts = min(self.width, n), []
        n_seen, start = 0, torch.full((1,), -1, device=self._device)
        rows = runs = start  # of what is grown: numbers among all that was looked at, and among all that was grown
        n_grown, seen = 0, torch.zeros(1, 0, dtype=torch.bool, device=self._device)
        before = torch.zeros(1, dtype=torch.float64, device=self._device)  # logarithm of the probability of its branch
        with torch.inference_mode():
            logits = self.growing.start_tree()
            for depth in range(1, deepest + 1):
                n_children = min(width, logits.shape[-1])
                values, children = self._log_probs(logits).topk(n_children)  # (m, n_children) each
                # Rounding may say 1 for a token; it is less probable than the one before it all the same.
                level = (before[:, None] + values.double().clamp(max=-1e-9)).flatten()
                parts.append(Candidates(children.flatten(), rows.repeat_interleave(n_children), level))
                best, chosen = level.topk(min(width, len(level)))
                m = _n_to_grow(torch.cat([part.scores for part in parts]), best, n)
                if m == 0 or depth == deepest:
                    break
                chosen, parent = chosen[:m], chosen[:m] // n_children
                seen = torch.cat([seen[parent], torch.eye(m, dtype=torch.bool, device=self._device)], dim=1)
                before, rows, n_seen = level[chosen], n_seen + chosen, n_seen + len(level)
                logits = self.growing.grow(children.flatten()[chosen], runs[parent], seen, depth)
                runs, n_grown = torch.arange(n_grown, n_grown + m, device=self._device), n_grown + m
            return Candidates(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Take logarithms of the probabilities of (m, vocab) logits.

        Greedy decoding has no probabilities: those at temperature 1 stand for them.
        """
        return logits.float().log_softmax(-1) if self._sampling.greedy else self._sampling.probs(logits).log()

    def shape_in_words(self) -> str:
        """Say in a few words what the trees are."""
        return f"trees of the most probable branches, looking at {self.width} tokens for a place"


def _n_to_grow(scores: Tensor, best: Tensor, n: int) -> int:
    """Decide how many of the newest tokens get another level: those that can have a child among the n best, since a
    token is never more probable than the one before it.

    scores: (m,), those of all candidates. best: those of the newest ones, falling, NaN first. Raises EnvironmentProblem
    where the draft's logits were not finite.
    """
    least = scores.topk(min(n, len(scores))).values[-1]
    n_grown = (best.isfinite() & (best >= least)).sum()
    return to_host(torch.where(best[:1].isnan(), NOT_FINITE, n_grown))[0]


def _best_of(looked: Candidates, n: int) -> Draft:
    """Return the n tokens with the best scores, in their order."""
    numbers = looked.scores.topk(min(n, len(looked.scores))).indices.sort().values
    numbers = numbers[looked.scores[numbers].isfinite()]  # not those of probability 0
    parents = looked.parents[numbers]
    new_parents = torch.where(parents < 0, -1, torch.searchsorted(numbers, parents))
    drafted = looked.tokens[numbers][None]
    return TreeDraft(drafted, torch.full_like(drafted[:, 0], len(numbers)), parents=new_parents[None])
