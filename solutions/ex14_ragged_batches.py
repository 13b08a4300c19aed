"""Solution 14: ragged batches.

Chapter: docs/chapters/14-ragged-batches.md. Check: python check.py 14 --impl solutions
"""

import torch
from torch import Tensor


def positions(lengths: list[int], m: int) -> Tensor:
    """At which position of its text each token of a pass stands.  -> (texts, m) whole numbers

    lengths: tokens of each text in the cache. A pass reads m tokens of every text, right behind those.

    >>> positions([3, 1], 2).tolist()
    [[3, 4], [1, 2]]
    """
    return torch.tensor(lengths)[:, None] + torch.arange(m)


def visible(lengths: list[int], m: int, total: int) -> Tensor:
    """Which places of its own text's cache each token of a pass reads.  -> (texts, m, total) bool

    The cache has `total` places for every text. Behind a text's length stand rejected tokens and padding, and nobody
    reads those. The pass writes its m tokens to the places behind the length; a token reads those up to its own.

    >>> visible([2, 0], 2, 4).int().tolist()
    [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 0, 0, 0], [1, 1, 0, 0]]]
    """
    return torch.arange(total) <= positions(lengths, m)[..., None]


def rolled_back(lengths: list[int], n_accepted: list[int], ended: list[bool]) -> list[int]:
    """How many tokens of each text stay in the cache after a round.

    lengths: before the round. The pass has written the last committed token of each text and its drafted ones, padding
    among them. The last committed token, the accepted ones and the target's own next token are then committed, and of
    what is committed the cache holds all but the last. A text that has ended keeps nothing: its row takes another one.

    >>> rolled_back([10, 20, 30], [4, 0, 2], [False, False, True])
    [15, 21, 0]
    """
    return [0 if is_over else length + 1 + n for length, n, is_over in zip(lengths, n_accepted, ended, strict=True)]


def admit(rows: list[int | None], waiting: list[int]) -> tuple[list[int | None], list[int]]:
    """Give the rows that have no text the next ones that wait, the first row first.  -> the rows, who still waits

    rows: the number of the text of each row, None where it has ended. Leave both lists as they are: the caller compares
    the old rows with the new ones, to see which rows must read a prompt.

    >>> admit([4, None, 2, None], [5, 6, 7])
    ([4, 5, 2, 6], [7])
    """
    rows, waiting = list(rows), list(waiting)
    for place, text in enumerate(rows):
        if text is None and waiting:
            rows[place] = waiting.pop(0)
    return rows, waiting
