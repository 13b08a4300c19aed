"""What was known of each token of a drafted tree, in the order in which a trace shows them: the accepted branch first.

The rule is walked once more, with the path that it took, to see which children it tested and against what: a child is
tested against the part of the target's row that the children rejected before it left.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling
from speclab.extensions.trace.trace import Position


class Tried(NamedTuple):
    """A drafted token that the rule looked at: what of the target's row was there for it, from 0 to 1."""

    node: int
    target_prob: float


def walked(draft: Draft, target_probs: Tensor, kept: list[int]) -> list[Tried]:
    """The tokens that multi-step speculative sampling tests, in order, on its way along `kept`; of one row.

    draft: with `parents`. target_probs: (n + 1, vocab).
    """
    assert draft.parents is not None
    tokens, parents = draft.tokens[0].tolist(), draft.parents[0].tolist()
    here, weights, mass, tried = -1, target_probs[0].double(), 1.0, []
    for node in range(int(draft.size[0])):
        law = torch.zeros_like(weights)
        if draft.probs is None:
            law[tokens[node]] = 1.0
        else:
            law = draft.probs[0, node].double()
        if parents[node] != here or not law[tokens[node]] > 0:
            continue
        tried.append(Tried(node, (weights[tokens[node]] / mass).item()))
        if node in kept:
            here, weights, mass = node, target_probs[node + 1].double(), 1.0
            continue
        residual = (weights - mass * law).clamp(min=0)
        if (left := residual.sum().item()) > 0:
            weights, mass = residual, left
    return tried


def positions_of_tree(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, result: AcceptResult
) -> list[Position]:
    """Every drafted token of one row, the accepted branch first, then the next token. `parent` is a number in this
    order. What was not tested has the target's own probability. logits (1, n + 1, vocab) and uniforms are the rule's.
    """
    assert result.path is not None
    assert draft.parents is not None
    n, end = draft.tokens.shape[1], int(result.n_accepted[0])
    kept, parents, tokens = result.path[0, :end].tolist(), draft.parents[0].tolist(), draft.tokens[0].tolist()
    order = kept + [node for node in range(n) if node not in kept]
    place = {-1: -1} | {node: i for i, node in enumerate(order)}
    target_probs, top = sampling.probs(logits)[0], logits[0].argmax(-1).tolist()
    tried = {one.node: one.target_prob for one in walked(draft, target_probs, kept)}
    found = []
    for node in order:
        row, token = parents[node] + 1, tokens[node]
        found.append(
            Position(
                token,
                tried.get(node, target_probs[row, token].item()),
                top[row],
                1.0 if draft.probs is None else draft.probs[0, node, token].item(),
                uniforms[0, node].item(),
                place[parents[node]],
                node in tried,
            )
        )
    row, token = (kept[-1] + 1 if kept else 0), int(result.next_token[0])
    return [*found, Position(token, target_probs[row, token].item(), top[row])]
