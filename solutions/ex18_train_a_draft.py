"""Solution 18: train a draft."""

import math

import torch
from torch import Tensor


def agreement(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    return torch.minimum(target_probs, draft_probs).sum(-1)


def loss(target_probs: Tensor, draft_logits: Tensor) -> float:
    log_probs = draft_logits.log_softmax(-1)  # the log of a softmax would be -inf where the softmax rounds to 0
    return float(-(target_probs * log_probs).sum(-1).mean())


def gradient(target_probs: Tensor, draft_logits: Tensor) -> Tensor:
    return (draft_logits.softmax(-1) - target_probs) / len(draft_logits)


def least_agreement(cross_entropy: float, entropy: float) -> float:
    divergence = max(0.0, cross_entropy - entropy)
    # The root of a mean is at least the mean of the roots, so the bound of the mean holds for the mean agreement.
    return max(0.0, 1 - math.sqrt(divergence / 2))
