"""Drafts with branches: several tokens for one place, each with continuations of its own.

The shape is fixed: `2x2x1` is two first tokens, two after each of them, one after each of those; 10 tokens in all. A
model drafts one level in one pass. With `sampled` the children of a token are drawn one after the other without
replacement, and the draft says what each was drawn from; else they are the most probable ones, which needs no random
numbers and is exact at every temperature, too.
"""

import itertools
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.rounds import Draft, Drafter, Target
from speclab.core.sampling import GREEDY, Sampling, without_replacement
from speclab.core.tree import reads


@runtime_checkable
class GrowingDrafter(Drafter, Protocol):
    """A drafter that can say what comes after each of several tokens."""

    @property
    def room(self) -> int:
        """How many tokens it can draft at most after what is committed, on one branch."""

    def start_tree(self) -> Tensor:
        """Logits of the token after everything committed, (1, the target's vocabulary)."""

    def grow(self, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        """Logits of the token after each of these, (m, the target's vocabulary).

        tokens: (m,), all `depth` tokens after the last committed one. parents: (m,), which token of this tree each
        follows, by the order in which they were given here, -1 for none. reads: (m, j + m) bool, which of the j tokens
        given before and of these stand on the branch of each.
        """

    def end_tree(self) -> None:
        """Forget the tokens of this tree: `observe` says which of them were committed."""


class TreeDrafter:
    """Drafts trees of one shape.

    drafter: what says which tokens come next. shape: children of each token, by depth.
    """

    def __init__(self, drafter: GrowingDrafter, shape: tuple[int, ...], sampled: bool = False):
        self.drafter, self.shape, self.sampled = drafter, shape, sampled
        self._sampling = GREEDY
        self._device = torch.device("cpu")

    @property
    def parts(self) -> tuple[Drafter]:
        """What proposes the tokens."""
        return (self.drafter,)

    @property
    def n_tokens(self) -> int:
        """Tokens of a whole tree."""
        return tokens_in(self.shape)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter read the prompt."""
        self._sampling, self._device = sampling, prompt.device
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """A tree of the first `k` levels, or of those that fit into as many tokens as there are uniforms."""
        shape = self.shape[: min(k, self.drafter.room)]
        sizes = list(itertools.accumulate(shape, int.__mul__))  # tokens of each level
        while sum(sizes) > uniforms.shape[1]:
            sizes.pop()
        if not sizes:
            return as_draft([], self._device)
        parents = torch.tensor(level_parents(sizes), device=self._device)
        seen = reads(parents[None])[0, 1:, 1:]  # (n, n) without the root
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        n = 0
        with torch.inference_mode():
            for depth, size in enumerate(sizes):
                if depth == 0:
                    logits = self.drafter.start_tree()  # (1, vocab)
                else:
                    level = slice(n - len(tokens[-1]), n)
                    logits = self.drafter.grow(tokens[-1], parents[level], seen[level, :n], depth)
                children, law = self._children(logits, size // len(logits), uniforms[0, n : n + size])
                tokens.append(children.flatten())
                laws += [] if law is None else [law.flatten(0, 1)]
                n += size
        drawn = torch.cat(tokens)[None]
        return Draft(
            drawn, torch.full_like(drawn[:, 0], n), torch.cat(laws)[None] if laws else None, parents=parents[None]
        )

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Tell the drafter what is final."""
        self.drafter.end_tree()
        self.drafter.observe(n_accepted, committed)

    def _children(self, logits: Tensor, n: int, uniforms: Tensor) -> tuple[Tensor, Tensor | None]:
        """Of each token n children, in order: ids (m, n), and what they were drawn from, (m, n, vocab).

        logits: (m, vocab). uniforms: (m * n,).
        """
        if not self.sampled or self._sampling.greedy:
            return logits.topk(n).indices, None
        # Where nothing is left to draw a child has a law of zeros, and the rule passes it over.
        tokens, laws, _ = without_replacement(self._sampling.probs(logits), uniforms.reshape(len(logits), n))
        return tokens, laws

    def describe(self) -> str:
        """What it is, in a few words."""
        how = "drawn without replacement" if self.sampled else "the most probable ones"
        return f"trees of {self.n_tokens} tokens, {'x'.join(map(str, self.shape))}, {how}"


def tokens_in(shape: tuple[int, ...]) -> int:
    """Tokens of a whole tree of this shape."""
    return sum(itertools.accumulate(shape, int.__mul__))


def level_parents(sizes: list[int]) -> list[int]:
    """The parents of a tree whose levels have so many tokens; each token of a level has as many children."""
    parents, before, start = [], 1, -1
    for size in sizes:
        parents += [start + i * before // size for i in range(size)]
        start, before = start + before, size
    return parents
