"""Solution 10: block verification."""

from collections.abc import Callable

from torch import Tensor


def running_ratios(drafted: list[int], draft_probs: Tensor, target_probs: Tensor) -> list[float]:
    ratios = [1.0]
    for i, token in enumerate(drafted):
        # Capped at 1 after every token: what the target would like to see more often cannot be drafted more often
        # afterwards. It may make up for tokens before it, not for those that are still to come.
        ratios.append(min(1.0, ratios[-1] * float(target_probs[i, token]) / float(draft_probs[i, token])))
    return ratios


def threshold(ratio: float, target_row: Tensor, draft_row: Tensor) -> float:
    # What the target has left at the next position once this text comes b_i times as often as it was drafted.
    left = float((ratio * target_row - draft_row).clamp(min=0).sum())
    rest = left + 1 - ratio
    # b_i = 1 and nothing left: the two agree here, and longer prefixes are always kept.
    return left / rest if rest > 0 else 1.0


def verify_block(
    drafted: list[int],
    draft_probs: Tensor,
    target_probs: Tensor,
    uniforms: list[float],
    draw: Callable[[Tensor, float], int],
) -> tuple[int, int]:
    k, kept = len(drafted), 0
    ratios = running_ratios(drafted, draft_probs, target_probs)
    for i in range(1, k + 1):
        bound = ratios[k] if i == k else threshold(ratios[i], target_probs[i], draft_probs[i])
        if uniforms[i - 1] < bound:
            kept = i  # and go on: a longer one may pass although this one, or one before it, does not
    if kept == k:
        return k, draw(target_probs[k], uniforms[k])
    left = (ratios[kept] * target_probs[kept] - draft_probs[kept]).clamp(min=0)  # (vocab,)
    return kept, draw(left / left.sum() if left.sum() > 0 else target_probs[kept], uniforms[k])
