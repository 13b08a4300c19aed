"""Solution 11: drafts that read the target.

Chapter: docs/chapters/11-feature-draft.md. Check: python check.py 11 --impl solutions
"""

from collections.abc import Callable

from torch import Tensor


def new_pairs(text: list[int], n_read: int, states: Tensor) -> tuple[Tensor, list[int]]:
    """What the draft has to read after a pass of the target: states, and the token that goes with each.

    text: all committed ids, the prompt's first, those that this pass committed last. n_read: the draft has read the
    states of the positions before this one. states: (rows, width), of the target's last pass; row 0 is the state of
    position n_read, row 1 that of the next one, and so on. After a verification the last rows may be of tokens that
    were rejected.

    Returns (n, width) and n ids, for every committed position from n_read on that has a committed token after it: its
    state, and the id of the token after it. That is one pair for each token that the pass committed; after a round that
    accepted n_accepted drafts they are the rows 0 to n_accepted. Li et al., EAGLE-3, arXiv 2503.01840.

    >>> states = torch.tensor([[3.0], [5.0], [8.0], [3.0]])  # of the last committed token 3 and of the drafts 5, 8, 3
    >>> new_pairs([1, 2, 3, 5, 8, 4], 2, states)  # two of them accepted, and a 4 of the target's own
    (tensor([[3.],
            [5.],
            [8.]]), [5, 8, 4])
    """
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
    """Draft k tokens, each with a pass of the draft.  -> the k ids, in their order

    forward(states, tokens, position): a pass over m pairs, states (m, width) of the positions from `position` on, and
    m ids. It keeps what later passes attend to, position by position, and gives the draft's own state of the last of
    these pairs, (1, width). draw(state): the id that the draft proposes from its own state. states, tokens, position:
    the pairs that new_pairs gave, at least one, and the position of the first of them.

    The first pass reads all these pairs. The target has computed nothing for the positions behind them, so each further
    pass reads one pair, at the next position: the draft's own state, as the pass before gave it, and the id that was
    drawn from it. The last drafted id is read by no pass; for k = 0 there is no pass.
    """
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
    """The check that a text cannot replace: the first position whose pair is wrong, None if all are right.

    read: the pairs (state, id) that the draft has read of a text and keeps, in the order of their positions, from
    position 0 on, once it has read all that it can. text: all committed ids. state_after(ids): (width,) the target's
    state of the last of these ids, computed anew from the ids alone.

    Right is: for each position but the last the state of that position and the id after it. A pair that is missing is
    wrong, and so is one too many. Compare states with allclose: passes of different length round differently.

    >>> state_after = lambda ids: torch.tensor([float(ids[-1])])
    >>> first_wrong_pair([(torch.tensor([7.0]), 8), (torch.tensor([8.0]), 8)], [7, 8, 9], state_after)
    1
    """
    for position, token in enumerate(text[1:]):
        if position == len(read):
            return position
        state, its_token = read[position]
        if its_token != token or not state.allclose(state_after(text[: position + 1])):
            return position
    return len(text) - 1 if len(read) > len(text) - 1 else None
