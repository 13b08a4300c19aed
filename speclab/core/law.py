"""The proposals that a drafter would have made along a text that is known, and how likely they are accepted.

A place is (tokens of the text before the round, number in its draft, tokens that the round asks for). The numbers are
for rules that judge each drafted token by itself: a token that is drawn from q is kept with min(1, q / p) where the
text has it, p being the target's probability there; a token that is certain is kept where it is the text's own.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from speclab.core.proposals import AcceptProbs, ByLength, model_accept_probs

Place = tuple[int, int, int]


class Law(Protocol):
    """The proposals in every round that may begin within a text of n tokens."""

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> AcceptProbs:
        """Return the probability that each proposed token is accepted, given that those before it were; a row for each
        of n beginnings.

        target_probs: gives the target's distributions at the text's places, (n, vocab), where they are needed.
        """

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """This gives the distribution of each place, (places, vocab), and zeros where nothing is proposed."""


class PlaceLaw:
    """Tokens are drawn from distributions that are the same wherever a round begins.

    rows: (n, vocab), the distribution of the token at each place of the text. sizes: (n,), the largest number of tokens
    of a draft, by its beginning.
    """

    def __init__(self, rows: Tensor, sizes: Sequence[int]):
        self._rows, self._sizes = rows, sizes

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> AcceptProbs:
        """This is as Law says."""
        ratios = _ratios(target_probs(), self._rows, text)  # (n,)
        rows = model_accept_probs(ratios)
        return [row[:size] for row, size in zip(rows, self._sizes, strict=True)]

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """This is as Law says."""
        return self._rows[[start + depth for start, depth, _ in places]]


class ChainLaw:
    """Tokens are drawn from distributions that depend on where the round began.

    rows: for each number in the draft (at least n - number, vocab), for rounds that begin after 0, 1, ... tokens.
    longest: the largest number of tokens of a draft.
    """

    def __init__(self, rows: Callable[[int], Tensor], longest: int):
        self._rows, self._longest = rows, longest

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> AcceptProbs:
        """This is as Law says."""
        probs, n = target_probs(), len(text)
        found: list[list[float]] = [[] for _ in text]
        for depth in range(min(self._longest, n)):
            ratios = _ratios(probs[depth:], self._rows(depth)[: n - depth], text[depth:])
            for start, ratio in enumerate(ratios):
                found[start].append(float(ratio))
        return found

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """This is as Law says."""
        rows = [self._rows(depth)[start] for start, depth, _ in places]
        return torch.stack(rows) if rows else self._rows(0)[:0]


class CertainLaw:
    """Tokens are certain. proposals: what is proposed for each beginning: the longest draft, or the drafts of 0, 1,
    ... tokens where a shorter one is not the beginning of a longer one."""

    def __init__(self, proposals: Sequence[Sequence[Sequence[int]]], vocab_size: int):
        self._proposals, self._vocab_size = proposals, vocab_size

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> AcceptProbs:
        """This is as Law says; the target's distributions play no part."""

        def right(start: int, tokens: Sequence[int]) -> list[float]:
            return [float(token == own) for token, own in zip(tokens, text[start:], strict=False)]

        rows = [[right(start, tokens) for tokens in drafts] for start, drafts in enumerate(self._proposals)]
        return [ByLength(by_length) if len(by_length) > 1 else by_length[0] for by_length in rows]

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """This is as Law says."""
        rows = torch.zeros(len(places), self._vocab_size)
        for row, (start, depth, asked) in zip(rows, places, strict=True):
            drafts = self._proposals[start]
            tokens = drafts[min(asked, len(drafts) - 1)][:asked]
            if depth < len(tokens):
                row[tokens[depth]] = 1.0
        return rows


class ConstantLaw:
    """Every token is accepted with one probability, as an instrument sets it."""

    def __init__(self, acceptance: float, sizes: Sequence[int]):
        self._acceptance, self._sizes = acceptance, sizes

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> AcceptProbs:
        """This is as Law says; the target's distributions play no part."""
        n = len(text)
        return [[self._acceptance] * min(n - start, size) for start, size in enumerate(self._sizes)]

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """Raise TypeError: an instrument draws from no distribution."""
        raise TypeError("what an instrument proposes is drawn from no distribution")


def _ratios(target_probs: Tensor, draft_probs: Tensor, text: Sequence[int]) -> np.ndarray:
    """Return the probability that each token of the text is accepted, (n,), from both distributions at its place, (n,
    vocab)."""
    ids = torch.tensor(text, dtype=torch.long)[:, None]
    by_target, by_draft = (probs.gather(1, ids)[:, 0].double().numpy() for probs in (target_probs, draft_probs))
    # Where rounding gives the target's own token no mass, the draft's probability decides.
    ratio = by_draft / np.where(by_target > 0, by_target, 1.0)
    return np.where(by_target > 0, np.minimum(1.0, ratio), by_draft > 0)
