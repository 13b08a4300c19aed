"""Solution 12: one pass for the whole block.

Chapter: docs/chapters/12-block-draft.md. Check: python check.py 12 --impl solutions
"""

from collections.abc import Callable

from torch import Tensor


def best_length(acceptance: list[float], draft_costs: list[float], verify_costs: list[float], overhead: float) -> int:
    """The draft length with the most tokens per target step; 0 where none is faster than plain decoding.

    acceptance: for each position of a draft, how likely its token is accepted if all before it are. draft_costs,
    verify_costs: by the number of drafted tokens, from 0 to len(acceptance): what drafting so many costs, and what the
    target's pass over one token more costs, in target steps, as they were measured. overhead: the rest of a round.
    Plain decoding makes one token per step and has no overhead. Of equally fast lengths the shortest is the answer.

    >>> best_length([0.8, 0.5, 0.5], [0.0, 0.25, 0.5, 0.75], [1.0, 1.0, 1.0, 1.0], 0.0)  # token by token
    2
    >>> best_length([0.8, 0.5, 0.5], [0.0, 0.25, 0.25, 0.25], [1.0, 1.0, 1.0, 1.0], 0.0)  # in one pass
    3
    """
    best, highest = 0, 1.0
    survival = tokens = 1.0  # the target's own token comes whatever happens
    for k, chance in enumerate(acceptance, start=1):
        survival *= chance
        tokens += survival
        speed = tokens / (draft_costs[k] + verify_costs[k] + overhead)
        if speed > highest:  # and go on: costs have steps, a longer draft may pay where this one does not
            best, highest = k, speed
    return best


def expected_accepted(target_first: Tensor, target_second: Tensor, draft_first: Tensor, draft_second: Tensor) -> float:
    """How many of two drafted tokens the rule of chapter 4 accepts, on average.

    target_first, draft_first: (vocab,), of the first token. target_second, draft_second: (vocab, vocab), row x is of
    the second token after the first token x. Where the draft's slots do not see each other, all its rows are the same.

    A token x is drafted and accepted with probability q(x) min(1, p(x) / q(x)) = min(p(x), q(x)). The second one is
    tested only where the first one was accepted.

    >>> coin, course_or_problem = torch.tensor([0.5, 0.5]), torch.eye(2)
    >>> expected_accepted(coin, course_or_problem, coin, coin.expand(2, 2))
    1.5
    """
    kept = target_first.minimum(draft_first)  # (vocab,) the first token is x, and it is accepted
    overlap = target_second.minimum(draft_second).sum(-1)  # (vocab,) after x the second one is accepted
    return float(kept.sum() + (kept * overlap).sum())


def walk(
    logits: Tensor,
    bias: Callable[[int], Tensor],
    last: int,
    probs: Callable[[Tensor], Tensor],
    draw: Callable[[Tensor], int],
) -> tuple[list[int], list[Tensor]]:
    """Draft a block whose slots one pass has computed.  -> the ids, and for each the row that it was drawn from

    logits: (k, vocab), of the slots, none of which knows what is drawn from another. bias(token): (vocab,), what the
    Markov head adds to the logits of the slot after this token. last: the last committed token, before the first slot.
    probs(logits): (vocab,) -> the distribution that they stand for, at the run's temperature. draw(row): an id.

    From left to right: the slot's logits and the bias by the token before make its row, and its token is drawn from it.
    The rule of chapter 4 is handed these rows as q. *DSpark*, arXiv 2607.05147.

    >>> bias = lambda token: torch.tensor([[9.0, 0.0], [0.0, 9.0]])[token]  # makes the same token likely once more
    >>> walk(torch.zeros(2, 2), bias, 1, lambda logits: logits.softmax(-1), lambda row: int(row.argmax()))[0]
    [1, 1]
    """
    tokens: list[int] = []
    rows: list[Tensor] = []
    before = last
    for slot in logits:
        row = probs(slot + bias(before))  # of this path alone: another token before makes another row
        before = draw(row)
        tokens.append(before)
        rows.append(row)  # what it was drawn from. The slot's own row is another distribution
    return tokens, rows
