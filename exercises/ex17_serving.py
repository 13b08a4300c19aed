"""Exercise 17: read a server.

Chapter: docs/chapters/17-serving.md. Check: python check.py 17
"""

from typing import NamedTuple

from exercises import Todo

SPECULATION = "vllm:spec_decode_num_"
DRAFTS = SPECULATION + "drafts_total"  # rounds that drafted something
DRAFTED = SPECULATION + "draft_tokens_total"
ACCEPTED = SPECULATION + "accepted_tokens_total"


def kept_at(place: int) -> str:
    """The series that counts the rounds that kept the drafted token at this place of the draft, 0 for the first one."""
    return f'{SPECULATION}accepted_tokens_per_pos_total{{position="{place}"}}'


class Curve(NamedTuple):
    """What a server has counted of its rounds."""

    rounds: int  # that drafted something
    drafted: int  # tokens
    kept: tuple[int, ...]  # rounds that kept the token at position 1, 2, ..., k


def between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """How far every series of `after` went on since `before`, both as `read_counters` of exercises/transcript.py reads
    them off a page: name and value.

    One that is new began at 0. ValueError where one fell, or is gone: then it is not the server of before, or that one
    was started again.

    >>> between({"n_total": 5.0}, {"n_total": 7.0, "m_total": 1.0})
    {'n_total': 2.0, 'm_total': 1.0}
    """
    raise Todo("ex17: between")


def acceptance(counts: dict[str, float], k: int) -> tuple[float | None, float, float]:
    """The three numbers that are called acceptance.  -> alpha, f, tokens of a round

    counts: as `between` gives them, of a server that drafts k tokens in a round; their series are DRAFTS, DRAFTED,
    ACCEPTED, and kept_at(0) to kept_at(k - 1). There was at least one draft.

    alpha: accepted / tested. A round tests its tokens up to the first rejected one. None where some draft was shorter
    than k: then no counter tells how many tokens were tested. f: accepted / drafted. Tokens of a round: the accepted
    ones, and the target's own.

    >>> acceptance({DRAFTS: 4.0, DRAFTED: 8.0, ACCEPTED: 4.0, kept_at(0): 3.0, kept_at(1): 1.0}, 2)
    (0.5714285714285714, 0.5, 2.0)
    """
    raise Todo("ex17: acceptance")


def from_stream(chunks: list[tuple[float, int]]) -> tuple[float, float]:
    """Seconds to the first token, and seconds per token after it.

    chunks: of one answer, for each chunk the seconds since the request, and how many tokens it carries. That may be
    several; it may be none at the beginning and at the end, and such a chunk does not count. The tokens of the first
    chunk were there at its time: they took none of the time after it. Where nothing came after it, the second number
    is 0.0. ValueError where there is no token.

    >>> from_stream([(0.125, 0), (0.25, 2), (0.75, 1), (1.25, 3), (1.5, 0)])
    (0.25, 0.25)
    """
    raise Todo("ex17: from_stream")


def reconcile(counts: dict[str, float], own_rounds: list[tuple[int, int]], k: int) -> str:
    """Whether a server counted the rounds that the lab makes of the same text with the same draft.

    counts: of one answer, as `between` gives them: DRAFTS, DRAFTED, ACCEPTED, kept_at(0) to kept_at(k - 1).
    own_rounds: (drafted, accepted) of the lab's rounds, in their order. A round that drafts nothing is in no counter of
    the server.

    "equal": every counter says what these rounds say. "last round": they would, if the last of own_rounds had drafted
    another number from 1 to k, or kept another number of these; never where the last of own_rounds drafts nothing. Else
    the first of these that is not equal: "drafts", "drafted", "accepted".

    >>> counts = {DRAFTS: 2.0, DRAFTED: 4.0, ACCEPTED: 3.0, kept_at(0): 2.0, kept_at(1): 1.0}
    >>> [reconcile(counts, rounds, 2) for rounds in ([(2, 2), (2, 1)], [(2, 2), (2, 0)], [(2, 1)])]
    ['equal', 'last round', 'drafts']
    """
    raise Todo("ex17: reconcile")


def conditional(curve: Curve) -> list[float | None]:
    """The share of the rounds that kept each position among those that kept the position before it.

    All rounds reach the first position. None where no round kept the position before.

    >>> conditional(Curve(100, 300, (80, 40, 0)))
    [0.8, 0.5, 0.0]
    """
    raise Todo("ex17: conditional")


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

    All drafts here have k tokens. The second half of k = 7 positions are the last four: it begins behind the first
    k // 2.

    >>> diagnose(Curve(300, 1200, (240, 190, 160, 130))), diagnose(Curve(500, 2000, (400, 20, 4, 0)))
    ('fine', 'recursion')
    """
    raise Todo("ex17: diagnose")
