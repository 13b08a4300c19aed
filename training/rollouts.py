"""How a feature head learns: on chains of its own outputs, as it will draft (the "training-time test" of EAGLE-3)."""

from collections.abc import Callable

import torch
from torch import Tensor

from speclab.drafts.heads.feature import FeatureHead
from speclab.drafts.heads.rollout import rollout
from training.passes import Reading

DEPTH = 4  # tokens of a chain in training
DECAY = 0.9  # weight of each depth in the loss, of the one before
CROSS_ENTROPY_WEIGHT = 0.2  # in the loss
LOW_TEMPERATURE = 0.25  # stands for greedy decoding: most of the weight is on the argmax, and gradients are not 0 yet
CHAINS = 0.5  # share of the positions from which a chain goes beyond its first token


def distance(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """What is rejected of samples at temperature 1 and at LOW_TEMPERATURE (total variation), plus a share of the
    cross-entropy to the target's distribution; means.

    At a low temperature the total variation is a smooth stand-in for how often the two argmaxes differ. The
    cross-entropy moves a draft also where its distribution and the target's have nothing in common. Both (batch, n,
    vocab).
    """
    precise = torch.promote_types(target_logits.dtype, torch.float32)
    target_logits, draft_logits = target_logits.to(precise), draft_logits.to(precise)
    draft_log_probs, target_probs = draft_logits.log_softmax(-1), target_logits.softmax(-1)
    cross_entropy = -(target_probs * draft_log_probs).sum(-1).mean()
    kept = torch.minimum(target_probs, draft_log_probs.exp()).sum(-1).mean()
    of_both = ((logits / LOW_TEMPERATURE).softmax(-1) for logits in (target_logits, draft_logits))
    kept_at_low = torch.minimum(*of_both).sum(-1).mean()
    return CROSS_ENTROPY_WEIGHT * cross_entropy + (1 - kept) + (1 - kept_at_low)


Distance = Callable[[Tensor, Tensor], Tensor]


def rollout_loss(
    head: FeatureHead,
    read: Reading,
    tokens: Tensor,
    seed: Tensor,
    rollout: Callable[..., list[tuple[Tensor, Tensor]]] = rollout,
    distance: Distance = distance,
) -> Tensor:
    """The mean over depths, weighted by DECAY.

    read: gives what the target computes. tokens: (batch, n). seed: a number on the host, of the positions where chains
    start. rollout, distance: those of this lab, maybe compiled.
    """
    hidden, logits = read(tokens)
    n = tokens.shape[1] - 1 - DEPTH
    order = torch.randperm(n, generator=torch.Generator().manual_seed(int(seed)))
    starts = order[: round(CHAINS * n)].sort().values.to(tokens.device)
    total = torch.zeros((), device=tokens.device)
    for step, (positions, drafted) in enumerate(rollout(head, hidden, tokens, DEPTH, starts)):
        total = total + DECAY**step * distance(logits[:, positions + step + 1], drafted)
    return total / sum(DECAY**step for step in range(DEPTH))
