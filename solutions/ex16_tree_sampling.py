"""Solution 16: sampling from a tree."""

from collections.abc import Callable
from fractions import Fraction

Row = list[Fraction]  # a probability for each id; exact, so no floats


def children(row: Row, m: int, draw: Callable[[Row], int]) -> list[tuple[int, Row]]:
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
    left = list(target_row)
    for i, ((token, law), uniform) in enumerate(zip(drawn, uniforms, strict=True)):
        if uniform * law[token] < left[token]:
            return i, token
        rest = [max(share - drawn_with, share * 0) for share, drawn_with in zip(left, law, strict=True)]
        left = [share / sum(rest) for share in rest]
    return None, draw(left)


def follow(target_row: Row, tokens: list[int], draw: Callable[[Row], int]) -> tuple[int | None, int]:
    own = draw(target_row)
    return (tokens.index(own) if own in tokens else None), own
