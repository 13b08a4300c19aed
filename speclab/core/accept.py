"""The rules that accept or reject drafted tokens. Pure functions, tensors in and tensors out, batch first.

`accept` and `accept_block` are lossless: the text follows the target's distribution exactly. `accept_lenient` and
`accept_typical` are LOSSY: they keep more, and the text follows another distribution, whose distance from the target's
`lenient_law` and `typical_law` make computable. They are never the default.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.graphs import graphed
from speclab.core.rounds import AcceptResult, AcceptRule, Draft
from speclab.core.sampling import Sampling, draw, most_probable
from speclab.system.errors import UsageProblem


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
    n_accepted = _n_leading(uniforms[:, :n] * draft_of_token < target_of_token, size)

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
    from norm(max(0, b_n * p - q)), after all from the target's last row. One-hot drafts gain nothing: `accept` takes
    them, in a batch the rows that `draft.certain` names. Sun et al., arXiv 2403.10444.
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
    if draft.certain is None:
        return AcceptResult(n_accepted, next_token)
    one_by_one = accept(draft, target_probs, uniforms)
    return AcceptResult(
        torch.where(draft.certain, one_by_one.n_accepted, n_accepted),
        torch.where(draft.certain, one_by_one.next_token, next_token),
    )


# --- lossy rules ------------------------------------------------------------------------------------------------------


def accept_lenient(draft: Draft, target_probs: Tensor, uniforms: Tensor, lenience: float) -> AcceptResult:
    """LOSSY. The token rule with q scaled by `lenience`, 0 < L <= 1, in the test alone: keep while u * L * q(x) < p(x).

    Shapes and uniforms as for `accept`. The correction comes from norm(max(0, p - q)) as there. No token becomes more
    than 1 / L times as probable as for the target; L = 1 is `accept`.
    Leviathan et al., arXiv 2211.17192, appendix A.5.
    """
    n = draft.tokens.shape[1]
    return accept(draft, target_probs, torch.cat([uniforms[:, :n] * lenience, uniforms[:, n:]], dim=1))


def accept_typical(draft: Draft, target_probs: Tensor, uniforms: Tensor, epsilon: float) -> AcceptResult:
    """LOSSY. Typical acceptance: keep drafted token x while p(x) > `typical_threshold`; q plays no part.

    Shapes and uniforms as for `accept`; the n acceptance tests use none. What follows the kept tokens is drawn from the
    target's own row, after a rejection, too, so the rejected token may come again. The paper takes its argmax there.
    Cai et al. (Medusa), arXiv 2401.10774, section 2.3.
    """
    tokens, size = draft.tokens, draft.size
    batch, n = tokens.shape
    of_token = target_probs[:, :n].gather(-1, tokens[..., None])[..., 0]  # (batch, n)
    n_accepted = _n_leading(of_token > typical_threshold(target_probs[:, :n], epsilon)[..., 0], size)
    target_here = target_probs[torch.arange(batch, device=tokens.device), n_accepted]  # (batch, vocab)
    return AcceptResult(n_accepted, draw(target_here, uniforms[:, n]))


def typical_threshold(target_probs: Tensor, epsilon: float) -> Tensor:
    """min(E, sqrt(E) * exp(-H)), H the entropy of each row in nats.  (..., vocab) -> (..., 1)"""
    negative_entropy = torch.xlogy(target_probs, target_probs).sum(-1, keepdim=True)
    return (math.sqrt(epsilon) * negative_entropy.exp()).clamp(max=epsilon)


def lenient_law(target_probs: Tensor, draft_probs: Tensor, lenience: float) -> Tensor:
    """Distribution of the token that `accept_lenient` emits where it tests a drafted token, over all drafted tokens.

    min(q, p / L), plus the probability that is left, distributed as norm(max(0, p - q)). All (..., vocab).
    """
    kept = torch.minimum(draft_probs, target_probs / lenience)
    residual = (target_probs - draft_probs).clamp(min=0)
    mass = residual.sum(-1, keepdim=True)
    return kept + (1 - kept.sum(-1, keepdim=True)) * torch.where(mass > 0, residual / mass, target_probs)


def typical_law(target_probs: Tensor, draft_probs: Tensor, epsilon: float) -> Tensor:
    """Distribution of the token that `accept_typical` emits where it tests a drafted token, over all drafted tokens.

    q where p is above the threshold, plus the probability that is left, distributed as p. All (..., vocab).
    """
    kept = draft_probs * (target_probs > typical_threshold(target_probs, epsilon))
    return kept + (1 - kept.sum(-1, keepdim=True)) * target_probs


# --- from logits, by the name of --rule -------------------------------------------------------------------------------


@functools.singledispatch
def accept_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept` from the target's logits, (batch, n + 1, vocab).

    Against a one-hot target the rule keeps exactly the leading drafted tokens that are the target's own, whatever the
    uniforms and the draft's probabilities, and what follows is the target's own next token: no row is built for that.
    A kind of draft that is judged in another way registers its rule here.
    """
    return _judged(draft, logits, sampling, uniforms, "token")


