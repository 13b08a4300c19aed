"""Solution 4: rejection sampling."""

from collections.abc import Callable

from torch import Tensor


def is_accepted(target_prob: float, draft_prob: float, uniform: float) -> bool:
    # The same as uniform < target_prob / draft_prob, with nothing to divide by. With <= a uniform of 0 would let a
    # token of target probability 0 pass: 0 <= 0.
    return uniform * draft_prob < target_prob


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    # Where the draft is above the target, the tests have kept all of the target's share already: nothing is missing.
    missing = (target_probs - draft_probs).clamp(min=0)  # (vocab,)
    total = missing.sum()
    # Equal distributions never reject on paper. In floating point they may, by one rounding, and 0 / 0 is no answer.
    return missing / total if total > 0 else target_probs


def verify_draft(
    drafted: list[int],
    draft_probs: Tensor,
    target_probs: Tensor,
    uniforms: list[float],
    draw: Callable[[Tensor, float], int],
) -> tuple[int, int]:
    k = len(drafted)
    for i, token in enumerate(drafted):
        if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i]):
            # Drafts after this one continue a text that was not written, so they are not even tested.
            return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[k])
    # Nothing was rejected, so nothing has to be made up for: the bonus token is the target's own draw.
    return k, draw(target_probs[k], uniforms[k])
