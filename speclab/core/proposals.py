"""The probabilities that proposals are accepted, by the number of tokens that were there when their round began. Needs
no torch."""

from collections.abc import Sequence
from typing import overload

import numpy as np

AcceptProbs = Sequence[Sequence[float]]  # by state; asked for the first n of a row, `ByLength` answers for a draft of n


class ByLength(Sequence[float]):
    """A row of `accept_probs` of a draft whose proposal of fewer tokens is not the beginning of a longer one.

    rows: the probabilities of proposals of at most 0, 1, … tokens. `row[:n]` is the one for n, the row itself the
    longest.
    """

    def __init__(self, rows: Sequence[Sequence[float]]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows[-1])

    @overload
    def __getitem__(self, place: int) -> float: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[float]: ...
    def __getitem__(self, place: int | slice) -> float | Sequence[float]:
        if isinstance(place, int):
            return self.rows[-1][place]
        if place.start or place.step or place.stop is None or not 0 <= place.stop < len(self.rows):
            raise ValueError(f"there are rows of 0 to {len(self.rows) - 1} tokens, not of {place}")
        return self.rows[place.stop]


def model_accept_probs(accept: Sequence[float] | np.ndarray) -> list[Sequence[float]]:
    """Return the AcceptProbs per state of a draft that continues the text token by token: `accept[t]` belongs to new
    token t.

    What such a draft proposes at a place does not depend on where its round began, so one number per token is enough;
    an n-gram proposal does depend on it and needs a row of its own for every state.
    """
    accept_probs = np.asarray(accept, dtype=float)  # (n_tokens,)
    return [accept_probs[t:] for t in range(len(accept_probs))]  # type: ignore[misc]
