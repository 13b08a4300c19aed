"""Solution 15: token trees."""

import torch
from torch import Tensor


def positions(parents: list[int], length: int) -> list[int]:
    found = [length]
    for parent in parents:
        found.append(found[parent + 1] + 1)  # row parent + 1 has been found before
    return found


def mask(parents: list[int]) -> Tensor:
    seen = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    seen[0, 0] = True
    for i, parent in enumerate(parents):
        seen[i + 1] = seen[parent + 1]
        seen[i + 1, i + 1] = True
    return seen


def best_path(parents: list[int], tokens: list[int], own: list[int]) -> list[int]:
    path: list[int] = []
    row = 0
    while True:
        fitting = [i for i, parent in enumerate(parents) if parent + 1 == row and tokens[i] == own[row]]
        if not fitting:
            return path
        path.append(fitting[0])
        row = fitting[0] + 1


def gather(path: list[int], length: int) -> list[int]:
    return [*range(length + 1), *(length + 1 + i for i in path)]
