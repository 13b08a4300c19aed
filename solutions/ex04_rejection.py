"""Solution 4: rejection sampling.

Chapter: docs/chapters/04-rejection.md. Check: python check.py 4 --impl solutions
"""

from collections.abc import Callable

from torch import Tensor


def is_accepted(target_prob: float, draft_prob: float, uniform: float) -> bool:
    """Is a drafted token kept?

    target_prob: what the target gives this token, 0 to 1. draft_prob: what the draft gave it when it was drawn, 0 to 1.
    uniform: a random number, at least 0 and below 1. It may be exactly 0.

    Keep the token if uniform times draft_prob is below target_prob. Strictly below and as a product, not as a quotient:
    then a token that the target rules out (target_prob 0) is never kept, also at uniform 0, and a draft_prob of 0
    divides nothing. Leviathan et al., arXiv 2211.17192, algorithm 1.

    >>> is_accepted(0.3, 0.6, 0.49), is_accepted(0.3, 0.6, 0.51)
    (True, False)
    """
    # The same as uniform < target_prob / draft_prob, with nothing to divide by. With <= a uniform of 0 would let a
    # token of target probability 0 pass: 0 <= 0.
    return uniform * draft_prob < target_prob


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """The distribution of the correction, the token that replaces a rejected one.

    target_probs, draft_probs: (vocab,) probabilities of the two models at the rejected token's position. Leave both as
    they are. Returns (vocab,): max(0, target_probs - draft_probs), divided by its sum so that it adds up to 1.

    If nothing is left to divide by, as where the two agree, returns target_probs itself.

    >>> residual(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.75, 0.0]))
    tensor([0.5000, 0.0000, 0.5000])
    """
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
    """Decide on the k drafted tokens of one round. Returns (how many of them are kept, the token that follows them).

    drafted: k ids, in their order. k may be 0.
    draft_probs: (k, vocab). Row i is the distribution that drafted[i] was drawn from.
    target_probs: (k + 1, vocab). Row i is the target's distribution for the position of drafted[i], row k the one for
    the position after all drafts.
    uniforms: k + 1 random numbers, at least 0 and below 1. uniforms[i] tests drafted[i]; uniforms[k] is for the draw.
    draw(probs, uniform): an id drawn from probs, which is (vocab,) and adds up to 1.

    Test the drafted tokens in their order with is_accepted and stop at the first that is rejected. The token that
    follows comes from the residual at the rejected one's position, or, where none was rejected, from the target's last
    row. Call `draw` once, with uniforms[k]. Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv
    2302.01318.

    >>> p = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    >>> q = torch.tensor([[0.25, 0.75, 0.0]])
    >>> likeliest = lambda probs, uniform: int(probs.argmax())
    >>> verify_draft([1], q, p, [0.3, 0.8], likeliest), verify_draft([1], q, p, [0.4, 0.8], likeliest)
    ((1, 2), (0, 0))
    """
    k = len(drafted)
    for i, token in enumerate(drafted):
        if not is_accepted(float(target_probs[i, token]), float(draft_probs[i, token]), uniforms[i]):
            # Drafts after this one continue a text that was not written, so they are not even tested.
            return i, draw(residual(target_probs[i], draft_probs[i]), uniforms[k])
    # Nothing was rejected, so nothing has to be made up for: the bonus token is the target's own draw.
    return k, draw(target_probs[k], uniforms[k])
