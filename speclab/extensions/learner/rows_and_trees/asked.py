"""Ask a reader's functions in a run, and remember where one of them first answered other than the solution does.

No answer is refused for that: another one may be right, too. But where a text comes out wrong, this names the function.
"""

from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from speclab.extensions.learner.ask import ask, short


class Drawing:
    """Draws ids from rows of weights by inverse CDF, with these uniforms in their order. size: entries of a row."""

    __name__ = "draw"

    def __init__(self, uniforms: list[float], size: int):
        self.uniforms, self.size = uniforms, size
        self.drawn: list[int] = []

    def __call__(self, row: list) -> int:
        """Draw the next id. Raises ValueError for what is no row of that size with weight, and for a draw too many."""
        if len(row) != self.size:
            raise ValueError(f"draw was called with {len(row)} probabilities, not {self.size}")
        if len(self.drawn) == len(self.uniforms):
            raise ValueError(f"draw was called more than {len(self.uniforms)} times")
        total = sum(row)
        if min(row) < 0 or total <= 0:
            raise ValueError(f"draw was called with {short(list(row))}, which is no distribution")
        point, reached = Fraction(self.uniforms[len(self.drawn)]) * Fraction(total), Fraction(0)
        for token, share in enumerate(row):
            reached += Fraction(share)
            if reached > point:
                self.drawn.append(token)
                return token
        raise ValueError("draw was called with a row that is no distribution")  # unreachable: a uniform is below 1

    def again(self) -> "Drawing":
        """The same draws from the beginning."""
        return Drawing(self.uniforms, self.size)


class Asked:
    """The functions of one exercise, asked by name.

    learner: the reader's module. right: the solution's. first: a line about the first answer that is not the
    solution's; empty where there is none.
    """

    def __init__(self, number: int, learner: ModuleType | Any, right: ModuleType | Any):
        self.number, self.learner, self.right = number, learner, right
        self.first = ""

    def __call__(self, name: str, *args: Any, check: Callable[[Any], Any]) -> Any:
        """Call a function.  -> what `check` makes of its answer

        Raises Problem where it raises, never ends, or answers something that `check` calls impossible.
        """
        given = ask(self.number, getattr(self.learner, name), *args, check=check)
        if not self.first:
            expected = check(getattr(self.right, name)(*map(_again, args)))
            if unlike := difference(given, expected):
                self.first = (
                    f"exercise {self.number}: {name} is the first function that answers other than the solution: "
                    f"{unlike}; its arguments were {', '.join(map(short, args))}"
                )
        return given


def _again(argument: Any) -> Any:
    """An argument as it was before the first call; lists are copied."""
    if isinstance(argument, Drawing):
        return argument.again()
    return list(argument) if isinstance(argument, list) else argument


def difference(given: Any, expected: Any) -> str:
    """Say where two answers of one shape differ; empty where they do not."""
    if isinstance(given, Tensor):
        if torch.equal(given, expected):
            return ""
        place = (given != expected).nonzero()[0].tolist()
        return f"at {place} it says {given[tuple(place)].item()}, and the solution says {expected[tuple(place)].item()}"
    return "" if given == expected else f"it says {short(given)}, and the solution says {short(expected)}"
