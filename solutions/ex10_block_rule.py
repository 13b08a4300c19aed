"""Solution 10: block verification.

Chapter: docs/chapters/10-block-rule.md. Check: python check.py 10 --impl solutions
"""

from collections.abc import Callable

from torch import Tensor


def running_ratios(drafted: list[int], draft_probs: Tensor, target_probs: Tensor) -> list[float]:
    """How much more or less probable than for the draft the target finds the drafted text, after each of its tokens.

    drafted: k ids, in their order. draft_probs: (k, vocab), row i is what drafted[i] was drawn from. target_probs:
    (k + 1, vocab), row i is the target's for the same position.

    Returns k + 1 numbers b_0, ..., b_k: b_0 = 1 and b_i = min(1, b_(i-1) x p / q), p and q the two probabilities of
    the i-th drafted token, drafted[i - 1]. Sun et al., arXiv 2403.10444.

    >>> p, q = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    >>> running_ratios([0, 1], q, p), running_ratios([1, 0], q, p)
    ([1.0, 0.5, 0.75], [1.0, 1.0, 0.5])
    """
    ratios = [1.0]
    for i, token in enumerate(drafted):
        # Capped at 1 after every token: what the target would like to see more often cannot be drafted more often
        # afterwards. It may make up for tokens before it, not for those that are still to come.
        ratios.append(min(1.0, ratios[-1] * float(target_probs[i, token]) / float(draft_probs[i, token])))
    return ratios


def threshold(ratio: float, target_row: Tensor, draft_row: Tensor) -> float:
    """With which probability may a round end after i of its k drafted tokens, i < k, where none beyond them is kept?

    ratio: b_i. target_row, draft_row: (vocab,), both models at the next position, where drafted[i] stands.

    Returns z / (z + 1 - b_i), with z the sum of max(0, b_i x p - q) over the vocabulary; 1 where that is 0 / 0. Sun et
    al., arXiv 2403.10444.

    >>> threshold(1.0, torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5]))
    1.0
    >>> threshold(0.5, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    0.5
    """
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
    """Decide on the k drafted tokens of one round, all together. Returns (how many are kept, the token after them).

    The arguments are those of exercise 4: k ids (k may be 0), (k, vocab), (k + 1, vocab), k + 1 random numbers, at
    least 0 and below 1, and draw(probs, uniform) -> an id, for probs of (vocab,) that add up to 1.

    The first i drafted tokens may be kept where uniforms[i - 1] is strictly below `threshold` of b_i, or, for i = k,
    below b_k itself. Of all lengths that may be kept the longest one is; 0 always may. Nothing stops at the first that
    may not. With n kept the next token is drawn from max(0, b_n x p - q) of position n, divided by its sum, or, with
    all kept or where nothing is left to divide by, from the target's row n. Call `draw` once, with uniforms[k].
    Sun et al., arXiv 2403.10444.

    >>> p, q = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    >>> likeliest = lambda probs, uniform: int(probs.argmax())
    >>> verify_block([0, 1], q, p, [0.9, 0.7, 0.5], likeliest), verify_block([0, 1], q, p, [0.9, 0.8, 0.5], likeliest)
    ((2, 0), (0, 1))
    """
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
