"""Solution 11: drafts that read the target."""

from collections.abc import Callable

from torch import Tensor


def new_pairs(text: list[int], n_read: int, states: Tensor) -> tuple[Tensor, list[int]]:
    n = len(text) - 1 - n_read  # the newest token has no state yet: the target has not read it
    # Rows behind these are of rejected tokens. They are at the end, so the rows are counted from the front.
    return states[:n], text[n_read + 1 :]


def draft_chain(
    forward: Callable[[Tensor, list[int], int], Tensor],
    draw: Callable[[Tensor], int],
    states: Tensor,
    tokens: list[int],
    position: int,
    k: int,
) -> list[int]:
    drafted: list[int] = []
    for _ in range(k):
        state = forward(states, tokens, position)
        drafted.append(draw(state))
        position += len(tokens)
        states, tokens = state, drafted[-1:]  # the best that there is of a position that the target has not read
    return drafted


def first_wrong_pair(
    read: list[tuple[Tensor, int]], text: list[int], state_after: Callable[[list[int]], Tensor]
) -> int | None:
    for position, token in enumerate(text[1:]):
        if position == len(read):
            return position
        state, its_token = read[position]
        if its_token != token or not state.allclose(state_after(text[: position + 1])):
            return position
    return len(text) - 1 if len(read) > len(text) - 1 else None
