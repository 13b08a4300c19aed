"""Exercise 19: draft while the target verifies.

Chapter: docs/chapters/19-draft-ahead.md. Check: python check.py 19
"""

from exercises import Todo


def outcome_chances(acceptance: list[float], guessed: list[list[float]]) -> list[list[float]]:
    """How likely each outcome of a round is: the first n drafted tokens are accepted, and guess j is the next token.

    acceptance: how likely each of the k drafted tokens is accepted, where those before it were. guessed: for each n
    from 0 to k, how likely guess 0, 1, ... is the token that comes, where the round has ended after n accepted tokens.
    The rows may be of different lengths, and what a row lacks to 1 are tokens that nobody guesses. The answer has the
    same shape.

    >>> outcome_chances([0.5], [[0.5, 0.25], [0.75]])
    [[0.25, 0.125], [0.375]]
    """
    raise Todo("ex19: outcome_chances")


def fan_out(chances: list[list[float]], budget: int) -> list[int]:
    """How many guesses to prepare a draft for, after each number n of accepted tokens.

    chances: of each outcome, as above; in a row they never rise. budget: drafts that can be prepared in a round. The
    answer has as many numbers as there are rows, and makes it as likely as possible that the draft of the outcome is
    there. Of equally likely outcomes the one with fewer accepted tokens is prepared; an outcome that cannot happen is
    not.

    >>> fan_out([[0.25, 0.125], [0.375]], 2)
    [1, 1]
    """
    raise Todo("ex19: fan_out")


def round_time(hit: float, verify: float, draft: float, prepare: float, sync: float) -> float:
    """The expected time of a round on two devices, in steps of the target.

    While the target verifies, the second device prepares drafts, which takes it `prepare` steps. Then both talk to
    each other, `sync` steps. With the chance `hit` the draft of the outcome is among the prepared ones: it is there as
    soon as both devices are done. Else the second device drops what it is doing when the target is done, and drafts,
    `draft` steps. It does so, too, where a prepared draft would be there later than a fresh one.

    >>> round_time(0.5, 1.0, 0.5, 0.75, 0.25)
    1.5
    >>> round_time(1.0, 1.0, 0.5, 1.25, 0.25)
    1.5
    """
    raise Todo("ex19: round_time")


def needed_hit_rate(
    tokens: float, verify: float, draft: float, prepare: float, sync: float, other: float
) -> float | None:
    """The smallest chance of a hit with which two devices are as fast as what they could do otherwise.

    tokens: of a round, whether it was a hit or not. other: tokens in a step that the two devices make otherwise. 0.0
    where no hit is needed, None where not even hits alone are enough. The times are those of `round_time`.

    >>> needed_hit_rate(3.0, 1.0, 1.0, 1.0, 0.0, 2.0)
    0.5
    >>> needed_hit_rate(3.0, 1.0, 1.0, 1.0, 0.0, 1.5), needed_hit_rate(3.0, 1.0, 1.0, 1.0, 0.0, 4.0)
    (0.0, None)
    """
    raise Todo("ex19: needed_hit_rate")
