"""`-k auto` in a batch: one budget of drafted tokens for all rows, since all of them wait for the step.

A token's survival is the probability that it and all drafted ones before it are accepted. In the order of falling
survival, so many tokens of all rows are drafted, and verified, as maximise

    expected tokens of the step - S * seconds of the step

S is the rate, in tokens per second of all rows, that the best fixed length is expected to reach. With one row and a
greedy draft model that is the rule of speclab/drafts/lengths.py. Other rules stand beside it:

    each        every row decides as if it were alone, by what rounds of one text cost
    published   all rows draft k tokens; then, token by token, the rate (rows + sum of survivals) / seconds of this step
                must not fall: that another step has a price is left out (vLLM; DSpark, arXiv 2607.05147)

Survival comes from the draft's largest probability of each place, known before a token is drawn there, and from what
was accepted earlier, after such probabilities and by depth. Whether a token is verified never depends on the token
itself, so the output stays exact; nothing else may be dropped once it is drawn (docs/chapters/09-stop-when-unsure.md).
"""

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from speclab.core.drafter import Drafter, Wrapper
from speclab.drafts.lengths import LONGEST, PAUSE, Acceptance, Tally, expected_tokens

OWN, EACH, PUBLISHED = RULES = ("auto", "each", "published")  # as -k has them


@dataclass(frozen=True)
class StepCosts:
    """Seconds of what a step over n texts does.

    outside: what the loop takes besides its passes. target[n]: a pass over n tokens of one text. texts[n]: what reading
    the caches of n texts takes more than reading that of one. draft[n]: drafting a further token in n texts. pads: all
    rows of a pass have as many tokens as the longest one, as on all engines but `c`. by_row: the draft makes no passes
    over several rows.
    """

    outside: float
    target: Sequence[float]
    texts: Sequence[float]
    draft: Sequence[float]
    pads: bool = False
    by_row: bool = False

    def verify(self, n_texts: int, total: int, deepest: int) -> float:
        """Of the target's pass, for `total` drafted tokens in all, and `deepest` in the row that has most of them."""
        return self.target[n_texts * (1 + deepest) if self.pads else n_texts + total] + self.texts[n_texts]

    def drafting(self, n_texts: int, n_drafting: int) -> float:
        """Of drafting one more token in some of the rows."""
        return self.draft[n_texts if self.pads and not self.by_row and n_drafting else n_drafting]

    def drafts(self, n_texts: int, lengths: Sequence[int]) -> float:
        """Of drafting so many tokens in each row."""
        return sum(self.drafting(n_texts, sum(n > i for n in lengths)) for i in range(max(lengths)))

    def of_length(self, n_texts: int, longest: int) -> list[float]:
        """Of steps in which each row drafts 0, 1, ... tokens."""
        draft = self.drafting(n_texts, n_texts)
        return [self.outside + self.verify(n_texts, n_texts * n, n) + n * draft for n in range(longest + 1)]


