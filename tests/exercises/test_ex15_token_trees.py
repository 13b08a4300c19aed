"""Checks of exercise 15: positions, mask, path and cache of a tree, one by one and in a decoding."""

import itertools
import random
from types import ModuleType

import pytest
import torch
from torch import Tensor

from solutions import ex15_token_trees as right
from tests.exercises.answers import asked, chapter, simplest, whole, wrong
from tests.exercises.test_ex14_ragged_batches import VOCAB, continued, enumerate_text, says

STEM = "ex15_token_trees"


def numbers(answer: object) -> list[int | None]:
    return [whole(one) for one in (answer.tolist() if isinstance(answer, Tensor) else answer)]


DICE = random.Random(0)


def tree(n: int) -> list[int]:
    return [DICE.randrange(-1, i) for i in range(n)]


DEEP = list(range(-1, 7))
TREES = simplest([[], DEEP, [-1] * 7, [*DEEP[:6], *[5] * 6, 0, 0, 2, -1], *(tree(n) for n in [2, 3, 4, 6, 8] * 4)])


@asked([(parents, length) for parents in TREES for length in (10, 3)], "parents {} after {} tokens: the positions")
def test_a_token_stands_where_its_depth_says(one, parents, length):
    """positions: siblings stand at one position, and the last committed token before all."""
    return numbers(one.positions(list(parents), length))


@asked([(parents,) for parents in TREES], "parents {}: the mask")
def test_a_row_reads_its_own_branch(one, parents):
    """mask: a row reads itself and all that it follows, up to the last committed token; no sibling, no cousin."""
    mask = one.mask(list(parents))
    if isinstance(mask, Tensor) and mask.dtype != torch.bool:
        wrong(f"the mask is to be of bool, yours is of {mask.dtype}")
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
    return numbers(one.best_path(*map(list, case)))


PATHS = [([1, 3], 10), ([0], 4), ([], 6), ([2, 3, 6], 3), ([0, 1, 2], 5), ([0, 1, 2, 3, 9, 10, 30], 200)]


def cause_of_places(path: list[int], length: int, given: list[int | None]) -> str:
    """Why these are not the places that stay, in words."""
    rows = [length + 1 + i for i in path]
    if missing := [place for place in range(length) if place not in given]:
        return f"it looks as if the text before is missing, places {missing}"
    if length not in given:
        return f"it looks as if the last committed token is missing: it is row 0 and lies at place {length}"
    if missing := [i for i in path if length + 1 + i not in given]:
        it = f"token {missing[0]} of the path"
        return f"it looks as if {it} is missing: it is row {missing[0] + 1}, and row r lies at length + r"
    if more := [place for place in given if place not in (*range(length + 1), *rows)]:
        it = f"place {more[0]}, which holds no token of the path"
        return f"it looks as if yours keeps {it}: row r lies at length + r, token i is row i + 1"
    return "remember: every place stays once, in the order of the text"


@asked(PATHS, "path {}, {} tokens in the cache: the places that stay", why=cause_of_places)
def test_the_branch_moves_to_the_front(one, path, length):
    """gather: the text stays, the last committed token, and the path, from where the pass has written its tokens."""
    return numbers(one.gather(list(path), length))


PROMPT, N_NEW = [5, 9, 2, 11], 14
SHAPES = [[-1, -1, 1, 1, 2, 3], [-1, 0, -1, 2, 2, 4], [-1, -1, -1, 2, 3, 4]]


def tree_for(parents: list[int], comes: list[int], drawn: random.Random) -> list[int]:
    """Tokens of a tree one of whose branches is the text that comes; siblings are other ones."""
    lucky, tokens, depth = {-1}, [], [0]
    for i, parent in enumerate(parents):
        depth.append(depth[parent + 1] + 1)
        last = i == max(j for j, other in enumerate(parents) if other == parent)
        token = comes[depth[i + 1] - 1] if depth[i + 1] <= len(comes) else 0
        if parent in lucky and last and depth[i + 1] < 4:
            lucky.add(i)
        else:
            token = (token + 1 + drawn.randrange(5)) % VOCAB
        tokens.append(token)
    return tokens


def decoded(learner: ModuleType, expected: list[int]) -> tuple[list[int], int]:
    """The text and the rounds with the target of exercise 14. The cache is (token, position) for each place."""
    cache, text, drawn, n_rounds = enumerate_text(PROMPT), expected[:1], random.Random(1), 0
    while len(text) < N_NEW and n_rounds < 40:
        parents, length = SHAPES[n_rounds % len(SHAPES)], len(cache)
        tokens = tree_for(parents, expected[len(text) :], drawn)
        at = numbers(learner.positions(list(parents), length))
        rows = list(zip([text[-1], *tokens], at, strict=True))
        seen = learner.mask(list(parents)).tolist()
        own = [says([*cache, *itertools.compress(rows, reads)]) for reads in seen]
        path = [int(i) for i in learner.best_path(list(parents), list(tokens), list(own))]
        held = [*cache, *rows]
        cache = [held[min(int(i), len(held) - 1)] for i in learner.gather(list(path), length)]
        text += [tokens[i] for i in path] + [own[path[-1] + 1 if path else 0]]
        n_rounds += 1
    return text[:N_NEW], n_rounds


@pytest.mark.whole
def test_the_text_is_the_targets_own(learner):
    """The text is the target's own, in as few rounds as trees that hold the right branch allow."""
    expected = continued(PROMPT, N_NEW)
    text, n_rounds = decoded(right, expected)
    assert text == expected
    assert n_rounds < N_NEW / 2
    given, n_own = decoded(learner, expected)
    if given != expected:
        wrong(f"with your functions the text is {given}; the target's own is {expected}")
    if n_own > n_rounds:
        wrong(f"with your functions {N_NEW} tokens take {n_own} rounds, and {n_rounds} are enough")


def test_the_picture_of_the_chapter():
    """Rows, positions and mask of the tree that is drawn there, its path and what stays."""
    parents, text = [-1, -1, 0, 1, 1], chapter(STEM)
    at, seen = right.positions(parents, 10), right.mask(parents).long().tolist()
    names = ["the", "cat", "dog", "sat", "ran", "barked"]
    for row, name in enumerate(names):
        line = f"{row}     {name:8} {at[row]}         {' '.join('x' if one else '.' for one in seen[row])}"
        assert line in text
    path = right.best_path(parents, [1, 2, 3, 4, 5], [2, 0, 5, 0, 0, 0])
    assert path == [1, 4]
    assert f"path {path}" in text
    assert f"places {right.gather(path, 10)[10:]}" in text
