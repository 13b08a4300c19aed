"""Which tree of drafted tokens is the best one, from how often the draft's first, second, ... choice is right.

A token of rank r after an accepted token is accepted with probability `rank_acceptance[r]`, so one whose branch has the
ranks r1, r2, ... is accepted with the product of these, and a tree commits 1 + the sum of its tokens' products.

Sequoia (Chen et al., arXiv 2402.12374) finds the best tree of n tokens by dynamic programming over n and the children
of a token. The products allow a shorter way to the same trees: none is larger than that of the token before it on its
branch, so the n largest products of all are a tree, and taking them one by one gives the best tree for every n.
tests/theory/test_trees.py compares both with all trees of up to six tokens.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

Rates = Sequence[float] | Sequence[Sequence[float]]
"""Acceptance by rank, or by depth and rank; what is deeper than the last row has that row's."""


class Tree(NamedTuple):
    """Its tokens by number; the last committed token is -1, and a parent comes before its children."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def depths(self) -> list[int]:
        """Of each token, 1 for those after the last committed one."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return depths

    def first(self, n: int) -> "Tree":
        """The tree of its first n tokens."""
        return Tree(self.parents[:n], self.ranks[:n])


def rates_at(rank_acceptance: Rates, depth: int) -> Sequence[float]:
    """Acceptance by rank of tokens at this depth, from 1."""
    if not rank_acceptance or isinstance(rank_acceptance[0], int | float):
        return rank_acceptance  # type: ignore[return-value]
    return rank_acceptance[min(depth, len(rank_acceptance)) - 1]  # type: ignore[return-value]


def survivals(parents: Sequence[int], ranks: Sequence[int], rank_acceptance: Rates) -> list[float]:
    """How likely each token of a tree is accepted."""
    found: list[float] = []
    for parent, rank, depth in zip(parents, ranks, Tree(tuple(parents), tuple(ranks)).depths, strict=True):
        found.append((found[parent] if parent >= 0 else 1.0) * rates_at(rank_acceptance, depth)[rank])
    return found


def expected_tokens(parents: Sequence[int], ranks: Sequence[int], rank_acceptance: Rates) -> float:
    """Tokens that a round with this tree commits: the accepted ones and the target's own."""
    return 1 + sum(survivals(parents, ranks, rank_acceptance))


def best_tree(rank_acceptance: Rates, n: int, deepest: int | None = None) -> Tree:
    """The tree of n tokens with the highest expectation; its first m tokens are the best tree of m.

    deepest: tokens of a branch at most. Fewer than n tokens where there are no more.
    """
    parents: list[int] = []
    ranks: list[int] = []
    waiting: list[tuple[float, int, int, int]] = []  # minus the product, depth, number of the parent, rank

    def add_children(survival: float, depth: int, parent: int) -> None:
        if deepest is None or depth <= deepest:
            for rank, rate in enumerate(rates_at(rank_acceptance, depth)):
                heapq.heappush(waiting, (-survival * rate, depth, parent, rank))

    add_children(1.0, 1, -1)
    while waiting and len(parents) < n:
        minus, depth, parent, rank = heapq.heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        add_children(-minus, depth + 1, len(parents) - 1)
    return Tree(tuple(parents), tuple(ranks))


def fastest_tree(rank_acceptance: Rates, levels: Sequence[float], rest: Sequence[float]) -> Tree:
    """The tree with the most expected tokens per second, the smallest among equals.

    levels: [d] seconds of drafting d levels. rest: [n] seconds of the rest of a round with n tokens. Of all numbers of
    tokens and levels that have a cost; with S the rate it reaches, this is the tree that maximises E[tokens] - S *
    seconds.
    """
    found = [(1 / (levels[0] + rest[0]), Tree((), ()))]
    for deepest in range(1, len(levels)):
        tree = best_tree(rank_acceptance, len(rest) - 1, deepest)
        expected, n_levels = 1.0, 0
        of_tokens = zip(survivals(*tree, rank_acceptance), tree.depths, strict=True)
        for n, (survival, depth) in enumerate(of_tokens, 1):
            expected, n_levels = expected + survival, max(n_levels, depth)
            found.append((expected / (levels[n_levels] + rest[n]), tree.first(n)))
    return max(found, key=lambda one: (one[0], -len(one[1].parents)))[1]
