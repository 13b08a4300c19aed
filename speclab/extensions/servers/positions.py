"""What acceptance by position decides at a measured cost of a round. Pure: no torch, no clock, no file.

tau = 1 + the sum of the marginal rates, the shares of the rounds that kept each position, exactly, at this draft length
alone. A curve that was measured at one length is off by some per cent at another one, since it matters where rounds
begin.
"""

from collections.abc import Sequence
from typing import NamedTuple

from speclab.theory.formulas import expected_tokens_per_round

STEPS = 60  # of the bisection, which is exact to the last digit long before


class Choice(NamedTuple):
    """A draft length, and the speedup that is expected of it."""

    draft_length: int
    speedup: float


def break_even_acceptance(draft_length: int, round_cost: float) -> float | None:
    """Return the alpha at which independent positions bring as many tokens as a round costs; None: no alpha does.

    >>> round(break_even_acceptance(4, 2.0), 3), break_even_acceptance(4, 5.5), break_even_acceptance(4, 0.9)
    (0.519, None, 0.0)
    """
    if not 1 < round_cost <= draft_length + 1:
        return None if round_cost > 1 else 0.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens_per_round(middle, draft_length) < round_cost else (low, middle)
    return high


def best_length(marginal: Sequence[float], draft_length: int, round_cost: float) -> Choice:
    """Return the draft length, 0 to the measured one, with the highest expected speedup; the shortest of equals. Each
    drafted token adds the same to one plain token: one measured round says no more. A round has fixed parts too, so
    short drafts look somewhat too good.

    >>> best_length([0.75, 0.0], 2, 1.5)
    Choice(draft_length=1, speedup=1.4)
    """
    each = (round_cost - 1) / draft_length
    choices = [Choice(n, (1 + sum(marginal[:n])) / (1 + each * n)) for n in range(len(marginal) + 1)]
    return max(choices, key=lambda choice: choice.speedup)
