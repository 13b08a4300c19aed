"""The proposals that a drafter would have made along a text that is known, and how likely they are accepted.

A place is (tokens of the text before the round, number in its draft, tokens that the round asks for). The numbers are
for rules that judge each drafted token by itself: a token that is drawn from q is kept with min(1, q / p) where the
text has it, p being the target's probability there; a token that is certain is kept where it is the text's own.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Place = tuple[int, int, int]


class Law:
    """Tokens are drawn from distributions, in every round that may begin within a text of n tokens.

    rows: number in the draft -> (at least n - number, vocab), for rounds that begin after 0, 1, ... tokens; zeros where
    nothing is proposed. sizes: (n,), the largest number of tokens of a draft, by its beginning.
    """

    def __init__(self, rows: Callable[[int], Tensor], sizes: Sequence[int]):
        self.rows, self.sizes = rows, sizes

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> list[Sequence[float]]:
        """Return the probability that each proposed token is accepted, given that those before it were: a row for each
        of n beginnings. target_probs: gives the target's distributions along the text, (n, vocab)."""
        n, ids = len(text), torch.tensor(text, dtype=torch.long)[:, None]
        by_target = target_probs().gather(1, ids)[:, 0].double()  # (n,)
        found: list[list[float]] = [[] for _ in text]
        for depth in range(min(max(self.sizes, default=0), n)):
            by_draft = self.rows(depth).gather(1, ids[depth:])[:, 0].double()
            here = by_target[depth:]
            # Where rounding gives the target's own token no mass, the draft's probability decides.
            ratios = torch.where(here > 0, (by_draft / here).clamp(max=1), (by_draft > 0).double())
            for row, size, ratio in zip(found, self.sizes, ratios.tolist(), strict=False):
                row += [ratio] * (depth < size)
        return list(found)

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        """Return the distribution of each place, (places, vocab)."""
        rows = [self.rows(depth)[start] for start, depth, _ in places]
        return torch.stack(rows) if rows else self.rows(0)[:0]


class CertainLaw(Law):
    """Tokens are certain. proposals: the longest draft of each beginning; a shorter one is the beginning of it."""

    def __init__(self, proposals: Sequence[Sequence[int]], vocab_size: int):
        self._proposals, self._vocab_size = proposals, vocab_size

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> list[Sequence[float]]:
        return [
            [float(token == own) for token, own in zip(tokens, text[n:], strict=False)]
            for n, tokens in enumerate(self._proposals)
        ]

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        rows = torch.zeros(len(places), self._vocab_size)
        for row, (start, depth, asked) in zip(rows, places, strict=True):
            for token in self._proposals[start][:asked][depth : depth + 1]:
                row[token] = 1.0
        return rows
