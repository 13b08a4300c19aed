"""Exercise 14 in a batch: four functions keep its texts apart, and the lab does the rest."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from speclab.extensions.learner.ask import Impossible, each, short, whole
from speclab.extensions.learner.rows_and_trees.asked import Asked


class OwnRows:
    """What a batch asks of whoever keeps its texts apart: `RowRules` of speclab/extensions/batch."""

    def __init__(self, asked: Asked):
        self._asked = asked

    def positions(self, lengths: list[int], m: int) -> Tensor:
        """Return the positions of the m tokens of each text, (rows, m)."""
        return self._asked("positions", lengths, m, check=_whole_numbers((len(lengths), m)))

    def visible(self, lengths: list[int], m: int, total: int) -> Tensor:
        """Tell which of its row's places each token reads, (rows, m, total) bool."""
        return self._asked("visible", lengths, m, total, check=yes_or_no((len(lengths), m, total)))

    def rolled_back(self, lengths: list[int], cached: list[int], n_accepted: list[int], ended: list[bool]) -> list[int]:
        """Return the number of tokens of each row that stay, of those that are `cached`."""
        what = f"a list of {len(cached)} numbers of tokens, at most {short(cached)}"
        check = each(what, *(whole(0, most) for most in cached))
        return self._asked("rolled_back", lengths, n_accepted, ended, check=check)

    def admit(self, rows: list[int | None], waiting: list[int]) -> tuple[list[int | None], list[int]]:
        """Give the rows that have no text the numbers of the next ones."""
        return self._asked("admit", rows, waiting, check=_admitted(rows, waiting))


def _whole_numbers(shape: tuple[int, ...]) -> Callable[[Any], Tensor]:
    """For `ask`: a tensor of whole numbers, 0 or more, of this shape."""

    def check(answer: Any) -> Tensor:
        fits = isinstance(answer, Tensor) and answer.shape == shape and not answer.is_floating_point()
        if not fits or answer.dtype == torch.bool or (answer < 0).any():
            raise Impossible(f"{_described(answer)}, not whole numbers from 0 on of shape {shape}")
        return answer.long()

    return check


def yes_or_no(shape: tuple[int, ...]) -> Callable[[Any], Tensor]:
    """For `ask`: a tensor of bool of this shape."""

    def check(answer: Any) -> Tensor:
        if not isinstance(answer, Tensor) or answer.shape != shape or answer.dtype != torch.bool:
            raise Impossible(f"{_described(answer)}, not a tensor of bool of shape {shape}")
        return answer

    return check


def _described(answer: Any) -> str:
    return f"{answer.dtype} of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else short(answer)


def _admitted(rows: list[int | None], waiting: list[int]) -> Callable[[Any], tuple[list[int | None], list[int]]]:
    """For `ask`: rows and those that still wait, so that no text is lost, decoded twice, or kept from a free row."""

    def check(answer: Any) -> tuple[list[int | None], list[int]]:
        given, rest = each("a pair (rows, who still waits)", list, list)(answer)
        placed = [new for old, new in zip(rows, given, strict=False) if old is None and new is not None]
        is_kept = len(given) == len(rows) and all(old in (None, new) for old, new in zip(rows, given, strict=True))
        n_placed = min(rows.count(None), len(waiting))
        if not is_kept or len(placed) != n_placed or sorted([*placed, *rest]) != sorted(waiting):
            raise Impossible(
                f"{short(given)} and {short(rest)}; texts that are being decoded must stay in their rows, and each of "
                f"those that wait, {short(waiting)}, must get a row that is free or go on waiting"
            )
        return given, rest

    return check
