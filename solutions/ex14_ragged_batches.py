"""Solution 14: ragged batches."""

import torch
from torch import Tensor


def positions(lengths: list[int], m: int) -> Tensor:
    return torch.tensor(lengths)[:, None] + torch.arange(m)


def visible(lengths: list[int], m: int, total: int) -> Tensor:
    return torch.arange(total) <= positions(lengths, m)[..., None]


def rolled_back(lengths: list[int], n_accepted: list[int], ended: list[bool]) -> list[int]:
    return [0 if is_over else length + 1 + n for length, n, is_over in zip(lengths, n_accepted, ended, strict=True)]


def admit(rows: list[int | None], waiting: list[int]) -> tuple[list[int | None], list[int]]:
    rows, waiting = list(rows), list(waiting)
    for place, text in enumerate(rows):
        if text is None and waiting:
            rows[place] = waiting.pop(0)
    return rows, waiting
