"""Solution 6: choosing the draft length.

Chapter: docs/chapters/06-draft-length.md. Check: python check.py 6 --impl solutions
"""

from collections.abc import Callable


def best_draft_length(
    alpha: float, draft_cost: float, verify_cost: Callable[[int], float], overhead: float, longest: int
) -> int:
    """The k from 0 to `longest` with the highest predicted speedup; 0 if no k is faster than plain decoding.

    All costs are in target steps. alpha: chance of a tested token to be accepted. draft_cost: one drafted token.
    verify_cost(m): the target's pass over m tokens; a round with a draft of k passes over k + 1. It need not be
    smooth: real passes jump where the kernel changes, so a longer draft may pay where a shorter one does not.
    overhead: the rest of a round. Plain decoding (k = 0) makes one token per step and has none of these costs. Of two
    equally fast lengths the shorter one is the answer.

    >>> best_draft_length(0.8, 0.1, lambda m: 1.0, 0.0, 16)
    6
    >>> best_draft_length(0.2, 0.5, lambda m: 1.0, 0.0, 16)
    0
    """
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
    """The length of the next draft, from how the last round went: a rule without a memory of its own, but for k.

    k is what the rule said last, or 0 where a caller begins without drafting; n_drafted and n_accepted are 0 then, and
    the answer is 1 or more all the same. n_drafted is what the round really drafted: fewer than k at the end of the
    text, or when a lookup found less. n_accepted of these were accepted. What was not drafted was not rejected: where
    all of n_drafted were accepted, never answer less than k.

    The answer is a whole number from 1 to `longest` (0 only if `longest` is 0): a round without a draft shows nothing
    of the text, and a rule that answers 0 to 0 never drafts again.

    The score: target steps per token in the simulation of exercises/simulator.py, whose text has easy and hard
    stretches. Bronze is 0.842, what the best fixed length reaches; silver, asked of you, is 0.73. `python -m
    exercises.simulator` shows the score of your rule, of every fixed length, and the bound that no rule can pass.
    """
    # All accepted: the draft was right as far as it went, the text is easy here, so reach further, quickly.
    # A rejection: what was accepted is the best guess of how far the draft can see; one more notices when the text gets
    # easy again.
    guess = 2 * k if n_accepted == n_drafted else n_accepted + 1
    return min(longest, max(1, guess))
