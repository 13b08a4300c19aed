"""`-k auto` in a batch: one budget of drafted tokens for all rows, since all of them wait for the step.

A token's survival is the probability that it and all drafted ones before it are accepted. In the order of falling
survival, so many tokens of all rows are drafted, and verified, as maximise

    expected tokens of the step - S * seconds of the step                                                    (own)

S is the rate, in tokens per second of all rows, that the best fixed length is expected to reach. With one row that is
the rule of speclab/drafts/lengths.py, and the same function decides (`best_length`). Other rules stand beside it:

    each        every row decides as if it were alone, by what rounds of one text cost
    published   all rows draft k tokens; then, token by token, the rate (rows + sum of survivals) / seconds of this step
                must rise. It leaves out that another step has a price (vLLM's adaptive verification; DSpark,
                arXiv 2607.05147)

Survival comes from the draft's largest probability of each place, which is known before a token is drawn there, and
from what was accepted in earlier steps, after such probabilities and by depth. Whether a token is verified depends on
tokens before it, on other rows and on that probability, never on the token itself: so the output stays exact. Nothing
else may be dropped once it is drawn (docs/chapters/09-stop-when-unsure.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speclab.drafts.lengths import LONGEST, PAUSE, Acceptance, RoundCosts, best_length, expected_tokens

OWN, EACH, PUBLISHED = "own", "each", "published"
RULES = (OWN, EACH, PUBLISHED)


@dataclass(frozen=True)
class StepCosts:
    """Seconds of what a step over n texts does.

    outside: of the loop. target: (most tokens + 1,) of a pass over so many tokens of one text. texts: (most texts + 1,)
    what reading so many texts takes more than reading one. draft: (most texts + 1,) of drafting a further token in so
    many texts. pads: whether all rows of a pass have as many tokens as the longest one, as on all engines but `c`.
    """

    outside: float
    target: np.ndarray
    texts: np.ndarray
    draft: np.ndarray
    pads: bool = False

    def verify(self, n_texts: int, total: Any, deepest: Any) -> np.ndarray:
        """Of the target's pass, for `total` drafted tokens in all, and `deepest` in the row that has most of them."""
        n_tokens = n_texts * (1 + np.asarray(deepest)) if self.pads else n_texts + np.asarray(total)
        return self.target[n_tokens] + self.texts[n_texts]

    def drafting(self, n_texts: int, n_drafting: Any) -> np.ndarray:
        """Of drafting one more token in some of the rows."""
        n_drafting = np.asarray(n_drafting)
        return self.draft[np.where(n_drafting > 0, n_texts, 0) if self.pads else n_drafting]

    def of_length(self, n_texts: int, longest: int) -> np.ndarray:
        """Of steps in which each row drafts 0, 1, ... tokens."""
        n = np.arange(longest + 1)
        return self.outside + self.verify(n_texts, n_texts * n, n) + n * self.drafting(n_texts, n_texts)


