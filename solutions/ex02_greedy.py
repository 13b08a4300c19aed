"""Solution 2: draft and verify, greedy."""

from collections.abc import Callable


def count_accepted(drafted: list[int], own: list[int]) -> int:
    n_accepted = 0
    for token, choice in zip(drafted, own, strict=False):  # own is one longer; the bonus token has no draft to meet
        if token != choice:
            break  # stop, do not skip: own[i + 1] was chosen after a token that is now gone
        n_accepted += 1
    return n_accepted


def next_token(own: list[int], n_accepted: int) -> int:
    # One rule for both: the choice for the first position that no accepted draft fills. After a rejection that is the
    # rejected token's, after none it is own[k], one after the last draft.
    return own[n_accepted]


def one_round(
    target: Callable[[list[int], int], list[int]],
    draft: Callable[[list[int]], int],
    text: list[int],
    k: int,
    max_new: int,
    eos: frozenset[int],
) -> list[int]:
    drafted: list[int] = []
    for _ in range(min(k, max_new - 1)):  # where one token is left the loop drafts nothing and decodes plainly
        drafted.append(draft(text + drafted))

    own = target(text + drafted, len(drafted))  # the one pass; it holds the correction too, so nothing is asked twice
    n_accepted = count_accepted(drafted, own)
    committed = [*drafted[:n_accepted], next_token(own, n_accepted)]

    # Only now look for the end of the text: a rejected token or one after the end was never written.
    for i, token in enumerate(committed):
        if token in eos:
            return committed[: i + 1]
    return committed
