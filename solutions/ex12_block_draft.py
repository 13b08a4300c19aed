"""Solution 12: one pass for the whole block."""

from collections.abc import Callable

from torch import Tensor


def best_length(acceptance: list[float], draft_costs: list[float], verify_costs: list[float], overhead: float) -> int:
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
    tokens: list[int] = []
    rows: list[Tensor] = []
    before = last
    for slot in logits:
        row = probs(slot + bias(before))  # of this path alone: another token before makes another row
        before = draw(row)
        tokens.append(before)
        rows.append(row)  # what it was drawn from. The slot's own row is another distribution
    return tokens, rows
