"""Exercise 9: stop when unsure, losslessly.

Chapter: docs/chapters/09-stop-when-unsure.md. Check: python check.py 9
"""

from collections.abc import Callable

from torch import Tensor

from exercises import Todo


def expected_tokens(drawn: list[float], later: list[float]) -> list[float]:
    """How many tokens is a round expected to commit, if its draft ends now, after one more token, after two, ...?

    drawn: for each token that is drafted already, how likely it is accepted if all before it are. later: the same for
    the tokens that may still be drafted, in their order.

    Returns len(later) + 1 numbers: for a draft that ends now, one of one more token, and so on. A round commits the
    accepted tokens and one of the target's own.

    >>> expected_tokens([0.5], [0.5, 1.0]), expected_tokens([], [])
    ([1.5, 1.75, 2.0], [1.0])
    """
    raise Todo("ex09: expected_tokens")


def keep_drafting(drawn: list[float], later: list[float], costs: list[float], rate: float) -> bool:
    """Should another token be drafted?

    drawn, later: as for expected_tokens. costs: what a round costs, by the number of tokens that it drafts, from 0 to
    len(drawn) + len(later), in any unit. They may have steps. rate: tokens that are committed per unit of cost in this
    run, at its best; what a round costs could be spent elsewhere at this rate.

    A draft of n tokens is worth its expected tokens - rate x costs[n]. True if some longer draft is worth more than one
    that ends now, be it one token longer or several; of equals the draft that ends now is better.

    >>> keep_drafting([0.9], [0.5], [1.0, 1.1, 1.2], 2.0), keep_drafting([0.1], [0.5], [1.0, 1.1, 1.2], 2.0)
    (True, False)
    """
    raise Todo("ex09: keep_drafting")


def draft_until_unsure(
    next_row: Callable[[list[int]], Tensor],
    draw: Callable[[Tensor, float], int],
    uniforms: list[float],
    keep: Callable[[list[float]], bool],
) -> tuple[list[int], list[Tensor]]:
    """Draft tokens until `keep` says that no other one pays. Returns (the drafted ids, the rows they were drawn from).

    next_row(tokens): (vocab,) the draft's probabilities after the tokens of this draft so far. draw(row, uniform): an
    id. uniforms: one for each token that may be drafted; there is none without a uniform. keep(probabilities): whether
    another token is drafted, from the probability that the draft itself gave each token so far; asked after every
    token but the last possible one.

    Every token that is drawn is returned. Whether there is a further one may depend on all that is known; whether this
    one counts is for the target's test alone to decide. Huang et al., SpecDec++, arXiv 2405.19715.

    >>> row = torch.tensor([0.75, 0.25])
    >>> likeliest = lambda probs, uniform: int(uniform >= probs[0])
    >>> draft_until_unsure(lambda tokens: row, likeliest, [0.1, 0.9, 0.1], lambda sure: sure[-1] > 0.5)[0]
    [0, 1]
    """
    raise Todo("ex09: draft_until_unsure")