class Budget:
    """Decides in every step how many tokens each row drafts, and learns from what was accepted.

    drawn: tokens of each row that this step verifies, so far. most: no more than so many; once `verified` is called,
    with the rule published, so many as were drafted.
    """

    def __init__(self, costs: StepCosts, rule: str = OWN, longest: int = LONGEST):
        self.costs, self.rule, self.longest, self.seen = costs, rule, longest, Acceptance()
        self._n_idle = 0  # steps in which rows could draft and none did, this one counted until a token is verified

    def begin(self, most: Sequence[int], n_texts: int) -> None:
        """A step over so many texts begins. most: tokens that each row may draft; 0 for a row without a text."""
        self.most, self.drawn = [min(n, self.longest) for n in most], [0] * len(most)
        self.n_texts = 1 if self.rule == EACH else max(1, n_texts)
        chain = self.seen.chain(self.longest)
        self.accepts = [chain.copy() for _ in most]  # how likely each token of each row is accepted
        self._said: list[list[Tally]] = [[] for _ in most]  # of each token, earlier ones with such a probability
        seconds, tokens = self.costs.of_length(self.n_texts, self.longest), expected_tokens(chain)
        self.rate, shorter = max((self.n_texts * tokens[i] / seconds[i], -i) for i in range(self.longest + 1))
        self._n_idle += any(self.most)
        self._tries = self._n_idle >= PAUSE  # one token of one row, again
        first = self.longest if self.rule == PUBLISHED else int(self._tries) or -shorter
        self._wanted = [min(n, first) for n in self.most]  # as many tokens as each row is to draft, as known so far

    @property
    def drafting(self) -> list[bool]:
        """Which rows draft a further token. The first one is drafted by all rows or by none: so early nothing is known
        that distinguishes them, and each of them reads what it has not read yet."""
        return [drawn < wanted for drawn, wanted in zip(self.drawn, self._wanted, strict=True)]

    def admits(self, tops: Sequence[float]) -> list[bool]:
        """Tell which rows verify a further token. tops: the draft's largest probability there, by row: the token may be
        judged by that and by what was before it."""
        asked = self.drafting
        for row, of_row in enumerate(asked):
            if of_row:
                self._said[row].append(self.seen.given(tops[row]))
                self.accepts[row][self.drawn[row]] = self._said[row][-1].rate
            else:
                self.most[row] = self.drawn[row]  # its draft has ended
        if self._tries:
            self._wanted = [int(row == asked.index(True)) for row in range(len(asked))]
        elif self.rule == OWN:
            self._wanted = self._worth(n_made=1)
        kept = self.drafting
        self.drawn = [drawn + keeps for drawn, keeps in zip(self.drawn, kept, strict=True)]
        if self.rule == EACH and not self._tries:
            self._wanted = self._worth()
        return kept

    def lengths(self) -> list[int]:
        """Decide before anything is drafted, for drafters that are not asked in between."""
        if self._tries:
            self.drawn[self.most.index(max(self.most))] = min(1, max(self.most))
        else:
            self.drawn = self.most if self.rule == PUBLISHED else self._worth()
        return self.verified()

    def verified(self) -> list[int]:
        """Return how many of its tokens each row verifies: all that it has drawn, except where the rule is published.

        There tokens are admitted by falling survival until the rate falls for the first time. To take the highest rate
        of all would be to look at survivals that depend on the token to be judged.
        """
        if self.rule == PUBLISHED and not self._tries:
            fixed = self.costs.outside + self.costs.drafts(self.n_texts, self.drawn)
            self.most, self.drawn = self.drawn, [0] * len(self.drawn)
            self.drawn = self._surest(slice(None), self.longest, fixed)
        self._n_idle *= not any(self.drawn)
        return self.drawn

    def _worth(self, n_made: int = 0) -> list[int]:
        """Return how many tokens of each row are drawn already or worth their seconds."""
        every = [slice(i, i + 1) for i in range(len(self.drawn))] if self.rule == EACH else [slice(None)]
        return [n for rows in every for n in self._surest(rows, n_made)]

    def _surest(self, rows: slice, n_made: int, fixed: float | None = None) -> list[int]:
        """Return how many tokens each of these rows has after further ones were added by falling survival.

        n_made: of each row, further tokens whose probabilities the draft has made already. fixed: seconds of the step
        besides what these take, for the rule that looks at the rate of this step alone.
        """
        first, found = self.drawn[rows], list[tuple[float, int, int]]()
        for row, (chain, most) in enumerate(zip(self.accepts[rows], self.most[rows], strict=True)):
            survivals = enumerate(itertools.accumulate(chain[:most], operator.mul))
            found += [(survival, row, depth) for depth, survival in survivals if depth >= first[row]]
        found.sort(key=operator.itemgetter(0), reverse=True)
        drafting = [self.costs.drafting(self.n_texts, n) for n in range(len(first) + 1)]
        sizes, in_pass = first.copy(), [0] * self.longest  # in_pass: of the draft, rows so far
        best, everything, gained, draft, deepest = -math.inf, sum(one[0] for one in found), 0.0, 0.0, max(first)
        for n, one in enumerate([None, *found], sum(first)):
            if one:
                survival, row, depth = one
                if depth >= first[row] + n_made:
                    draft += drafting[in_pass[depth] + 1] - drafting[in_pass[depth]]
                in_pass[depth] += 1
                sizes[row], gained, deepest = depth + 1, gained + survival, max(deepest, depth + 1)
            seconds = draft + self.costs.verify(self.n_texts, n, deepest)
            worth, at_most = gained - self.rate * seconds, everything - self.rate * seconds
            if fixed is not None:
                worth = at_most = (self.n_texts + gained) / (fixed + seconds)
            if worth > best or (worth == best and fixed is not None):
                best, chosen = worth, sizes.copy()
            elif at_most <= best:
                break  # no further token makes the step shorter, or the rate falls
        return chosen

    def observe(self, decided: Mapping[int, Any]) -> None:
        """Count what was tested: the accepted tokens of each row and the first rejected one."""
        for row, of_row in decided.items():
            for depth in range(min(of_row.n_accepted + 1, of_row.n_drafted)):  # a draft may be shorter than allowed
                self.seen.depths[min(depth, LONGEST - 1)].add(depth < of_row.n_accepted)
                if said := self._said[row]:
                    said[depth].add(depth < of_row.n_accepted)


class Budgeted(Wrapper):
    """A drafter of a batch on `-k auto`: its rows draft on one budget. name: of the drafter without it."""

    chooses_length = True

    def __init__(self, drafter: Drafter, name: str, rule: str):
        self.drafter, self.name, self.rule = drafter, name, rule

    def lengths(self, asked: list[int]) -> list[int]:
        """The published rule drafts as many tokens as the longest draft that is asked for."""
        return [max(asked, default=LONGEST) if self.rule == PUBLISHED else LONGEST]
