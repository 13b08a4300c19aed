"""The token rule, which accepts or rejects drafted tokens one by one: a pure function. Tensors are batch first.
speclab/core/rules.py lists this rule and those of extensions."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from speclab.core.rounds import AcceptResult, Draft, n_leading
from speclab.core.sampling import Sampling, draw, graphed, most_probable


def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Token-by-token rejection rule: the output follows the target's distribution exactly, whatever the draft.

    target_probs: (batch, n + 1, vocab), row i is the target's distribution after i drafted tokens.
    uniforms: (batch, n + 1) in [0, 1): n acceptance tests and the draw of the next token.

    Keep drafted token x while u * q(x) < p(x), with p = target_probs and q = draft.probs. Strict and without a
    division: a token of target probability 0 is never kept. At the first rejection the next token comes from
    norm(max(0, p - q)), after none from the target's last row.
    Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.
    """
    tokens, size, draft_probs = draft.tokens, draft.size, draft.probs
    batch, n = tokens.shape
    target_of_token = target_probs[:, :n].gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    if draft_probs is None:
        draft_of_token = torch.ones_like(target_of_token)
    else:
        draft_of_token = draft_probs.gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    n_accepted = n_leading(uniforms[:, :n] * draft_of_token < target_of_token, size)

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
    # Nothing was rejected: this is the bonus token. Or p and q agree to the last bit, so the residual has no mass.
    whole = (n_accepted == size) | (residual.sum(-1) <= 0)
    return AcceptResult(n_accepted, draw(torch.where(whole[:, None], target_here, residual), uniforms[:, n]))


@functools.singledispatch
def accept_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Run `accept` on logits, (batch, n + 1, vocab). A kind of draft with its own rule registers it here."""
    return judge(draft, logits, sampling, uniforms, accept)


def judge(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, rule: Callable, numbers: tuple[float, ...] = ()
) -> AcceptResult:
    """Call `rule(draft, target_probs, uniforms, *numbers)`; greedy, keep what is the target's own without asking it."""
    # The draft goes on without the fields that no rule reads: shapes, and so the CUDA graph, then depend on n only.
    return _judged(logits, draft.bare(), sampling, uniforms[:, : logits.shape[1]], rule, numbers)


@graphed
def _judged(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, rule: Callable, numbers: tuple[float, ...]
) -> AcceptResult:
    if sampling.greedy:
        return draft.matching(most_probable(logits))
    return rule(draft, sampling.probs(logits), uniforms, *numbers)
