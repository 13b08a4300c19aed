"""The rule that accepts or rejects drafted tokens. Pure functions, tensors in and tensors out, batch first."""

import torch
from torch import Tensor

from speclab.core.graphs import replayed
from speclab.core.rounds import AcceptResult, Draft
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


def accept_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept` from the target's logits, (batch, n + 1, vocab).

    Against a one-hot target the rule keeps exactly the leading drafted tokens that are the target's own, whatever the
    uniforms and the draft's probabilities, and what follows is the target's own next token: no row is built for that.
    """
    return _accept_from_logits(draft, logits, sampling, uniforms[:, : logits.shape[1]])  # one graph for each n


@replayed
def _accept_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    if not sampling.greedy:
        return accept(draft, sampling.probs(logits), uniforms)
    own = most_probable(logits)  # (batch, n + 1)
    n = draft.tokens.shape[1]
    live = torch.arange(n, device=own.device) < draft.size[:, None]
    n_accepted = (live & (draft.tokens == own[:, :n])).long().cumprod(-1).sum(-1)
    return AcceptResult(n_accepted, own.gather(-1, n_accepted[:, None])[:, 0])
