"""Solution 16: sampling from a tree.

Chapter: docs/chapters/16-tree-sampling.md. Check: python check.py 16 --impl solutions
"""

from collections.abc import Callable
from fractions import Fraction

Row = list[Fraction]  # a probability for each id; exact, so no floats


def children(row: Row, m: int, draw: Callable[[Row], int]) -> list[tuple[int, Row]]:
    """Draw up to m different tokens after one node.  -> for each the id, and the row that it was drawn from

    row: what the draft says comes next; leave this list as it is. draw(row): an id, drawn from a row that sums to 1.
    One after the other, without replacement: the next row has 0 where a token has been drawn, and the rest is scaled to
    sum to 1 again. There are fewer than m where no probability is left.

    >>> rows = children([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)], 2, lambda row: row.index(max(row)))
    >>> [(token, [str(share) for share in row]) for token, row in rows]
    [(0, ['1/2', '1/4', '1/4']), (1, ['0', '1/2', '1/2'])]
    """
    found: list[tuple[int, Row]] = []
    left = list(row)
    while len(found) < m and sum(left) > 0:
        law = [share / sum(left) for share in left]
        token = draw(law)
        found.append((token, law))
        left[token] = left[token] * 0
    return found


def accept_children(
    target_row: Row, drawn: list[tuple[int, Row]], uniforms: list[float], draw: Callable[[Row], int]
) -> tuple[int | None, int]:
    """Test the children of a node one after the other.  -> the number of the one that is kept (None: none), its id, or
    where none is kept the id that is drawn in their place

    drawn: as `children` gives them. uniforms: one in [0, 1) for each child. draw(row): an id, from a row with sum 1.

    What is left to draw from is the target's row at first. Keep token x, drawn from q, while u * q(x) < left(x). After
    a rejection left becomes max(0, left - q), scaled to sum to 1. *SpecInfer*, arXiv 2305.09781, algorithm 2.

    >>> half = [Fraction(1, 2), Fraction(1, 2)]
    >>> accept_children([Fraction(1, 4), Fraction(3, 4)], [(0, half), (1, [0, 1])], [0.6, 0.9], lambda row: 7)
    (1, 1)
    """
    left = list(target_row)
    for i, ((token, law), uniform) in enumerate(zip(drawn, uniforms, strict=True)):
        if uniform * law[token] < left[token]:
            return i, token
        rest = [max(share - drawn_with, share * 0) for share, drawn_with in zip(left, law, strict=True)]
        left = [share / sum(rest) for share in rest]
    return None, draw(left)


def follow(target_row: Row, tokens: list[int], draw: Callable[[Row], int]) -> tuple[int | None, int]:
    """Draw the target's own token, and keep the child that carries it.  -> the child's number (None: none does), the id

    tokens: the children's, in any order; how they were chosen does not matter, as long as they were chosen before. One
    draw for the node. Of children with the same token the first is kept.

    >>> follow([Fraction(1, 2), Fraction(1, 2)], [1], lambda row: 1), follow([Fraction(1)], [3], lambda row: 0)
    ((0, 1), (None, 0))
    """
    own = draw(target_row)
    return (tokens.index(own) if own in tokens else None), own
