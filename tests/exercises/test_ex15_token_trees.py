"""Checks of exercise 15: positions, mask, path and cache of a tree."""

import random

import torch

from tests.exercises.answers import asked, simplest, whole

DICE = random.Random(0)


def tree(n: int) -> list[int]:
    return [DICE.randrange(-1, i) for i in range(n)]


DEEP = list(range(-1, 7))
TREES = simplest([[], DEEP, [-1] * 7, [*DEEP[:6], *[5] * 6, 0, 0, 2, -1], *(tree(n) for n in [2, 3, 4, 6, 8] * 4)])


@asked([(parents, length) for parents in TREES for length in (10, 3)], "parents {} after {} tokens: the positions")
def test_a_token_stands_where_its_depth_says(one, parents, length):
    """positions: siblings stand at one position, and the last committed token before all."""
    return [whole(at) for at in one.positions(list(parents), length)]


@asked([(parents,) for parents in TREES], "parents {}: the mask")
def test_a_row_reads_its_own_branch(one, parents):
    """mask: a row reads itself and all that it follows, up to the last committed token; no sibling, no cousin."""
    mask = one.mask(list(parents))
    if mask.dtype != torch.bool:
        return f"a mask of {mask.dtype}, not of torch.bool"
    return {f"row {row}": seen for row, seen in enumerate(mask.long().tolist())}


def walk(parents: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Parents, tokens, the target's choice of each row; there are few different tokens."""
    tokens, own = ([DICE.randrange(3) for _ in range(n)] for n in (len(parents), len(parents) + 1))
    return parents, tokens, own


WIDE = [*[-1] * 7, *[6] * 7, *[13] * 7]  # always the last of seven children
WALKS = simplest(
    [
        ([-1, -1, 0, 1], [5, 5, 7, 8], [5, 8, 7, 0, 0]),  # equal siblings: the first one is followed
        *((DEEP, [4] * 8, [4] * n + [0] * (9 - n)) for n in range(9)),  # 0 to 8 tokens of a path are right
        *((WIDE, [*range(7), *range(7), *last], [6] * 22) for last in (range(7), range(1, 8))),
        *(walk(tree(n)) for n in [0, 2, 3, 4, 5, 7] * 6),
    ]
)


@asked(WALKS, "parents {}, tokens {}, the target's choice of each row {}: the path")
def test_the_path_that_the_target_agrees_with(one, *case):
    """best_path: it goes from the root to the child that carries the target's choice after this very row."""
    return [whole(node) for node in one.best_path(*map(list, case))]


PATHS = [([1, 3], 10), ([0], 4), ([], 6), ([2, 3, 6], 3), ([0, 1, 2], 5), ([0, 1, 2, 3, 9, 10, 30], 200)]


@asked(PATHS, "path {}, {} tokens in the cache: the places that stay")
def test_the_branch_moves_to_the_front(one, path, length):
    """gather: the text stays, the last committed token, and the path, from where the pass has written its tokens."""
    return [whole(place) for place in one.gather(list(path), length)]
