"""Exercise 18: train a draft.

Chapter: docs/chapters/18-train-a-draft.md. Check: python check.py 18
"""

from torch import Tensor

from exercises import Todo


def agreement(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """How likely a token that is drawn from the draft's row is accepted, at each of n places.  -> (n,)

    target_probs, draft_probs: (n, vocab), rows that sum to 1. It is 1 less the total variation distance of the two
    rows. Leviathan et al., arXiv 2211.17192.

    >>> agreement(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.7, 0.1]]))
    tensor([0.6000])
    """
    raise Todo("ex18: agreement")


def loss(target_probs: Tensor, draft_logits: Tensor) -> float:
    """What distillation makes small: the mean over n places of the cross-entropy -sum(p ln q), in nats.

    target_probs: (n, vocab), p. draft_logits: (n, vocab); q is their softmax. A logit may be hundreds below the highest
    one, where q itself would round to 0. Zhou et al., DistillSpec, arXiv 2310.08461.

    >>> round(loss(torch.tensor([[0.75, 0.25]]), torch.tensor([[0.0, 0.0]])), 4)  # ln 2
    0.6931
    """
    raise Todo("ex18: loss")


def gradient(target_probs: Tensor, draft_logits: Tensor) -> Tensor:
    """How fast the loss grows with each logit, (n, vocab). A step of training takes a share of it off the logits.

    For one place it is q - p, so training raises the logits of the tokens that the target holds more probable than the
    draft does. The loss is a mean over n places.

    >>> gradient(torch.tensor([[0.75, 0.25]]), torch.tensor([[0.0, 0.0]]))
    tensor([[-0.2500,  0.2500]])
    """
    raise Todo("ex18: gradient")


def least_agreement(cross_entropy: float, entropy: float) -> float:
    """What the loss promises: a number from 0 on that the mean agreement cannot be below.

    cross_entropy: the loss. entropy: the mean of -sum(p ln p) over the same places, in nats. Their difference is the
    mean of the KL divergence of p from q; rounding may bring it just below 0, where it stands for 0. Pinsker: the total
    variation distance is at most the root of half the divergence.

    >>> least_agreement(2.5, 2.0), least_agreement(5.0, 2.0)
    (0.5, 0.0)
    """
    raise Todo("ex18: least_agreement")
