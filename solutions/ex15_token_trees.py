"""Solution 15: token trees.

Chapter: docs/chapters/15-token-trees.md. Check: python check.py 15 --impl solutions
"""

import torch
from torch import Tensor


def positions(parents: list[int], length: int) -> list[int]:
    """At which position of the text each row of the target's pass stands.

    parents: for each token of the tree the number of the token that it follows, -1 for the last committed one; a parent
    comes before its children. length: tokens in the cache. Row 0 of the pass is the last committed token, row i + 1 is
    token i of the tree.

    >>> positions([-1, -1, 0, 1], 10)  # two first tokens, one after each
    [10, 11, 11, 12, 12]
    """
    found = [length]
    for parent in parents:
        found.append(found[parent + 1] + 1)  # row parent + 1 has been found before
    return found


def mask(parents: list[int]) -> Tensor:
    """Which rows of this pass each row reads.  -> (n + 1, n + 1) bool; the text in the cache is read by all

    A row reads itself, the token that it follows, the one before that, and so on up to row 0. It never reads a sibling.

    >>> mask([-1, -1, 0]).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """
    seen = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    seen[0, 0] = True
    for i, parent in enumerate(parents):
        seen[i + 1] = seen[parent + 1]
        seen[i + 1, i + 1] = True
    return seen


def best_path(parents: list[int], tokens: list[int], own: list[int]) -> list[int]:
    """The numbers of the tree's tokens that the target agrees with, one after the other from the root.

    own: for each row of the pass the target's own choice of the next token. From row 0 go to the child that carries the
    choice of the row, and on from there, until no child does. Of children with the same token the first is taken.

    >>> best_path([-1, -1, 0, 1], [5, 6, 7, 8], [6, 0, 8, 0, 9])
    [1, 3]
    """
    path: list[int] = []
    row = 0
    while True:
        fitting = [i for i, parent in enumerate(parents) if parent + 1 == row and tokens[i] == own[row]]
        if not fitting:
            return path
        path.append(fitting[0])
        row = fitting[0] + 1


def gather(path: list[int], length: int) -> list[int]:
    """Which places of the cache stay after the round, in the order in which they are to lie.

    length: tokens in the cache before the pass. The pass has written row r to place length + r. What stays is the text
    before, the last committed token, and the tokens on the path.

    >>> gather([1, 3], 10)[9:]
    [9, 10, 12, 14]
    """
    return [*range(length + 1), *(length + 1 + i for i in path)]
