"""Checks of exercise 15: positions, mask, path and cache of a tree, one by one and in a decoding."""

import random
from types import ModuleType

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from solutions import ex15_token_trees as right
from tests.exercises.answers import chapter, named, unlike, whole, wrong
from tests.llamas import VOCAB, tiny_llama

STEM = "ex15_token_trees"
torch.set_num_threads(1)  # the model is tiny: more threads only add time, and wait for each other


def numbers(answer: object) -> list[int | None]:
    return [whole(one) for one in (answer.tolist() if isinstance(answer, Tensor) else answer)]


# --- the pass ---------------------------------------------------------------------------------------------------------

TREES = [
    [-1, -1, 0, 1],
    [-1, 0, 1],
    [-1, -1, -1],
    [-1, 0, 0, 2, 1],
    [-1, -1, 1, 1, 0, 2, 4],
    [],
    [-1, 0, -1, 2, 3, 1],
    list(range(-1, 7)),  # eight deep
    [-1] * 7,
    [-1, 0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 0, 0, 0, 0, 2, 11, 17, -1],  # seven deep, then six children
]


def all_positions(learner: ModuleType) -> list[object]:
    return [numbers(learner.positions(list(parents), length)) for parents in TREES for length in (10, 3)]


def test_a_token_stands_where_its_depth_says(learner):
    """positions: siblings stand at one position, and the last committed token before all."""
    found = all_positions(learner)
    cases = [(parents, length) for parents in TREES for length in (10, 3)]
    for (parents, length), given, expected in zip(cases, found, all_positions(right), strict=True):
        if given != expected:
            wrong(
                f"parents {parents} after {length} tokens: positions {expected}, yours are {given}"
                f"{named(STEM, all_positions, found)}"
            )


def all_masks(learner: ModuleType) -> list[object]:
    found = []
    for parents in TREES:
        mask = learner.mask(list(parents))
        if isinstance(mask, Tensor) and mask.dtype != torch.bool:
            wrong(f"the mask is to be of bool, yours is of {mask.dtype}")
        found.append(mask.long().tolist())
    return found


def test_a_row_reads_its_own_branch(learner):
    """mask: a row reads itself and all that it follows, up to the last committed token; no sibling, no cousin."""
    for parents, given, expected, name in unlike(STEM, all_masks, learner, right, TREES):
        wrong(f"parents {parents}: the mask is {expected}, yours is {given}{name}")


# --- what is kept -----------------------------------------------------------------------------------------------------


def walks() -> list[tuple[list[int], list[int], list[int]]]:
    """Parents, tokens, the target's choice of each row: written ones, and random ones with few different tokens."""
    cases = [
        ([-1, -1, 0, 1], [5, 6, 7, 8], [6, 0, 8, 0, 9]),
        ([-1, -1, 0, 1], [5, 6, 7, 8], [5, 9, 8, 0, 9]),
        ([-1, 0, 1], [5, 6, 7], [5, 6, 7, 1]),
        ([-1, 0, 1], [5, 6, 7], [4, 6, 7, 1]),
        ([-1, -1, 0, 1], [5, 5, 7, 8], [5, 8, 7, 0, 0]),  # equal siblings: the first one is followed
        ([-1, 0, 0, 1, 2], [5, 6, 7, 7, 5], [5, 7, 1, 5, 5, 6]),
        ([], [], [3]),
    ]
    drawn = random.Random(0)
    for _ in range(12):
        n = drawn.randrange(2, 8)
        parents = [drawn.randrange(-1, i) for i in range(n)]
        cases.append((parents, [drawn.randrange(3) for _ in range(n)], [drawn.randrange(3) for _ in range(n + 1)]))
    deep = list(range(-1, 7))
    cases += [(deep, [4] * 8, [4] * n + [0] * (9 - n)) for n in range(9)]  # 0 to 8 tokens of a path are right
    wide = [*([-1] * 7), *([6] * 7), *([13] * 7)]
    cases.append((wide, list(range(7)) * 3, [6] * 22))  # always the last of seven children
    cases.append((wide, [*range(7), *range(7), *range(1, 8)], [6] * 22))
    return cases


def all_paths(learner: ModuleType) -> list[object]:
    return [numbers(learner.best_path(*map(list, case))) for case in walks()]


def test_the_path_that_the_target_agrees_with(learner):
    """best_path: it goes from the root to the child that carries the target's choice after this very row."""
    for (parents, tokens, own), given, expected, name in unlike(STEM, all_paths, learner, right, walks()):
        wrong(
            f"parents {parents}, tokens {tokens}, the target's choice of each row {own}: the path is {expected}, "
            f"yours is {given}{name}"
        )


