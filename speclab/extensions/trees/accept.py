"""The rule that accepts a tree of drafted tokens. Pure functions, tensors in and tensors out, batch first.

`TreeDraft` (draft.py) describes the shape of a tree. The rule walks from the root down: at a node it keeps one of the
children and goes on from there, or none, and the target's own next token ends the walk. `accept_tree` is lossless: it
tests the children one after another against what each was drawn from, so a sampled child may be kept more often than
the target would have drawn just that token.

A walk needs one pass over the nodes, since a parent comes before its children: a node that does not follow the place
where the walk stands is passed over.
"""

import torch
from torch import Tensor

from speclab.core.accept import accept_from_logits, judge
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling, draw
from speclab.extensions.trees.draft import TreeDraft, along, parents_of


def accept_tree(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Accept or reject a tree by multi-step speculative sampling: the output follows the target's distribution exactly,
    whatever the draft.

    target_probs: (batch, n + 1, vocab), row 0 is the root's, row i + 1 node i's.
    uniforms: (batch, n + 1) in [0, 1): number i tests node i, the last one draws the next token.

    At a node r is the target's row p. Its children are tried in their order: keep token x, drawn from q, while
    u * q(x) < r(x), and go on there; else r becomes norm(max(0, r - q)). After the last child the next token comes from
    r. q is draft.probs, which the children that were drawn before may have changed: see `without_replacement` in
    fixed.py. One-hot drafts (None) may be any tokens. A child whose law gives it no probability was not
    drawn: it is passed over, and with it all that follows it. On a chain this is `accept`.
    Strict and without a division: r is kept as weights and their sum, and the sum moves to the other side of the test.
    Miao et al. (SpecInfer), arXiv 2305.09781, algorithm 2.
    """
    tokens, size, draft_probs = draft.tokens, draft.size, draft.probs
    batch, n = tokens.shape
    parents = parents_of(draft)
    here = torch.zeros_like(size)  # (batch,) the row where the walk stands
    weights = target_probs[:, 0]  # (batch, vocab) what is left to draw from there
    mass = torch.ones_like(weights[:, 0])  # (batch,) its sum: the chance that all children so far are rejected
    kept = torch.zeros(batch, n, dtype=torch.bool, device=tokens.device)
    for i in range(n):
        token = tokens[:, i : i + 1]
        law = torch.zeros_like(weights).scatter(-1, token, 1.0) if draft_probs is None else draft_probs[:, i]
        tried = (i < size) & (parents[:, i] + 1 == here)
        drawn_with = law.gather(-1, token)[:, 0]  # (batch,) 0 for a child that does not exist
        passed = uniforms[:, i] * drawn_with * mass < weights.gather(-1, token)[:, 0]
        kept[:, i] = tried & (drawn_with > 0) & passed
        residual = (weights - mass[:, None] * law).clamp(min=0)
        left = residual.sum(-1)
        # A rejection is as probable as the residual has mass. If it has none, only rounding made this a rejection: r
        # stays as it is, and what the target cannot emit stays impossible.
        rejected = tried & ~kept[:, i] & ~(left <= 0)
        weights = torch.where(rejected[:, None], residual, weights)
        weights = torch.where(kept[:, i, None], target_probs[:, i + 1], weights)
        mass = torch.where(rejected, left, mass).masked_fill(kept[:, i], 1.0)
        here = here.masked_fill(kept[:, i], i + 1)
    return along(draft, kept, draw(weights, uniforms[:, n]))


@accept_from_logits.register(TreeDraft)
def accept_tree_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Run `accept_tree` on the target's logits, (batch, n + 1, vocab).

    Against a one-hot target it keeps the child that is the target's own token, whatever the uniforms and the draft's
    probabilities. No row is built for that.
    """
    return judge(draft, logits, sampling, uniforms, accept_tree)
