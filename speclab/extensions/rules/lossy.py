"""Two lossy rules. They keep more than an exact rule may, and the text follows another distribution than the target's.

How far it is off is computable, by `lenient_law` and `typical_law`. Every row of a run with such a rule says LOSSY.
"""

import math

import torch
from torch import Tensor

from speclab.core.accept import accept
from speclab.core.rounds import AcceptResult, Draft, n_leading
from speclab.core.sampling import draw


def accept_lenient(draft: Draft, target_probs: Tensor, uniforms: Tensor, lenience: float) -> AcceptResult:
    """LOSSY. The token rule with q scaled by `lenience`, 0 < L <= 1, in the test alone: keep while u * L * q(x) < p(x).

    Shapes and uniforms as for `accept`. The correction comes from norm(max(0, p - q)) as there. No token becomes more
    than 1 / L times as probable as for the target; L = 1 is `accept`.
    Leviathan et al., arXiv 2211.17192, appendix A.5.
    """
    n = draft.tokens.shape[1]
    return accept(draft, target_probs, torch.cat([uniforms[:, :n] * lenience, uniforms[:, n:]], dim=1))


def lenient_law(target_probs: Tensor, draft_probs: Tensor, lenience: float) -> Tensor:
    """Return the distribution of the token that `accept_lenient` emits where it tests a drafted token, over all drafted
    tokens.

    min(q, p / L), plus the probability that is left, distributed as norm(max(0, p - q)). All (..., vocab).
    """
    kept = torch.minimum(draft_probs, target_probs / lenience)
    residual = (target_probs - draft_probs).clamp(min=0)
    mass = residual.sum(-1, keepdim=True)
    return kept + (1 - kept.sum(-1, keepdim=True)) * torch.where(mass > 0, residual / mass, target_probs)


def accept_typical(draft: Draft, target_probs: Tensor, uniforms: Tensor, epsilon: float) -> AcceptResult:
    """LOSSY. Typical acceptance: keep drafted token x while p(x) > `typical_threshold`; q plays no part.

    Shapes and uniforms as for `accept`; the n acceptance tests use none. What follows the kept tokens is drawn from the
    target's own row, after a rejection, too, so the rejected token may come again. The paper takes its argmax there.
    Cai et al. (Medusa), arXiv 2401.10774, section 2.3.
    """
    tokens, size = draft.tokens, draft.size
    batch, n = tokens.shape
    of_token = target_probs[:, :n].gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    n_accepted = n_leading(of_token > typical_threshold(target_probs[:, :n], epsilon)[..., 0], size)
    target_here = target_probs[torch.arange(batch, device=tokens.device), n_accepted]  # (batch, vocab)
    return AcceptResult(n_accepted, draw(target_here, uniforms[:, n]))


def typical_threshold(target_probs: Tensor, epsilon: float) -> Tensor:
    """Return min(E, sqrt(E) * exp(-H)), where H is the entropy of each row in nats. (..., vocab) -> (..., 1)"""
    negative_entropy = torch.xlogy(target_probs, target_probs).sum(-1, keepdim=True)
    return (math.sqrt(epsilon) * negative_entropy.exp()).clamp(max=epsilon)


def typical_law(target_probs: Tensor, draft_probs: Tensor, epsilon: float) -> Tensor:
    """Return the distribution of the token that `accept_typical` emits where it tests a drafted token, over all drafted
    tokens.

    q where p is above the threshold, plus the probability that is left, distributed as p. All (..., vocab).
    """
    kept = draft_probs * (target_probs > typical_threshold(target_probs, epsilon))
    return kept + (1 - kept.sum(-1, keepdim=True)) * target_probs
