"""The checks of exercise 5: counts to alpha, alpha to tokens, tokens and costs to a speedup."""

from tests.exercises.answers import asked


def or_error(call, *args):
    """Nine digits of what it gives, or the name of what it raises."""
    try:
        return round(call(*args), 9)
    except (ValueError, ZeroDivisionError) as error:
        return type(error).__name__


ALPHA = "rounds (drafted, accepted) {}: alpha"
FIVE, ANY = [(4, 3), (4, 4), (4, 0), (4, 4), (4, 2)], [(2, 2), (4, 1), (0, 0), (3, 3), (1, 0)]


@asked([(FIVE,), ([(12, 2)] * 4,), ([(3, 2)] * 4,), (ANY,)], ALPHA, [13 / 16, 0.666666667, 0.666666667, 6 / 8])
def test_alpha_counts_tested_drafts_only(one, rounds):
    """acceptance_rate: accepted over tested drafts of all rounds together; those after a rejected one were never
    tested."""
    return or_error(one.acceptance_rate, list(rounds))


@asked([([],), ([(0, 0), (0, 0)],), ([(4, 0)],)], ALPHA, ["ValueError", "ValueError", 0.0])
def test_nothing_tested_has_no_alpha(one, rounds):
    """acceptance_rate: ValueError where no draft was tested; 0.0 would say that every draft was rejected."""
    return or_error(one.acceptance_rate, list(rounds))


@asked([(1.0, 4), (0.0, 4), (0.8, 0), (0.8, 8)], "alpha {}, k {}: tokens", [5.0, 1.0, 1.0, 4.32891136])
def test_expected_tokens_of_known_rounds(one, alpha, k):
    """expected_tokens: the sum of the powers of alpha from 0 to k, both included; alpha^0 is the target's own token."""
    return or_error(one.expected_tokens, alpha, k)


SPEEDUP = "alpha {}, k {}, draft_cost {}, verify_cost {}, overhead {}: the speedup"


COSTS = [(0.8, 4, 0.1, 1.2, 0.05), (0.2, 8, 0.2, 1.5, 0.1), (0.7, 0, 0.3, 1.0, 0.0)]


@asked(COSTS, SPEEDUP, [2.037333333, 0.3906248, 1.0])
def test_speedup_is_tokens_over_steps(one, *case):
    """predicted_speedup: tokens of a round over its steps, k drafted tokens, one pass of the target, and the rest; it
    may be a slowdown."""
    return or_error(one.predicted_speedup, *case)
