"""Solution 6: choosing the draft length."""

from collections.abc import Callable


def best_draft_length(
    alpha: float, draft_cost: float, verify_cost: Callable[[int], float], overhead: float, longest: int
) -> int:
    best, highest = 0, 1.0  # plain decoding: a token per step
    for k in range(1, longest + 1):
        tokens = sum(alpha**i for i in range(k + 1))  # exercise 5
        speedup = tokens / (k * draft_cost + verify_cost(k + 1) + overhead)
        # Look at every length: real costs jump, and after a dip the speedup may rise again. Strictly higher, so that
        # the shortest of several equals wins.
        if speedup > highest:
            best, highest = k, speedup
    return best


def next_draft_length(k: int, n_drafted: int, n_accepted: int, longest: int) -> int:
    # All accepted: the draft was right as far as it went, the text is easy here, so reach further, quickly.
    # A rejection: what was accepted is the best guess of how far the draft can see; one more notices when the text gets
    # easy again.
    guess = 2 * k if n_accepted == n_drafted else n_accepted + 1
    return min(longest, max(1, guess))
