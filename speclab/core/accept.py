"""The rules that accept or reject drafted tokens. Pure functions, tensors in and tensors out, batch first."""

import torch
from torch import Tensor

from speclab.core.graphs import replayed
from speclab.core.rounds import AcceptResult, AcceptRule, Draft
from speclab.core.sampling import Sampling, draw, most_probable


def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Token-by-token rejection rule: the output follows the target's distribution exactly, whatever the draft.

    target_probs: (batch, n + 1, vocab), row i is the target's distribution after i drafted tokens.
    uniforms: (batch, n + 1) in [0, 1): n acceptance tests and the draw of the next token.

    Keep drafted token x while u * q(x) < p(x), with p = target_probs and q = draft.probs. Strict and without a
    division: a token of target probability 0 is never kept. At the first rejection the next token comes from
    norm(max(0, p - q)), after none from the target's last row.
    Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.
    """
    tokens, size, draft_probs = draft
    batch, n = tokens.shape
    target_of_token = target_probs[:, :n].gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    if draft_probs is None:
        draft_of_token = torch.ones_like(target_of_token)
    else:
        draft_of_token = draft_probs.gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    live = torch.arange(n, device=tokens.device) < size[:, None]
    passed = live & (uniforms[:, :n] * draft_of_token < target_of_token)
    n_accepted = passed.long().cumprod(-1).sum(-1)  # (batch,) leading passes

    row = torch.arange(batch, device=tokens.device)
    target_here = target_probs[row, n_accepted]  # (batch, vocab) where the next token is drawn
    if n == 0:
        return AcceptResult(n_accepted, draw(target_here, uniforms[:, 0]))
    rejected = n_accepted.clamp(max=n - 1)  # index of the rejected token, where there is one
    if draft_probs is None:
        draft_here = torch.zeros_like(target_here).scatter_(-1, tokens[row, rejected][:, None], 1.0)
    else:
        draft_here = draft_probs[row, rejected]
    residual = (target_here - draft_here).clamp(min=0)
    # Bonus token: nothing was rejected. Or p and q agree to the last bit, so the residual has no mass.
    whole = (n_accepted == size) | (residual.sum(-1) <= 0)
    return AcceptResult(n_accepted, draw(torch.where(whole[:, None], target_here, residual), uniforms[:, n]))


def accept_block(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Block verification: judges drafted tokens together. As exact as `accept`, and on average keeps as many or more.

    Shapes and uniforms as for `accept`. With b_0 = 1 and b_i = min(1, b_(i-1) * p(x_i) / q(x_i)), the first i drafted
    tokens may be kept where u_i < h_i, with h_i = Z / (Z + 1 - b_i) and Z the mass of max(0, b_i * p - q) after i
    tokens; after the last one h = b. The largest such i counts: a test that fails does not end the search, since a
    later token that is more probable for the target may make up for an earlier one that is less. The next token comes
    from norm(max(0, b_n * p - q)), after all from the target's last row. One-hot drafts gain nothing go to `accept`.
    Sun et al., arXiv 2403.10444.
    """
    tokens, size, draft_probs = draft
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
    return AcceptResult(n_accepted, draw(torch.where(whole[:, None], target_here, residual), uniforms[:, n]))


def accept_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept` from the target's logits, (batch, n + 1, vocab).

    Against a one-hot target the rule keeps exactly the leading drafted tokens that are the target's own, whatever the
    uniforms and the draft's probabilities, and what follows is the target's own next token: no row is built for that.
    """
    return _from_logits(draft, logits, sampling, uniforms[:, : logits.shape[1]], False)  # one graph for each n


def accept_block_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept_block` from the target's logits; greedy as `accept_from_logits`, which keeps all that can be kept."""
    return _from_logits(draft, logits, sampling, uniforms[:, : logits.shape[1]], True)


RULES: dict[str, AcceptRule] = {"token": accept_from_logits, "block": accept_block_from_logits}
"""By the name of --rule."""


@replayed
def _from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, block: bool) -> AcceptResult:
    if not sampling.greedy:
        return (accept_block if block else accept)(draft, sampling.probs(logits), uniforms)
    own = most_probable(logits)  # (batch, n + 1)
    n = draft.tokens.shape[1]
    live = torch.arange(n, device=own.device) < draft.size[:, None]
    n_accepted = (live & (draft.tokens == own[:, :n])).long().cumprod(-1).sum(-1)
    return AcceptResult(n_accepted, own.gather(-1, n_accepted[:, None])[:, 0])
