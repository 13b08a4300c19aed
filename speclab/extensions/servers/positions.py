"""Acceptance by position, and what it decides at a measured cost of a round. Pure: no torch, no clock, no file.

    marginal[i]     share of the rounds that kept the token at position i of the draft (serving engines print this)
    conditional[i]  share of the rounds that kept position i - 1 which also kept position i
    r               cost of a round in plain tokens: seconds of a round over seconds of a token without speculation

tau = 1 + the sum of the marginal rates, exactly, at this draft length alone. A curve that was measured at one length is
off by some per cent at another one, since it matters where rounds begin.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from speclab.theory.formulas import cost_model_speedup, expected_tokens_per_round

STEPS = 60  # of the bisection, which is exact to the last digit long before


class Choice(NamedTuple):
    """A draft length, and the speedup that is expected of it."""

    draft_length: int
    speedup: float


def marginal_rates(n_rounds: int, accepted_at: Sequence[int]) -> list[float]:
    """Return the share of the rounds that kept each position. n_rounds: rounds that drafted something, at least 1.

    >>> marginal_rates(4, [3, 1])
    [0.75, 0.25]
    """
    return [kept / n_rounds for kept in accepted_at]


def conditional_rates(n_rounds: int, accepted_at: Sequence[int]) -> list[float | None]:
    """Return for each position the share of the rounds that kept the position before it; None where no round did.

    Where some drafts end before the last position, these rates are too low there: nothing tells how many were tested.

    >>> conditional_rates(4, [2, 1, 0, 0])
    [0.5, 0.5, 0.0, None]
    """
    before = [n_rounds, *accepted_at]
    return [kept / reached if reached else None for kept, reached in zip(accepted_at, before, strict=False)]


def tokens_per_round(marginal: Sequence[float]) -> float:
    """Return tau: the target's own token, and the kept ones.

    >>> tokens_per_round([0.75, 0.25])
    2.0
    """
    return 1 + sum(marginal)


def break_even_acceptance(draft_length: int, round_cost: float) -> float | None:
    """Return the alpha at which independent positions bring as many tokens as a round costs; None: no alpha does.

    >>> round(break_even_acceptance(4, 2.0), 3), break_even_acceptance(4, 5.5), break_even_acceptance(4, 0.9)
    (0.519, None, 0.0)
    """
    if round_cost > draft_length + 1:
        return None
    low, high = 0.0, 1.0
    if round_cost <= 1:
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens_per_round(middle, draft_length) < round_cost else (low, middle)
    return high


def break_even_fraction(draft_length: float, round_cost: float) -> float:
    """Return the f at which a round brings as many tokens as it costs: no assumption is needed. Above 1: no f does.

    >>> break_even_fraction(4, 2.0)
    0.25
    """
    return max(0.0, (round_cost - 1) / draft_length)


def linear_cost(draft_length: int, round_cost: float) -> Callable[[int], float]:
    """Return the cost of a round by its draft length, where each drafted token adds the same to one plain token.

    One measured round says no more. A round has fixed parts too, so short drafts look somewhat too good.

    >>> linear_cost(4, 3.0)(2)
    2.0
    """
    each = (round_cost - 1) / draft_length
    return lambda length: 1 + each * length


def best_length(marginal: Sequence[float], cost: Callable[[int], float]) -> Choice:
    """Return the draft length, 0 to the measured one, with the highest expected speedup; the shortest of equals.

    >>> best_length([0.75, 0.0], linear_cost(2, 1.5))
    Choice(draft_length=1, speedup=1.4)
    """
    choices = [Choice(0, 1.0)]
    for length in range(1, len(marginal) + 1):
        tau = tokens_per_round(marginal[:length])
        choices.append(Choice(length, cost_model_speedup(tau, 0, 0.0, cost(length), 0.0)))
    return max(choices, key=lambda choice: choice.speedup)


def ceiling(draft_length: float, round_cost: float) -> float:
    """Return the speedup of a draft that is never rejected, at this length and cost.

    >>> ceiling(4, 2.5)
    2.0
    """
    return (draft_length + 1) / round_cost
