"""Solution 5: the speedup formula, and why it fails.

Chapter: docs/chapters/05-speedup.md. Check: python check.py 5 --impl solutions
"""


def acceptance_rate(rounds: list[tuple[int, int]]) -> float:
    """alpha: the share of the *tested* drafted tokens that were accepted.

    rounds: (drafted, accepted) of every round, 0 <= accepted <= drafted. A round tests its drafted tokens in order and
    stops at the first one it rejects. The ones after a rejected token were never tested, so they do not count.
    ValueError if no token was tested in any round.

    >>> acceptance_rate([(4, 2), (4, 4), (4, 0), (4, 1)])  # 7 accepted, 3 rejected, 6 never tested
    0.7
    """
    accepted = sum(n_accepted for _, n_accepted in rounds)
    # A round that accepted all it drafted rejected nothing; every other round rejected exactly one.
    rejected = sum(n_accepted < n_drafted for n_drafted, n_accepted in rounds)
    tested = accepted + rejected
    if tested == 0:
        raise ValueError("no drafted token was tested, so there is no acceptance rate")
    return accepted / tested


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
    # Draft i is accepted only if all i before it were, too: chance alpha**i. The sum of these chances is the expected
    # number of accepted tokens, and alpha**0 = 1 is the target's own. As a sum it needs no special case for alpha = 1,
    # where the closed form (1 - alpha**(k + 1)) / (1 - alpha) divides zero by zero.
    return float(sum(alpha**i for i in range(k + 1)))


def predicted_speedup(alpha: float, k: int, draft_cost: float, verify_cost: float, overhead: float) -> float:
    """How many times faster than plain decoding, from acceptance and costs.

    All costs are in target steps, one plain decode step being 1: `draft_cost` c of one drafted token, `verify_cost` v
    of the target's pass over all k + 1 tokens, `overhead` o of everything else in a round. Plain decoding makes one
    token per step. The answer may be below 1: slower.

    >>> predicted_speedup(0.5, 2, 0.125, 1.25, 0.25)  # 1.75 tokens for 2 * 0.125 + 1.25 + 0.25 = 1.75 steps
    1.0
    """
    # Tokens per round over steps per round. v is the whole pass, not what it costs beyond a decode step: no 1 is added.
    steps = k * draft_cost + verify_cost + overhead
    return expected_tokens(alpha, k) / steps