class Budget:
    """Decides in every step how many tokens each row drafts, and learns from what was accepted.

    drawn: (rows,) tokens of each row that this step verifies, so far. most: (rows,) no more than so many.
    """

    def __init__(self, costs: StepCosts, rule: str = OWN, longest: int = LONGEST):
        self.costs, self.rule, self.longest = costs, rule, longest
        self.seen = Acceptance()
        self._n_idle, self._tries = 0, False  # steps without a draft; whether this one tries a token again

    def begin(self, most: Sequence[int]) -> None:
        """A step begins. most: tokens that each row may draft; 0 for a row without a text."""
        self.most = np.minimum(most, self.longest)
        self.drawn, self.n_texts = np.zeros_like(self.most), max(1, int(np.count_nonzero(self.most)))
        chain = self.seen.chain(self.longest)
        self._accepts = np.tile(chain, (len(most), 1))  # (rows, tokens) how likely each is accepted
        self._tops: list[list[float]] = [[] for _ in most]  # by which that was found, where the draft has said it
        n = 1 if self.rule == EACH else self.n_texts
        rates = n * np.array(expected_tokens(chain)) / self.costs.of_length(n, self.longest)
        self._rate = float(rates.max())

    def further(self, next_is_paid: bool = False) -> np.ndarray:
        """Return how many more tokens of each row are worth their seconds, (rows,). next_is_paid: the draft has made
        the probabilities of the next one already."""
        if self.rule == EACH:
            rows = range(len(self.drawn))
            return np.concatenate([self._best(slice(row, row + 1), 1, next_is_paid) for row in rows])
        return self._best(slice(None), self.n_texts, next_is_paid)

    def _best(self, rows: slice, n_texts: int, next_is_paid: bool) -> np.ndarray:
        drawn = self.drawn[rows]
        row, depth, gained, verify = self._by_survival(drawn, self.most[rows], self._accepts[rows], n_texts)
        later = depth - drawn[row]
        # Of the rows that draft their next token, their second one, ...: the pass is paid for one more.
        rank = (later[:, None] == np.arange(self.longest)).cumsum(0)[np.arange(len(row)), later]
        draft = self.costs.drafting(n_texts, rank) - self.costs.drafting(n_texts, rank - 1)
        draft = np.append(0.0, np.where((later == 0) & next_is_paid, 0.0, draft).cumsum())
        costs = RoundCosts(tuple(draft.tolist()), tuple(verify.tolist()))
        n = best_length(costs, gained.tolist(), self._rate, 0, len(row))
        return np.bincount(row[:n], minlength=len(drawn))

    def _by_survival(self, first: np.ndarray, last: np.ndarray, accepts: np.ndarray, n_texts: int) -> tuple:
        """Tokens from `first` to `last` of each row, (rows,), by falling survival: of each its row and depth, and for
        none, one, two, ... of them what they are expected to add, and the seconds of the target's pass."""
        depth = np.arange(self.longest)
        survival = np.cumprod(accepts, 1) * (first[:, None] <= depth) * (depth < last[:, None])
        order = np.argsort(-survival, axis=None, kind="stable")[: np.count_nonzero(survival)]
        row, depth = np.divmod(order, self.longest)
        deepest = np.maximum.accumulate(np.append(first.max(), depth + 1))
        verify = self.costs.verify(n_texts, first.sum() + np.arange(len(row) + 1), deepest)
        return row, depth, np.append(0.0, survival.flat[order].cumsum()), verify

    def lengths(self) -> list[int]:
        """Decide before anything is drafted, for drafters that are not asked in between."""
        self.drawn = self.most if self.rule == PUBLISHED else self._or_tried(self.further())
        return self.verified()

    def goes_on(self, depth: int) -> bool:
        """Tell whether some row drafts a further token, its `depth`-th from 0; `drafting` says which rows do. The first
        token of a draft is asked of all rows or of none: nothing sets them apart."""
        more = self.most - self.drawn if self.rule == PUBLISHED else self.further()
        if depth == 0:
            more = more if self.rule == PUBLISHED else self._or_tried(more)
        else:
            self.most = np.where(more > 0, self.most, self.drawn)
        return bool(more.any())

    @property
    def drafting(self) -> list[bool]:
        return (self.drawn < self.most).tolist()

    def _or_tried(self, more: np.ndarray) -> np.ndarray:
        """After PAUSE steps without a draft, one row tries one token."""
        self._n_idle = 0 if more.any() else self._n_idle + 1
        self._tries = self._n_idle >= PAUSE and bool(self.most.any())
        if not self._tries:
            return more
        self._n_idle = 0
        return (np.arange(len(more)) == self.most.argmax()).astype(int)

    def admits(self, tops: Sequence[float]) -> list[bool]:
        """Tell which rows verify a further token. tops: (rows,) the draft's largest probability there, by which alone,
        and by what was before it, the token may be judged."""
        asked = np.array(self.drafting)
        for row in np.flatnonzero(asked).tolist():
            self._accepts[row, self.drawn[row]] = self.seen.given(tops[row]).rate
            self._tops[row].append(tops[row])
        if self._tries:
            kept = asked & (np.arange(len(asked)) == np.where(asked, self._accepts[:, 0], -1).argmax())
            self.most = np.minimum(self.most, 1)
        else:
            kept = asked & (self.further(next_is_paid=True) > 0) if self.rule == OWN else asked
        self.drawn = self.drawn + kept
        self.most = np.where(kept, self.most, self.drawn)
        return kept.tolist()

    def verified(self) -> list[int]:
        """Return how many of its tokens each row verifies: all that it has drawn, except where the rule is published.

        There tokens are admitted by falling survival until the rate falls for the first time. To take the highest rate
        of all would be to look at survivals that depend on the token to be judged.
        """
        if self.rule == PUBLISHED:
            none = np.zeros_like(self.drawn)
            row, _, gained, verify = self._by_survival(none, self.drawn, self._accepts, self.n_texts)
            n_drafting = (self.drawn[:, None] > np.arange(self.longest)).sum(0)
            drafting = self.costs.drafting(self.n_texts, n_drafting).sum()
            rates = (self.n_texts + gained) / (self.costs.outside + drafting + verify)
            falls = np.append(np.diff(rates) < 0, True)
            self.drawn = np.bincount(row[: falls.argmax()], minlength=len(none))
        return self.drawn.tolist()

    def observe(self, decided: Mapping[int, Any]) -> None:
        """Count what was tested: the accepted tokens of each row and the first rejected one."""
        for row, of_row in decided.items():
            n_accepted, tops = of_row.n_accepted, self._tops[row]
            for depth in range(min(n_accepted + 1, self.drawn[row])):
                self.seen.depths[min(depth, LONGEST - 1)].add(depth < n_accepted)
                if tops:
                    self.seen.given(tops[depth]).add(depth < n_accepted)
