"""Drafts trees of a given shape: `2x2x1` is two first tokens, two after each of them, one after each of those; 10
tokens in all.

With `sampled` the children of a token are drawn one after the other without replacement, and the draft says what each
was drawn from; else they are the most probable ones, which needs no random numbers and is exact at every temperature,
too.
"""

import itertools

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import NOT_FINITE, Sampling, draw
from speclab.extensions.trees.best import Branching
from speclab.extensions.trees.draft import TreeDraft, reads


class TreeDrafter(Branching):
    """Drafts trees of one shape: children of each token, by depth."""

    def __init__(self, drafter: Drafter, shape: tuple[int, ...], sampled: bool = False):
        super().__init__(drafter)
        self.shape, self.sampled = shape, sampled

    @property
    def n_tokens(self) -> int:
        return tokens_in(self.shape)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._plans: dict[tuple[int, int], tuple[list[int], Tensor, Tensor]] = {}  # by tokens and depth
        super().prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose the first `k` levels, or as many whole levels as fit into as many tokens as there are uniforms."""
        asked = uniforms.shape[1], min(k, self.room)
        if asked not in self._plans:
            self._plans[asked] = self._planned(*asked)
        sizes, parents, seen = self._plans[asked]
        if not sizes:
            return as_draft([], self._device)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        faults: list[Tensor] = []
        n = 0
        with torch.inference_mode():
            for depth, size in enumerate(sizes):
                if depth == 0:
                    logits = self.growing.start_tree()  # (1, vocab)
                else:
                    level = slice(n - sizes[depth - 1], n)
                    logits = self.growing.grow(tokens[-1], parents[level], seen[level, :n], depth)
                children, law = self.children(logits, uniforms[0, n : n + size].reshape(len(logits), -1))
                tokens.append(children.flatten())
                faults.append(faults_in(logits))
                laws += [] if law is None else [law.flatten(0, 1)]
                n += size
        drawn = torch.cat(tokens)[None]
        n_drafted, law_of_each = torch.full_like(drawn[:, 0], n), torch.cat(laws)[None] if laws else None
        not_finite = torch.cat(faults).amin()[None]
        return TreeDraft(drawn, n_drafted, law_of_each, faults=not_finite, parents=parents[None])

    def _planned(self, n: int, deepest: int) -> tuple[list[int], Tensor, Tensor]:
        """Return the number of tokens of each level that is drafted, all their parents (m,), and which of them stand on
        the branch of each, (m, m)."""
        sizes = list(itertools.accumulate(self.shape[:deepest], int.__mul__))
        while sum(sizes) > n:
            sizes.pop()
        parents = torch.tensor(level_parents(sizes), dtype=torch.long)
        seen = reads(parents[None])[0, 1:, 1:]  # without the root
        return sizes, parents.to(self._device), seen.to(self._device)

    def children(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose n children of each token, in order: ids (m, n), and the distributions that they were drawn from, (m,
        n, vocab), if they were drawn.

        logits: (m, vocab). uniforms: (m, n).
        """
        if not self.sampled or self._sampling.greedy:
            n, most = uniforms.shape[1], logits.shape[-1]
            best = logits.topk(min(n, most)).indices
            # A small vocabulary lacks some choices: the last one stands for them.
            return torch.cat([best, best[:, -1:].expand(-1, max(n - most, 0))], dim=1), None
        # Where nothing is left to draw, the probabilities of a child are zeros, and the rule passes it over.
        tokens, laws, _ = without_replacement(self._sampling.probs(logits), uniforms)
        return tokens, laws

    def lengths(self, asked: list[int]) -> list[int]:
        """The shape says how many tokens a tree has, so there is one entry. All its places count as drafted, also those
        for which nothing was left to draw."""
        return [self.n_tokens]

    def shape_in_words(self) -> str:
        """Say in a few words what the trees are."""
        how = "drawn without replacement" if self.sampled else "the most probable ones"
        return f"trees of {self.n_tokens} tokens, {'x'.join(map(str, self.shape))}, {how}"


def faults_in(logits: Tensor) -> Tensor:
    """Return (...) NOT_FINITE where the largest one of a row of logits, (..., vocab), is not finite, else 0."""
    highest = logits.amax(-1)
    return (highest - highest).isnan() * NOT_FINITE


def without_replacement(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw several different ids from one distribution, and return what each was drawn from.

    probs: (vocab,) or (batch, vocab); uniforms: (batch, m) in [0, 1).
    -> (batch, m) ids, (batch, m, vocab) distributions, (batch,) how many ids of each row count: m, or as many as have
    weight.

    The law of an id is `probs` without the ids before it, renormalised. What does not count is id 0 with a law of
    zeros. NOT_FINITE becomes id 0; `faults_in` tells.
    """
    batch, m = uniforms.shape
    weights = probs.expand(batch, -1)
    laws = weights.new_zeros(batch, m, weights.shape[-1])
    tokens = torch.zeros(batch, m, dtype=torch.long, device=probs.device)
    n_drawn = torch.zeros(batch, dtype=torch.long, device=probs.device)
    for i in range(m):
        mass = weights.sum(-1, keepdim=True)  # (batch, 1)
        laws[:, i] = torch.where(mass == 0, 0.0, weights / mass)
        tokens[:, i] = draw(laws[:, i], uniforms[:, i]).clamp(min=0)
        n_drawn += mass[:, 0] != 0
        weights = weights.scatter(-1, tokens[:, i : i + 1], 0.0)
    return tokens, laws, n_drawn


def tokens_in(shape: tuple[int, ...]) -> int:
    """Return the number of tokens of a whole tree of this shape."""
    return sum(itertools.accumulate(shape, int.__mul__))


def level_parents(sizes: list[int]) -> list[int]:
    """Return the parents of a tree whose levels have so many tokens; each token of a level has as many children."""
    parents, before, start = [], 1, -1
    for size in sizes:
        parents += [start + i * before // size for i in range(size)]
        start, before = start + before, size
    return parents