def accept_block_from_logits(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """`accept_block` from the target's logits; greedy as `accept_from_logits`, which keeps all that can be kept."""
    return _judged(draft, logits, sampling, uniforms, "block")


def _judged(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, kind: str, value: tuple[float, ...] = ()
) -> AcceptResult:
    """`_from_logits` without what no rule reads: shapes then depend on n only, and so does the CUDA graph."""
    if (chain := draft.chain()) is None:
        raise UsageProblem(f"--rule {kind} judges chains of tokens, and this draft is none; leave it out")
    return _from_logits(chain, logits, sampling, uniforms[:, : logits.shape[1]], kind, value)


@graphed
def _from_logits(
    draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor, kind: str, value: tuple[float, ...] = ()
) -> AcceptResult:
    """value: of a lossy rule; like `kind` it belongs to what a CUDA graph fixes."""
    if not sampling.greedy:
        rules: dict[str, Callable[..., AcceptResult]] = {
            "token": accept, "block": accept_block, "lenient": accept_lenient, "typical": accept_typical,
        }  # fmt: skip
        return rules[kind](draft, sampling.probs(logits), uniforms, *value)
    own = most_probable(logits)  # (batch, n + 1)
    n = draft.tokens.shape[1]
    n_accepted = _n_leading(draft.tokens == own[:, :n], draft.size)
    return AcceptResult(n_accepted, own.gather(-1, n_accepted[:, None])[:, 0])


def _n_leading(passed: Tensor, size: Tensor) -> Tensor:
    """How many of a row's first `size` tests were passed before one failed.  (batch, n) bool, (batch,) -> (batch,)"""
    return torch.minimum(passed.cumprod(-1, dtype=torch.long).sum(-1), size)


class Rule(NamedTuple):
    """What a name of --rule stands for."""

    name: str
    accept: AcceptRule
    law: Callable[[Tensor, Tensor], Tensor] | None = None  # (target_probs, draft_probs) -> of one token; None: lossless


RULES: dict[str, Callable[[Draft, Tensor, Sampling, Tensor], AcceptResult]] = {
    "token": accept_from_logits,
    "block": accept_block_from_logits,
}
"""The lossless rules by their names."""
LAWS = {"lenient": lenient_law, "typical": typical_law}
LOSSY_NAMES = "lenient:L (0 < L <= 1, as in lenient:0.5) or typical:E (0 < E < 1, as in typical:0.09)"


def rule_of(name: str) -> Rule:
    """The rule of a name; a lossy one has its number behind a colon. UsageProblem where there is none of this name.

    lenient:1 is the token rule, and counts as lossless.
    """
    if name in RULES:
        return Rule(name, RULES[name])
    kind, _, number = name.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if kind not in LAWS or not (0 < value < 1 or (kind == "lenient" and value == 1)):
        raise UsageProblem(f"there is no accept rule {name!r}; give {', '.join(RULES)}, {LOSSY_NAMES}")

    def judge(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        return _judged(draft, logits, sampling, uniforms, kind, (value,))

    def law(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return LAWS[kind](target_probs, draft_probs, value)

    return Rule(f"{kind}:{value!r}".removesuffix(".0"), judge, law if value < 1 else None)