PATHS = [([0, 1, 2, 3, 9, 10, 30], 200), ([1, 3], 10), ([0], 4), ([], 6), ([2, 3, 6], 3), ([0, 1, 2], 5)]


def all_places(learner: ModuleType) -> list[object]:
    return [numbers(learner.gather(list(path), length)) for path, length in PATHS]


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


def test_the_branch_moves_to_the_front(learner):
    """gather: the text stays, the last committed token, and the path, from where the pass has written its tokens."""
    for (path, length), given, expected, name in unlike(STEM, all_places, learner, right, PATHS):
        wrong(
            f"{length} tokens in the cache, path {path}: places {expected} stay, yours are {given}"
            f"{name or '; ' + cause_of_places(path, length, given)}"
        )


# --- a decoding -------------------------------------------------------------------------------------------------------

PROMPT, N_NEW = [5, 9, 2, 11], 14
SHAPES = [[-1, -1, 1, 1, 2, 3], [-1, 0, -1, 2, 2, 4], [-1, -1, -1, 2, 3, 4]]


def alone(model) -> list[int]:
    """The greedy text, without a cache."""
    text = list(PROMPT)
    for _ in range(N_NEW):
        text.append(int(model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    return text[len(PROMPT) :]


def tree_for(parents: list[int], comes: list[int], drawn: random.Random) -> list[int]:
    """Tokens of a tree one of whose branches is the text that comes; siblings are other ones."""
    lucky = {-1}
    tokens = []
    depth = [0]
    for i, parent in enumerate(parents):
        depth.append(depth[parent + 1] + 1)
        last = i == max(j for j, other in enumerate(parents) if other == parent)
        token = comes[depth[i + 1] - 1] if depth[i + 1] <= len(comes) else 0
        if parent in lucky and last and depth[i + 1] < 4:
            lucky = {*lucky, i}
        else:
            token = (token + 1 + drawn.randrange(5)) % VOCAB
        tokens.append(token)
    return tokens


def decoded(learner: ModuleType, model, expected: list[int]) -> tuple[list[int], int]:
    """-> the text, rounds"""
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=torch.tensor([PROMPT]), past_key_values=cache).logits
    text, length, drawn, n_rounds = [int(logits[0, -1].argmax())], len(PROMPT), random.Random(1), 0
    while len(text) < N_NEW and n_rounds < 40:
        parents = SHAPES[n_rounds % len(SHAPES)]
        tokens = tree_for(parents, expected[len(text) :], drawn)
        m = len(tokens) + 1
        seen = torch.zeros(1, m, length + m, dtype=torch.bool)
        seen[..., :length] = True
        seen[..., length:] = learner.mask(list(parents))
        at = torch.tensor([numbers(learner.positions(list(parents), length))])
        fed = torch.tensor([[text[-1], *tokens]])
        mask = torch.zeros(1, 1, m, length + m, dtype=model.dtype)
        mask = mask.masked_fill(~seen[:, None], torch.finfo(mask.dtype).min)
        logits = model(input_ids=fed, position_ids=at, attention_mask=mask, past_key_values=cache).logits
        own = logits[0].argmax(-1).tolist()
        path = [int(i) for i in learner.best_path(list(parents), list(tokens), list(own))]
        stay = [int(i) for i in learner.gather(list(path), length)]
        places = [min(i, length + m - 1) for i in stay]
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, places], layer.values[:, :, places]
        text += [tokens[i] for i in path] + [own[path[-1] + 1 if path else 0]]
        length, n_rounds = len(stay), n_rounds + 1
    return text[:N_NEW], n_rounds


@pytest.mark.whole
def test_the_text_is_the_targets_own(learner):
    """The text is the target's own, in as few rounds as trees that hold the right branch allow."""
    model = tiny_llama(0)
    with torch.inference_mode():
        expected = alone(model)
        text, n_rounds = decoded(right, model, expected)
        assert text == expected
        assert n_rounds < N_NEW / 2
        given, n_own = decoded(learner, model, expected)
    if given != expected:
        wrong(f"with your functions the text is {given}; the target's own is {expected}")
    if n_own > n_rounds:
        wrong(f"with your functions {N_NEW} tokens take {n_own} rounds, and {n_rounds} are enough")


# --- the page ---------------------------------------------------------------------------------------------------------


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
