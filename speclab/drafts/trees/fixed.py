"""Drafts trees whose shape is fixed before a text begins: which of the draft's choices for a place, node by node.

`TreeDrafter` is told the shape: `2x2x1` is two first tokens, two after each of them, one after each of those; 10 tokens
in all. With `sampled` the children of a token are drawn one after the other without replacement, and the draft says
what each was drawn from; else they are the most probable ones, which needs no random numbers and is exact at every
temperature, too.

The shape of `StaticTreeDrafter` comes from how often the draft's first, second, ... choice was right on a few prompts
and from what rounds cost here (speclab/theory/trees.py, speclab/lab/round_costs.py). Its tokens are most probable ones.
"""

import copy
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.rounds import Draft, Target, reads
from speclab.core.sampling import Sampling, faults_in, without_replacement
from speclab.drafts.tree import Branching, GrowingDrafter
from speclab.drafts.trees.auto import TreeCosts

Nodes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of each token of a tree the number of its parent, -1 for the last committed token, and its rank among the draft's
choices after it, from 0. A parent comes before its children."""


class Level(NamedTuple):
    """The tokens of one depth."""

    rows: Tensor  # (m,) of the logits of what was grown before: which one each follows
    ranks: Tensor  # (m,) which of that row's choices it is
    n_choices: int  # of the row of which most are taken
    grown: Tensor  # (g,) those that have children
    parents: Tensor  # (g,) of these: the numbers of their parents among all that was grown, -1 for none
    reads: Tensor  # (g, j + g) bool: which of what was grown stands on the branch of each


class FixedTreeDrafter(Branching):
    """Drafts the first tokens of a tree, as many as it is asked for."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter read the prompt."""
        self._plans: dict[tuple[int, int], tuple[Tensor, list[Level]]] = {}  # by tokens and depth
        super().prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """The first tokens that are at most `k` deep, as many as there are uniforms at most."""
        asked = uniforms.shape[1], min(k, self.drafter.room)
        if asked not in self._plans:
            self._plans[asked] = planned(self._nodes(*asked), *asked, self._device)
        parents, levels = self._plans[asked]
        if not levels:
            return as_draft([], self._device)
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        faults: list[Tensor] = []
        n = 0
        with torch.inference_mode():
            for depth, level in enumerate(levels):
                if depth == 0:
                    logits = self.drafter.start_tree()  # (1, vocab)
                else:
                    before = levels[depth - 1]
                    logits = self.drafter.grow(tokens[-1][before.grown], before.parents, before.reads, depth)
                chosen, law = self._chosen(logits, level, uniforms[0, n : n + len(level.rows)])
                tokens.append(chosen)
                faults.append(faults_in(logits))
                laws += [] if law is None else [law]
                n += len(level.rows)
        drawn = torch.cat(tokens)[None]
        size, law_of_each = torch.full_like(drawn[:, 0], n), torch.cat(laws)[None] if laws else None
        return Draft(drawn, size, law_of_each, parents=parents[None], faults=torch.cat(faults).amin()[None])

    def _nodes(self, n: int, deepest: int) -> Nodes:
        """A tree whose first n tokens are drafted, but for those that are deeper."""
        raise NotImplementedError

    def _chosen(self, logits: Tensor, level: Level, uniforms: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens of a level: ids (m,), and what they were drawn from, (m, vocab), if they were drawn.

        logits: (g, vocab) after each token that has children here. uniforms: (m,).
        """
        most = logits.shape[-1] - 1  # of a small vocabulary the last choice stands for those that it lacks
        choices = logits.topk(min(level.n_choices, most + 1)).indices
        return choices[level.rows, level.ranks.clamp(max=most)], None


class TreeDrafter(FixedTreeDrafter):
    """Drafts trees of one shape: children of each token, by depth."""

    def __init__(self, drafter: GrowingDrafter, shape: tuple[int, ...], sampled: bool = False):
        super().__init__(drafter)
        self.shape, self.sampled = shape, sampled

    @property
    def n_tokens(self) -> int:
        """Tokens of a whole tree."""
        return tokens_in(self.shape)

    def _nodes(self, n: int, deepest: int) -> Nodes:
        """The first levels, as many as fit as a whole."""
        sizes = list(itertools.accumulate(self.shape[:deepest], int.__mul__))  # tokens of each level
        while sum(sizes) > n:
            sizes.pop()
        ranks = (i % children for size, children in zip(sizes, self.shape, strict=False) for i in range(size))
        return tuple(level_parents(sizes)), tuple(ranks)

    def _chosen(self, logits: Tensor, level: Level, uniforms: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.sampled or self._sampling.greedy:
            return super()._chosen(logits, level, uniforms)
        # Where nothing is left to draw a child has a law of zeros, and the rule passes it over.
        tokens, laws, _ = without_replacement(self._sampling.probs(logits), uniforms.reshape(len(logits), -1))
        return tokens.flatten(), laws.flatten(0, 1)

    def describe(self) -> str:
        """What it is, in a few words."""
        how = "drawn without replacement" if self.sampled else "the most probable ones"
        return f"trees of {self.n_tokens} tokens, {'x'.join(map(str, self.shape))}, {how}"


class StaticTreeDrafter(FixedTreeDrafter):
    """Drafts the first tokens of one tree that was chosen for it.

    on_auto: the size was chosen with the shape, so that all of it is asked for.
    nodes: by temperature; where there are none the tree is a chain. costs: what the size was chosen by. Both are shared
    by copies.
    """

    def __init__(self, drafter: GrowingDrafter, on_auto: bool = False):
        super().__init__(drafter)
        self.on_auto = on_auto
        self.nodes: dict[float, Nodes] = {}
        self.costs: dict[float, TreeCosts] = {}

    def __deepcopy__(self, memo: dict) -> "StaticTreeDrafter":
        other = type(self)(copy.deepcopy(self.drafter, memo), self.on_auto)
        other.nodes, other.costs = self.nodes, self.costs
        return other

    def _nodes(self, n: int, deepest: int) -> Nodes:
        return self.nodes.get(self._sampling.temperature, (tuple(range(-1, n - 1)), (0,) * n))

    def describe(self) -> str:
        """What it is, in a few words."""
        return "trees of one shape, chosen by how often the draft's first, second, ... choice is right"

    def describe_shape(self, temperature: float, n: int) -> str:
        """Of its first n tokens, for a terminal."""
        parents, levels = planned(self.nodes.get(temperature, ((), ())), n, n, self._device)
        sizes = " ".join(str(len(level.ranks)) for level in levels)
        return f"tree of {len(parents)} tokens, by level: {sizes or 'none, since no tree pays here'}"


def planned(nodes: Nodes, n: int, deepest: int, device: torch.device) -> tuple[Tensor, list[Level]]:
    """The first n tokens that are at most so deep, level by level: their parents (m,), and how to draft them."""
    depths: list[int] = []
    for parent in nodes[0]:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    taken = [i for i, depth in enumerate(depths) if depth <= deepest][:n]
    taken.sort(key=lambda i: (depths[i], i))
    numbers = {-1: -1} | {old: new for new, old in enumerate(taken)}
    parents = [numbers[nodes[0][i]] for i in taken]
    grown = sorted({parent for parent in parents if parent >= 0})
    run = {-1: -1} | {node: place for place, node in enumerate(grown)}  # the numbers of what is grown, in its order
    above = [run[parents[node]] for node in grown]
    seen = reads(torch.tensor(above, dtype=torch.long)[None])[0, 1:, 1:]  # without the root
    levels: list[Level] = []
    start = first = 0  # of this level: its first token, and the first one of those that are grown
    rows_before = {-1: 0}  # where the logits of each parent are
    while start < len(taken):
        depth = depths[taken[start]]
        size = sum(depths[i] == depth for i in taken)
        going_on = [node for node in grown if start <= node < start + size]
        end = first + len(going_on)
        columns = (
            [rows_before[parent] for parent in parents[start : start + size]],
            [nodes[1][i] for i in taken[start : start + size]],
            [node - start for node in going_on],
            above[first:end],
        )
        rows, ranks, on, before = (torch.tensor(column, dtype=torch.long, device=device) for column in columns)
        levels.append(Level(rows, ranks, 1 + max(columns[1]), on, before, seen[first:end, :end].to(device)))
        rows_before = {node: place for place, node in enumerate(going_on)}
        start, first = start + size, end
    return torch.tensor(parents, dtype=torch.long, device=device), levels


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
