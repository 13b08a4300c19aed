"""What a round looked at, on the host: every number that the accept rule used, and the target's own confidence.

For pictures (trace.py). The loop knows nothing of it: `DetailRecorder` is passed in as the accept rule.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.clock import synchronize
from speclab.core.rounds import AcceptResult, AcceptRule, Draft, Round
from speclab.core.sampling import Sampling


class Detail(NamedTuple):
    """One round, place by place. n is the number of drafted tokens.

    The probabilities are the rule's own: after temperature, top-k and top-p, and under greedy decoding one-hot, so
    `target_probs` is 1 or 0 there. A draft that is certain of its proposal (greedy drafting, prompt lookup) has 1.
    So one line recomputes every outcome, greedy or not: draft i would pass if
    `uniforms[i] * draft_probs[i] < target_probs[i]`, and it is kept if all drafts before it passed too.

    What greedy decoding hides stands in `confidence`: the target's softmax at temperature 1 without filters, of every
    proposed token and then of the next one, n + 1 numbers. The rule never reads it.
    Where a text ends inside a block, drafts after its end are in here too, and so is the next token's probability.
    """

    proposed: list[int]  # n ids
    draft_probs: list[float]  # n
    target_probs: list[float]  # n
    uniforms: list[float]  # n, in [0, 1)
    next_prob: float  # of the token after the kept drafts, in the target's distribution there
    confidence: list[float]  # n + 1

    def passes(self, place: int) -> bool:
        """Does the draft at this place pass the test, if it gets as far?  Leviathan et al., arXiv 2211.17192"""
        return self.uniforms[place] * self.draft_probs[place] < self.target_probs[place]


class DetailRecorder:
    """An accept rule that decides as another one does and notes the numbers that it used."""

    def __init__(self, accept: AcceptRule):
        self._accept = accept
        self._noted: deque[tuple[Detail, float]] = deque()  # and the seconds that noting took

    def __call__(self, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        """Decide, then note."""
        result = self._accept(draft, logits, sampling, uniforms)
        synchronize(logits.device)  # what the rule still has to do is no part of noting
        start = time.perf_counter()
        detail = detail_of(draft, logits, sampling, uniforms, result)
        self._noted.append((detail, time.perf_counter() - start))
        return result

    def into(self, rounds: Iterable[Round]) -> Iterator[Round]:
        """The rounds that it decided, each with its detail; the seconds of noting are taken out of the accept phase."""
        for round_ in rounds:
            if not round_.prefill:
                detail, seconds = self._noted.popleft()
                phases = round_.seconds and {**round_.seconds, "accept": round_.seconds["accept"] - seconds}
                round_ = round_._replace(detail=detail, seconds=phases)
            yield round_


def detail_of(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, result: AcceptResult) -> Detail:
    """The detail of one row's round. logits (1, n + 1, vocab) and uniforms (1, n or more) are what the rule got."""
    n = draft.tokens.shape[1]
    kept = result.n_accepted[:, None]  # (1, 1)
    tokens = torch.cat([draft.tokens, result.next_token[:, None]], dim=1)[..., None]  # (1, n + 1, 1)
    rows = torch.cat([torch.arange(n, device=logits.device)[None], kept], dim=1)[..., None]  # the row of each token
    target_probs = _chosen(sampling.probs(logits), rows, tokens)
    confidence = _chosen(Sampling(1.0).probs(logits), rows, tokens)
    draft_probs = torch.ones_like(target_probs[:n])
    if draft.probs is not None:
        draft_probs = draft.probs.gather(-1, draft.tokens[..., None])[0, :, 0].to(target_probs)
    *proposed, _ = tokens[0, :, 0].tolist()
    *target, next_prob = target_probs.tolist()
    return Detail(proposed, draft_probs.tolist(), target, uniforms[0, :n].tolist(), next_prob, confidence.tolist())


def _chosen(probs: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """(1, n + 1, vocab) probabilities -> (n + 1,), each token's in the row that judges it"""
    return probs.gather(1, rows.expand(-1, -1, probs.shape[-1])).gather(-1, tokens)[0, :, 0]
