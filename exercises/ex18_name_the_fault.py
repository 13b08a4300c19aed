"""Exercise 18: name the fault.

Chapter: docs/chapters/18-name-the-fault.md. Check: python check.py 18
"""

from typing import NamedTuple

from exercises import Todo


class Curve(NamedTuple):
    """What a server has counted of its rounds."""

    rounds: int  # that drafted something
    drafted: int  # tokens
    kept: tuple[int, ...]  # rounds that kept the token at position 1, 2, ..., k


def conditional(curve: Curve) -> list[float | None]:
    """The share of the rounds that kept each position among those that kept the position before it.

    All rounds reach the first position. None where no round kept the position before.

    >>> conditional(Curve(100, 300, (80, 40, 0)))
    [0.8, 0.5, 0.0]
    >>> conditional(Curve(10, 30, (5, 0, 0)))
    [0.5, 0.0, None]
    """
    raise Todo("ex18: conditional")


def accepted_share(curve: Curve) -> float:
    """f: accepted tokens over drafted ones.

    >>> accepted_share(Curve(100, 300, (80, 40, 0)))
    0.4
    """
    raise Todo("ex18: accepted_share")


def diagnose(curve: Curve) -> str:
    """What is wrong with the draft, or with the server. The first line that is true decides:

    "too few"       there are fewer than 30 rounds
    "unverified"    f is 0.9 or more: a loop, the target as its own draft, or nothing is verified
    "states"        the first position is kept in less than 0.15 of the rounds: wrong states, or no weights
    "recursion"     the second position's conditional rate is below half of the first's
    "independent"   conditional rates fall from position 1 to 2 to 3, and the third is below two thirds of the second
    "another draft" accepted / tested is below 0.55
    "k too long"    k is 6 or more, and the second half of the positions brings less than 0.15 of the accepted tokens
    "fine"          nothing of all this

    A round has tested all that it kept and one token more, unless it kept all k. The second half of k = 7 positions are
    the last four: it begins behind the first k // 2. All drafts here have k tokens.

    >>> diagnose(Curve(300, 1200, (240, 190, 160, 130)))
    'fine'
    >>> diagnose(Curve(500, 2000, (400, 20, 4, 0)))
    'recursion'
    """
    raise Todo("ex18: diagnose")
