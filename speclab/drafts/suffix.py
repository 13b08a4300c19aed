"""Suffix decoding: continue as the text so far was continued most often, as far as its own statistics say.

A tree holds every piece of the text up to DEPTH tokens and how often it came: a node is a piece, its children are the
tokens that followed it. The longest end of the text that came before is looked up there, and the tokens that followed
it most often are proposed, one after the other. A token's share of what followed, lowered where the match is short,
says how sure that is; the draft ends where the product of the shares falls below LEAST.

Oliaro et al., SuffixDecoding, arXiv 2411.04975. The text is this sequence alone: prompt and output.
"""

import sys

from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Lookup
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling

DEPTH = 32  # tokens of the longest piece
LEAST = 0.2  # of the chance that all tokens of a draft are right
DOUBT = 2.0  # counts as so many other followers of a match of one token, and half as many for one of two


class Node:
    """A piece of the text."""

    __slots__ = ("after", "count", "latest")

    def __init__(self) -> None:
        self.count = 0  # how often it came
        self.latest = 0  # where it came last
        self.after: dict[int, Node] = {}  # by the token that followed

    def best(self) -> tuple[int, float]:
        """Return the token that followed most often, of equals the most recent, and how often any other one did."""
        token, child = max(self.after.items(), key=lambda item: (item[1].count, item[1].latest))
        return token, sum(node.count for node in self.after.values()) - child.count


class SuffixDrafter(Lookup):
    """Proposes what followed the longest match most often. No model, no cost, one-hot.

    n_ids: the target emits ids 0 to n_ids - 1. A prompt may have higher ids; they are never proposed.
    """

    def __init__(self, depth: int = DEPTH, least: float = LEAST, n_ids: int = sys.maxsize):
        self.depth, self.least, self.n_ids = depth, least, n_ids

    def prefill(self, target: Target | None, prompt: Tensor, sampling: Sampling) -> None:
        self._device, self._n_tokens = prompt.device, 0
        self._ends = [Node()]  # of the tree: the root, then the last token, the last two, ...
        self.observe(0, prompt[0].tolist())

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft(self.lookup(k), self._device)

    def lookup(self, k: int) -> list[int]:
        ends, chance = self._ends, 1.0
        tokens: list[int] = []
        self.matched = 0
        while len(tokens) < k:
            match = next((n for n in range(len(ends) - 1, 0, -1) if ends[n].after), 0)
            if not tokens:
                self.matched = match
            if not match:
                break
            token, n_others = ends[match].best()
            count = ends[match].after[token].count
            chance *= count / (count + n_others + DOUBT / match)
            if chance < self.least or token >= self.n_ids:
                break
            tokens.append(token)
            ends = [ends[0], *(node.after[token] for node in ends if token in node.after)]
        return tokens

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        for token in committed:
            self._n_tokens += 1
            longer = [self._ends[0]]
            for node in self._ends[: self.depth]:
                child = node.after.setdefault(token, Node())
                child.count, child.latest = child.count + 1, self._n_tokens
                longer.append(child)
            self._ends = longer
