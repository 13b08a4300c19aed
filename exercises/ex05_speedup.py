"""Exercise 5: the speedup formula, and why it fails.

Chapter: docs/chapters/05-speedup.md. Check: python check.py 5
"""

from exercises import Todo


def acceptance_rate(rounds: list[tuple[int, int]]) -> float:
    """alpha: the share of the *tested* drafted tokens that were accepted.

    rounds: (drafted, accepted) of every round, 0 <= accepted <= drafted. A round tests its drafted tokens in order and
    stops at the first one it rejects. The ones after a rejected token were never tested, so they do not count.
    ValueError if no token was tested in any round.

    >>> acceptance_rate([(4, 2), (4, 4), (4, 0), (4, 1)])  # 7 accepted, 3 rejected, 6 never tested
    0.7
    """
    raise Todo("ex05: acceptance_rate")


def expected_tokens(alpha: float, k: int) -> float:
    """tau: the tokens that a round with a draft of k is expected to make, if every tested token is accepted with chance
    alpha, independently of the others.

    A round makes its accepted tokens and one more of the target's own: the correction after a rejection, the bonus
    token after none. alpha lies in 0 ... 1, both included; k = 0 is plain decoding.

    >>> expected_tokens(0.5, 2)
    1.75
    >>> expected_tokens(1.0, 4)
    5.0
    """
    raise Todo("ex05: expected_tokens")


def predicted_speedup(alpha: float, k: int, draft_cost: float, verify_cost: float, overhead: float) -> float:
    """How many times faster than plain decoding, from acceptance and costs.

    All costs are in target steps, one plain decode step being 1: `draft_cost` c of one drafted token, `verify_cost` v
    of the target's pass over all k + 1 tokens, `overhead` o of everything else in a round. Plain decoding makes one
    token per step. The answer may be below 1: slower.

    >>> predicted_speedup(0.5, 2, 0.125, 1.25, 0.25)  # 1.75 tokens for 2 * 0.125 + 1.25 + 0.25 = 1.75 steps
    1.0
    """
    raise Todo("ex05: predicted_speedup")
