"""Solution 5: the speedup formula, and why it fails."""


def acceptance_rate(rounds: list[tuple[int, int]]) -> float:
    accepted = sum(n_accepted for _, n_accepted in rounds)
    # A round that accepted all it drafted rejected nothing; every other round rejected exactly one.
    rejected = sum(n_accepted < n_drafted for n_drafted, n_accepted in rounds)
    tested = accepted + rejected
    if tested == 0:
        raise ValueError("no drafted token was tested, so there is no acceptance rate")
    return accepted / tested


def expected_tokens(alpha: float, k: int) -> float:
    # Draft i is accepted only if all i before it were, too: chance alpha**i. The sum of these chances is the expected
    # number of accepted tokens, and alpha**0 = 1 is the target's own. As a sum it needs no special case for alpha = 1,
    # where the closed form (1 - alpha**(k + 1)) / (1 - alpha) divides zero by zero.
    return float(sum(alpha**i for i in range(k + 1)))


def predicted_speedup(alpha: float, k: int, draft_cost: float, verify_cost: float, overhead: float) -> float:
    # Tokens per round over steps per round. v is the whole pass, not what it costs beyond a decode step: no 1 is added.
    steps = k * draft_cost + verify_cost + overhead
    return expected_tokens(alpha, k) / steps
