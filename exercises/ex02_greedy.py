"""Exercise 2: draft and verify, greedy.

Chapter: docs/chapters/02-greedy.md. Check: python check.py 2
"""

from collections.abc import Callable

from exercises import Todo


def count_accepted(drafted: list[int], own: list[int]) -> int:
    """How many drafted tokens are kept: the leading ones that the target would have written itself.

    drafted: the k drafted ids, in their order. k may be 0.
    own: k + 1 ids from one pass of the target. own[i] is the target's own choice for the position of drafted[i], after
    the text and drafted[:i]. The last one, own[k], is its choice after all drafted tokens. Leave both as they are.

    Returns a number from 0 to k. The first drafted token that is not the target's own is rejected, and with it all
    drafted tokens after it: they continue a text that will never be written.

    >>> count_accepted([7, 2], [7, 5, 8])
    1
    """
    raise Todo("ex02: count_accepted")


def next_token(own: list[int], n_accepted: int) -> int:
    """The token that the target itself adds after the accepted ones. It costs nothing: the pass has computed it.

    own: k + 1 ids, the target's own choices as in count_accepted; leave this list as it is.
    n_accepted: drafted tokens kept, 0 to k.

    After a rejection this is the target's correction, its choice for the position of the rejected token. Where all k
    were kept it is the bonus token, its choice after the last of them.

    >>> next_token([7, 5, 8], n_accepted=1)
    5
    """
    raise Todo("ex02: next_token")


def one_round(
    target: Callable[[list[int], int], list[int]],
    draft: Callable[[list[int]], int],
    text: list[int],
    k: int,
    max_new: int,
    eos: frozenset[int],
) -> list[int]:
    """One round of greedy speculative decoding: draft, verify in one pass, commit. Returns the ids to append to `text`.

    target(ids, n): one pass of the target over `ids`. Returns n + 1 ids, its own choice after each of the last n + 1
    positions of `ids`: the first is chosen after all but the last n ids, the last after all of them.
    draft(ids): the id that the draft would write after `ids`.
    text: what is committed so far, at least one id. Leave this list as it is.
    k: how many tokens to draft, 0 or more. 0 is plain decoding.
    max_new: how many more ids may be written, at least 1. A round writes one id more than it accepts, so draft no more
    than max_new - 1.
    eos: ids that end the text. If one is among the ids to return, it is the last of them: cut off what comes after it.

    Calls `target` exactly once, and `draft` no more than min(k, max_new - 1) times; each time it sees the ids it has
    drafted before. Returns at least one id and never more than `max_new`. A rejected token is not written, so it ends
    nothing. Leviathan et al., arXiv 2211.17192, algorithm 1, at temperature 0.

    >>> count_up = lambda ids, n: [i + 1 for i in ids[len(ids) - n - 1 :]]
    >>> one_round(count_up, lambda ids: ids[-1] + 1, [1, 2], k=2, max_new=9, eos=frozenset())
    [3, 4, 5]
    """
    raise Todo("ex02: one_round")
