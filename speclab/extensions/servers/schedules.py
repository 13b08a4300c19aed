"""Which draft length a server should use for so many requests at a time."""

from collections.abc import Mapping

from speclab.theory.knees import best_k


def schedule(speedups: Mapping[int, Mapping[int, float]]) -> list[tuple[int, int, int]]:
    """The best draft length for so many texts at a time, as (first, last, k): both ends included, from 1 on.

    speedups: measured level -> draft length -> speedup over plain decoding. k is 0 where none is above 1. A level
    stands for the sizes after the level before it: of n texts at a time, n is the most that run together.

    >>> schedule({1: {2: 1.4, 4: 1.6}, 4: {2: 1.2, 4: 1.2}, 8: {2: 1.1, 4: 0.9}, 16: {2: 0.9, 4: 0.7}})
    [(1, 1, 4), (2, 8, 2), (9, 16, 0)]
    """
    ranges: list[tuple[int, int, int]] = []
    first = 1
    for level in sorted(speedups):
        k = best_k({0: 1.0, **speedups[level]})
        if ranges and ranges[-1][2] == k:
            first = ranges.pop()[0]
        ranges.append((first, level, k))
        first = level + 1
    return ranges
