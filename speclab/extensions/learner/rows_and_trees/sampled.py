"""Exercise 16 in a decoding with sampled trees: children are drawn and judged by a reader's functions, in fractions.

A row has one entry for each token that the target or the draft may say there, under numbers of its own from 0 on: a
vocabulary of fractions would take seconds for a node. The random numbers are those that the lab's own functions would
use, so right functions write the same text.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, Draft, Target
from speclab.core.sampling import GREEDY, Sampling, faults_in, to_host
from speclab.extensions.learner.ask import Impossible, each, short, whole
from speclab.extensions.learner.rows_and_trees.asked import Asked, Drawing
from speclab.extensions.learner.rows_and_trees.trees import Around, along, parents_of, replace_function

Law = dict[int, Fraction]  # the probability of each id that has one
NEAR_ONE = Fraction(1, 10**9)  # a row may be scaled in floats


def law_of(probs: Tensor) -> Law:
    """Turn a row of probabilities, (vocab,), into fractions that sum to 1."""
    ids = probs.nonzero()[:, 0].tolist()
    shares = [Fraction(share) for share in probs[ids].tolist()]
    total = sum(shares)
    return {token: share / total for token, share in zip(ids, shares, strict=True)}


class OwnSampledTrees(Around):
    """Sampled trees of the lab whose children are drawn by a reader's `children`.

    drafter: it asks `children(logits, uniforms)` for every level, as TreeDrafter of speclab/extensions/trees does.
    """

    def __init__(self, drafter: Drafter, asked: Asked):
        super().__init__(drafter, asked)
        self.laws: list[Law] = []  # of each drafted token of this round; empty where none was drawn
        self._sampling = GREEDY
        replace_function(drafter, "children", self.children)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter inside read the prompt."""
        self._sampling = sampling
        super().prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Draft a tree; `laws` then has an entry for each of its tokens."""
        self.laws = []
        return super().propose(k, uniforms)

    def children(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Draw n children of each token.  (m, vocab) logits, (m, n) uniforms -> ids (m, n), laws (m, n, vocab)

        Where fewer were drawn, the last ones are id 0 with a law of zeros, which stands for no token.
        """
        to_host(faults_in(logits))  # rows that are not finite are no row of the reader's
        m, n = uniforms.shape
        tokens = torch.zeros(m, n, dtype=torch.long, device=logits.device)
        laws = torch.zeros(m, n, logits.shape[1], dtype=torch.float64, device=logits.device)
        for i, (probs, numbers) in enumerate(zip(self._sampling.probs(logits), uniforms.tolist(), strict=True)):
            row = law_of(probs)
            ids = list(row)
            drawn = self.asked("children", list(row.values()), n, Drawing(numbers, len(ids)), check=_children(row, n))
            of_node = [{token: share for token, share in zip(ids, law, strict=True) if share} for _, law in drawn]
            self.laws += of_node + [{}] * (n - len(drawn))
            for j, (number, _) in enumerate(drawn):
                tokens[i, j] = ids[number]
                for token, share in of_node[j].items():
                    laws[i, j, token] = float(share)
        return tokens, laws


def _children(row: Law, n: int) -> Callable[[Any], list[tuple[int, list[Fraction]]]]:
    """For `ask`: at most n pairs of a number and a row that sums to 1."""

    def law(answer: Any) -> list[Fraction]:
        shares = [Fraction(share) for share in answer]
        if len(shares) != len(row) or min(shares) < 0 or abs(sum(shares, Fraction(-1))) > NEAR_ONE:
            raise Impossible(f"the row {short(answer)}, not {len(row)} probabilities that sum to 1")
        return shares

    def check(answer: Any) -> list[tuple[int, list[Fraction]]]:
        if not isinstance(answer, list | tuple) or len(answer) > n:
            raise Impossible(f"{short(answer)}, not a list of at most {n} pairs (id, row)")
        pair = each("a pair (id, row)", whole(0, len(row) - 1), law)
        return [(number, shares) for number, shares in map(pair, answer)]

    return check


class OwnWalk:
    """Judges a sampled tree node by node with a reader's `accept_children`, or `follow`. trees: the drafter."""

    def __init__(self, asked: Asked, trees: Callable[[], OwnSampledTrees], follows: bool):
        self._asked, self._trees, self._follows = asked, trees, follows

    def __call__(self, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        """Walk from the root down. logits: (1, n + 1, vocab); uniforms: (1, at least n + 1)

        Number i tests token i, and the last one draws the next token; `follow` draws with one number for each depth.
        """
        to_host(faults_in(logits[0]))
        parents, tokens, laws = parents_of(draft), draft.tokens[0].tolist(), self._trees().laws
        numbers, probs = uniforms[0, : len(tokens) + 1].tolist(), sampling.probs(logits)[0]
        path: list[int] = []
        while True:
            here = path[-1] if path else -1
            children = [i for i, parent in enumerate(parents) if parent == here and laws[i]]
            target = law_of(probs[here + 1])
            ids = sorted({*target, *(token for i in children for token in laws[i])})
            rows = [[law.get(token, Fraction(0)) for token in ids] for law in (target, *(laws[i] for i in children))]
            drawn = [ids.index(tokens[i]) for i in children]
            kept, number = self._node(rows, drawn, [numbers[i] for i in children], numbers[len(path)], numbers[-1])
            if kept is None:
                return along(draft, path, ids[number])
            path.append(children[kept])

    def _node(
        self, rows: list[list[Fraction]], drawn: list[int], tests: list[float], at_depth: float, last: float
    ) -> tuple[int | None, int]:
        """Ask about one node.  -> the place of the child that is kept, None for none; the number of the next id"""

        def check(answer: Any) -> tuple[int | None, int]:
            kept, number = each("a pair (child or None, id)", lambda one: one, whole(0, len(rows[0]) - 1))(answer)
            kept = None if kept is None else whole(0, len(drawn) - 1)(kept)
            if kept is not None and drawn[kept] != number:
                raise Impossible(f"{short(answer)}, and child {kept} is {drawn[kept]}")
            return kept, number

        if self._follows:
            return self._asked("follow", rows[0], drawn, Drawing([at_depth], len(rows[0])), check=check)
        pairs = list(zip(drawn, rows[1:], strict=True))
        draw = Drawing([last], len(rows[0]))
        return self._asked("accept_children", rows[0], pairs, tests, draw, check=check)
