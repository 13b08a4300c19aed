"""The numbers that the accept rule used, of every drafted token and of the next one."""

from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling
from speclab.extensions.trace.trace import Candidate, Position

CANDIDATES = 8  # tokens that a picture of a sampled place shows


class Tried(NamedTuple):
    """A drafted token that the rule looked at: what of the target's row was there for it, from 0 to 1."""

    node: int
    target_prob: float


def positions_of(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, result: AcceptResult
) -> list[Position]:
    """Every drafted token of one row, then the next token. logits (1, n + 1, vocab) and uniforms are the rule's own."""
    if draft.parents is not None:
        return _of_tree(draft, logits, sampling, uniforms, result)
    n = draft.tokens.shape[1]
    ids = torch.cat([draft.tokens[0], result.next_token])  # (n + 1,)
    rows = torch.cat([torch.arange(n, device=ids.device), result.n_accepted])  # of the logits that judge each token
    target_probs = sampling.probs(logits)[0, rows]  # (n + 1, vocab)
    draft_probs = [1.0] * n if draft.probs is None else draft.probs[0, rows[:n], ids[:n]].tolist()
    of_ids = target_probs.gather(-1, ids[:, None])[:, 0].tolist()
    columns = (ids.tolist(), of_ids, [*draft_probs, None], [*uniforms[0, :n].tolist(), None])
    found = [Position(*numbers) for numbers in zip(*columns, strict=True)]
    if sampling.greedy:
        return found
    likely = [candidates_of(draft, row, i) for i, row in zip(rows.tolist(), target_probs, strict=True)]
    return [place._replace(candidates=one) for place, one in zip(found, likely, strict=True)]


def candidates_of(draft: Draft, target_probs: Tensor, place: int) -> tuple[Candidate, ...]:
    """The tokens that the target or the draft finds most probable at this place of a chain, and the drafted one.

    target_probs: (vocab,). place: of a drafted token, or the number of drafted tokens.  -> at most CANDIDATES, by the
    larger of both probabilities
    """
    is_drafted = place < draft.tokens.shape[1]
    draft_probs = torch.zeros_like(target_probs)
    if is_drafted and draft.probs is not None:
        draft_probs = draft.probs[0, place].to(target_probs)
    elif is_drafted:
        draft_probs[draft.tokens[0, place]] = 1.0
    larger = torch.maximum(target_probs, draft_probs)
    ids = larger.topk(min(CANDIDATES, len(larger))).indices.tolist()
    drafted = draft.tokens[0, place : place + 1].tolist()
    ids = [*ids[: CANDIDATES - 1], *drafted] if set(drafted) - set(ids) else ids
    return tuple(
        Candidate(id_, target_probs[id_].item(), draft_probs[id_].item() if is_drafted else None)
        for id_ in ids
        if larger[id_] > 0
    )


# --- trees ------------------------------------------------------------------------------------------------------------


def walked(draft: Draft, target_probs: Tensor, kept: list[int]) -> list[Tried]:
    """The tokens that multi-step speculative sampling tests, in order, on its way along `kept`; of one row.

    The rule is walked once more, with the path that it took, to see which children it tested and against what: a child
    is tested against the part of the target's row that the children rejected before it left.
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


def _of_tree(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, result: AcceptResult
) -> list[Position]:
    """Every drafted token of one row, the accepted branch first, then the next token. `parent` is a number in this
    order. What was not tested has the target's own probability."""
    assert result.path is not None
    assert draft.parents is not None
    n, end = draft.tokens.shape[1], int(result.n_accepted[0])
    kept, parents, tokens = result.path[0, :end].tolist(), draft.parents[0].tolist(), draft.tokens[0].tolist()
    order = kept + [node for node in range(n) if node not in kept]
    place = {-1: -1} | {node: i for i, node in enumerate(order)}
    target_probs = sampling.probs(logits)[0]
    tried = {one.node: one.target_prob for one in walked(draft, target_probs, kept)}
    found = []
    for node in order:
        token, parent = tokens[node], parents[node]
        target_prob = tried.get(node, target_probs[parent + 1, token].item())
        draft_prob = 1.0 if draft.probs is None else draft.probs[0, node, token].item()
        found.append(Position(token, target_prob, draft_prob, uniforms[0, node].item(), place[parent], node in tried))
    row, token = (kept[-1] + 1 if kept else 0), int(result.next_token[0])
    return [*found, Position(token, target_probs[row, token].item())]
