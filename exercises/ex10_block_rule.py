"""Exercise 10: block verification.

Chapter: docs/chapters/10-block-rule.md. Check: python check.py 10
"""

from collections.abc import Callable

from torch import Tensor

from exercises import Todo


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
    raise Todo("ex10: running_ratios")


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
    raise Todo("ex10: threshold")


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
    raise Todo("ex10: verify_block")
