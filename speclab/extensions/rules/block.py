"""Block verification: drafted tokens are judged together. As exact as the token rule, it keeps more on average."""

import torch
from torch import Tensor

from speclab.core.accept import accept
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import draw


def accept_block(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Judge drafted tokens together: block verification. It is as exact as `accept`, and on average keeps as many or
    more.

    Shapes and uniforms as for `accept`. With b_0 = 1 and b_i = min(1, b_(i-1) * p(x_i) / q(x_i)), the first i drafted
    tokens may be kept where u_i < h_i, with h_i = Z / (Z + 1 - b_i) and Z the mass of max(0, b_i * p - q) after i
    tokens; after the last one h = b. The largest such i counts: a test that fails does not end the search, since a
    later token that is more probable for the target may make up for an earlier one that is less. The next token comes
    from norm(max(0, b_n * p - q)), after all from the target's last row. One-hot drafts gain nothing: `accept` takes
    them. Sun et al., arXiv 2403.10444.
    """
    tokens, size, draft_probs = draft.tokens, draft.size, draft.probs
    batch, n = tokens.shape
    if draft_probs is None or n == 0:
        return accept(draft, target_probs, uniforms)
    target_of_token = target_probs[:, :n].gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    draft_of_token = draft_probs.gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    so_far = kept = torch.ones_like(target_of_token[:, 0])  # (batch,) b_i, and b of the prefix that is kept
    n_accepted = torch.zeros_like(size)
    for i in range(n):
        weight = so_far * target_of_token[:, i]
        so_far = torch.where(weight >= draft_of_token[:, i], (weight > 0).to(weight), weight / draft_of_token[:, i])
        bound = so_far
        if i + 1 < n:
            mass = (so_far[:, None] * target_probs[:, i + 1] - draft_probs[:, i + 1]).clamp(min=0).sum(-1)
            rest = mass + 1 - so_far
            bound = torch.where(size == i + 1, so_far, torch.where(rest > 0, mass / rest, torch.ones_like(mass)))
        passed = (i < size) & (uniforms[:, i] < bound)
        n_accepted = torch.where(passed, i + 1, n_accepted)
        kept = torch.where(passed, so_far, kept)

    row = torch.arange(batch, device=tokens.device)
    target_here = target_probs[row, n_accepted]  # (batch, vocab) where the next token is drawn
    draft_here = draft_probs[row, n_accepted.clamp(max=n - 1)]
    residual = (kept[:, None] * target_here - draft_here).clamp(min=0)
    whole = (n_accepted == size) | (residual.sum(-1) <= 0)
    next_token = draw(torch.where(whole[:, None], target_here, residual), uniforms[:, n])
    return AcceptResult(n_accepted, next_token)
