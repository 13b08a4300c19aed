"""The rules that accept a tree of drafted tokens. Pure functions, tensors in and tensors out, batch first.

The shape of a tree is said at `TreeDraft` (draft.py). A rule walks from the root down: at a node it keeps one of the
children and goes on from there, or none, and the target's own next token ends the walk. Both rules are lossless:

* `accept_follow` draws the target's own token at the node, and keeps the child that carries it. How the tree was made
  plays no part, as long as it was made before: it may be the drafter's most probable tokens.
* `accept_tree` tests the children one after another against what each was drawn from. A sampled child may be kept more
  often than the target would have drawn just that token.

A walk needs one pass over the nodes, since a parent comes before its children: a node that does not follow the place
where the walk stands is passed over.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from speclab.core.accept import RULES, accept_from_logits
from speclab.core.graphs import graphed
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling, draw, most_probable
from speclab.drafts.trees.draft import TreeDraft, depths, parents_of, reads


def accept_follow(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Draw the target's token and follow it: every token that comes out is the target's own, whatever the tree.

    target_probs: (batch, n + 1, vocab), row 0 is the root's, row i + 1 node i's.
    uniforms: (batch, n + 1) in [0, 1): number d draws the token after d kept ones.

    One draw for a node, however many children it has. All nodes of a depth share a uniform, and at most one of them is
    visited. Of children with the same token the first is followed. draft.probs is not read.
    """
    at_depth = uniforms.gather(-1, depths(parents_of(draft)))  # (batch, n + 1) the uniform of each row
    own = draw(target_probs.flatten(0, 1), at_depth.flatten()).view_as(at_depth)
    return _followed(draft, own)


def accept_tree(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """Multi-step speculative sampling: the output follows the target's distribution exactly, whatever the draft.

    target_probs: (batch, n + 1, vocab), row 0 is the root's, row i + 1 node i's.
    uniforms: (batch, n + 1) in [0, 1): number i tests node i, the last one draws the next token.

    At a node r is the target's row p. Its children are tried in their order: keep token x, drawn from q, while
    u * q(x) < r(x), and go on there; else r becomes norm(max(0, r - q)). After the last child the next token comes from
    r. q is draft.probs, which the children that were drawn before may have changed: see `without_replacement` in
    speclab/core/sampling.py. One-hot drafts (None) may be any tokens. A child whose law gives it no probability was not
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
    return _result(draft, kept, draw(weights, uniforms[:, n]))


# --- from logits ------------------------------------------------------------------------------------------------------


def accept_follow_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept_follow` from the target's logits, (batch, n + 1, vocab); greedy, it follows the most probable token."""
    result = _judged(replace(draft, probs=None), logits, sampling, uniforms, accept_follow)
    # Of a chain the leading tokens are kept: nothing moves, and less is copied to the host.
    return result if isinstance(draft, TreeDraft) else AcceptResult(result.n_accepted, result.next_token)


@accept_from_logits.register(TreeDraft)
def accept_tree_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept_tree` from the target's logits, (batch, n + 1, vocab).

    Against a one-hot target it keeps the child that is the target's own token, whatever the uniforms and the draft's
    probabilities: what `accept_follow` does. No row is built for that.
    """
    return _judged(draft, logits, sampling, uniforms, accept_tree)


RULES["follow"] = accept_follow_from_logits

TreeRule = Callable[[Draft, Tensor, Tensor], AcceptResult]


def _judged(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, rule: TreeRule) -> AcceptResult:
    """`_from_logits` without what no rule reads: shapes then depend on n only, and so does the CUDA graph."""
    tree = TreeDraft(draft.tokens, draft.size, draft.probs, parents=parents_of(draft))
    return _from_logits(tree, logits, sampling, uniforms[:, : logits.shape[1]], rule)


@graphed
def _from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, rule: TreeRule) -> AcceptResult:
    if sampling.greedy:
        return _followed(draft, most_probable(logits))
    return rule(draft, sampling.probs(logits), uniforms)


# --- the walk ---------------------------------------------------------------------------------------------------------


def _followed(draft: Draft, own: Tensor) -> AcceptResult:
    """From the root on, keep the child that carries the target's own token of the row.  own: (batch, n + 1)"""
    tokens, size = draft.tokens, draft.size
    parents, n = parents_of(draft), tokens.shape[1]
    number = torch.arange(n, device=tokens.device)
    siblings = (parents[:, :, None] == parents[:, None]) & (tokens[:, :, None] == tokens[:, None])  # (batch, n, n)
    again = (siblings & (number < number[:, None])).any(-1)  # one before it carries the same token
    right = (number < size[:, None]) & ~again & (tokens == own.gather(-1, parents + 1))
    kept = ~(reads(parents)[:, 1:, 1:] & ~right[:, None]).any(-1)  # (batch, n) all of its branch is right
    last = torch.where(kept, number + 1, 0).amax(-1) if n else size  # (batch,) the row where the walk ends
    return _result(draft, kept, own.gather(-1, last[:, None])[:, 0])


def _result(draft: Draft, kept: Tensor, next_token: Tensor) -> AcceptResult:
    """kept: (batch, n) whether each node is on the path. Nodes on a path have rising numbers."""
    n = kept.shape[1]
    number = torch.arange(n, device=kept.device)
    path = torch.where(kept, number, n).sort(-1).values  # (batch, n) kept ones first
    path = path.masked_fill(path == n, -1)
    here = path.amax(-1, keepdim=True) if n else path.new_full((len(path), 1), -1)  # (batch, 1) where the walk ended
    rejected = ((parents_of(draft) == here) & (number < draft.size[:, None])).any(-1)  # it had a child there
    return AcceptResult(kept.sum(-1), next_token, path, rejected.long())
