"""The tokens that top-k and top-p keep, where the logits are known up to rounding.

A decoder and its judge compute the same logits in passes of different widths, so their logits differ by rounding, and
near the edge of a filter they may keep different tokens: in bfloat16 logits are often equal, and the k-th token is then
a matter of chance. So a token is one of three kinds here. It is kept whatever the rounding, or it may be kept, or no
rounding explains it. This kind depends on the text before the token alone, never on which token was drawn.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.sampling import Sampling

CHUNK = 32  # rows at a time
SORTED = 256  # the number of most probable tokens that are looked at first
APART = 8  # the difference of two logits is off by fewer standard deviations of one logit's rounding than this
NEVER = 40.0  # a token that is e^40 times less probable than the most probable one is not drawn
MASS_ERROR = 64 * torch.finfo(torch.float32).eps  # the rounding error of a sum of float32 probabilities
# The largest standard deviation of a logarithm of a probability by rounding that the statistics allow for.
RESOLVED = 0.5


class Kept(NamedTuple):
    """The tokens that the filters keep at n places, as far as rounding lets it be known."""

    sure: Tensor  # (n, vocab) of bool, the tokens that are kept whatever the rounding
    possible: Tensor  # (n, vocab) of bool, these and the tokens that may be kept
    edge: Tensor  # (n, 2), bounds of the probability of all tokens that may be kept; NaN where they are not known


def kept(logits: Tensor, deviation: Tensor, sampling: Sampling) -> Kept:
    """Return the tokens that are surely kept, and those that may be kept.

    logits (n, vocab); deviation (n,), the standard deviation of a logit's rounding. The temperature must be above 0.

    Rows whose rounding is too coarse at this temperature have no token that is surely kept (`RESOLVED`).
    """
    if not (sampling.top_k or sampling.top_p < 1):
        return _unfiltered(logits, deviation, sampling.temperature)
    parts = [_kept(*part, sampling) for part in zip(logits.split(CHUNK), deviation.split(CHUNK), strict=True)]
    return Kept(*map(torch.cat, zip(*parts, strict=True)))


def _unfiltered(logits: Tensor, deviation: Tensor, temperature: float) -> Kept:
    sure = (deviation[:, None] <= RESOLVED * temperature).expand(logits.shape)
    lowest = logits.amax(-1, keepdim=True) - (APART * deviation[:, None] + NEVER * temperature)
    return Kept(sure, sure | (logits >= lowest), torch.full((len(logits), 2), torch.nan, dtype=torch.float64))


def _kept(logits: Tensor, deviation: Tensor, sampling: Sampling) -> Kept:
    scaled = logits.double() / sampling.temperature
    scaled = scaled - scaled.amax(-1, keepdim=True)
    deviation = deviation.double()[:, None] / sampling.temperature
    vocab, n = scaled.shape[-1], max(SORTED, 2 * sampling.top_k)
    while True:
        ordered, order = scaled.topk(min(n, vocab), dim=-1)
        sure, possible, edge = _kept_of_first(ordered, deviation, scaled.exp().sum(-1, keepdim=True), sampling)
        if n >= vocab or not possible[:, -1].any():  # no token behind these is more probable
            break
        n *= 8
    if n < vocab:  # tokens that are not among these may stand before the last ones
        sure = sure & (ordered - APART * deviation >= ordered[:, -1:])
    sure = sure & (deviation <= RESOLVED)
    back = torch.zeros(scaled.shape, dtype=torch.bool)
    return Kept(back.scatter(-1, order, sure), back.scatter(-1, order, possible), edge)


def _kept_of_first(ordered: Tensor, deviation: Tensor, total: Tensor, sampling: Sampling) -> Kept:
    """Return the result of `kept`, computed from the first tokens alone, in the order of their probabilities.

    ordered: (n, m), logits at the run's temperature, the largest first and 0. total: (n, 1), the mass of all tokens.
    """
    slack = APART * deviation  # the most by which the difference of two logits may be off
    n_above_surely = torch.searchsorted(-ordered, -ordered - slack)  # tokens that are more probable by any rounding
    n_above_perhaps = torch.searchsorted(-ordered, -ordered + slack, right=True) - 1  # all others that may be
    possible = -ordered <= slack + NEVER
    sure, edge = possible, torch.full((len(ordered), 2), torch.nan, dtype=torch.float64)
    if sampling.top_k:
        sure, possible = sure & (n_above_perhaps < sampling.top_k), possible & (n_above_surely < sampling.top_k)
        edge = _edge_of_top_k(ordered, slack, sure, possible, sampling.top_k)
        edge = edge.masked_fill(deviation > RESOLVED, torch.nan)
    if sampling.top_p < 1:
        edge = torch.full_like(edge, torch.nan)
        lowest, highest = _mass_above(ordered, slack, n_above_surely, n_above_perhaps, total, sampling.top_k)
        sure = sure & (highest < sampling.top_p - MASS_ERROR)
        possible = possible & (lowest < sampling.top_p + MASS_ERROR)
    return Kept(sure, possible, edge)


def _edge_of_top_k(ordered: Tensor, slack: Tensor, sure: Tensor, possible: Tensor, top_k: int) -> Tensor:
    """Return the bounds of the probability of the tokens that may be kept.  -> (n, 2)

    Top-k keeps k tokens, so beside those that are surely kept a known number of the others: at the least the smallest
    ones, at the most the largest. sure, possible: in the order of the probabilities, where each is a beginning.
    """
    up_to = torch.nn.functional.pad(ordered.exp().cumsum(-1), (1, 0))  # (n, m + 1), the mass of the first i tokens
    n_sure, n_possible = (mask.sum(-1, keepdim=True) for mask in (sure, possible))  # (n, 1)
    n_others = (n_possible.clamp(max=top_k) - n_sure).clamp(min=0)
    certain = up_to.gather(-1, n_sure)
    least = (up_to.gather(-1, n_possible) - up_to.gather(-1, n_possible - n_others)) / slack.exp()
    most = (up_to.gather(-1, n_sure + n_others) - certain) * slack.exp()
    edge = torch.cat([least / (certain + least), most / (certain + most)], dim=-1)
    return edge.masked_fill(n_others == 0, torch.nan)


def _mass_above(
    ordered: Tensor, slack: Tensor, n_above_surely: Tensor, n_above_perhaps: Tensor, total: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """Return the bounds of the probability of all tokens that stand before each one in the order of top-p. (n, m),
    twice

    Probabilities are those after top-k.
    """
    weights, factor = ordered.exp(), slack.exp()
    up_to = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))  # (n, m + 1), the mass of the first i tokens
    most = least = total
    if top_k:
        most, least = (up_to.gather(-1, (n < top_k).sum(-1, keepdim=True)) for n in (n_above_surely, n_above_perhaps))
    above = up_to.gather(-1, n_above_surely)
    lowest = above / (above + (most - above).clamp(min=0) * factor)
    through = up_to.gather(-1, n_above_perhaps + 1)  # the token itself is among these
    above, below = through - weights, weights + (least - through).clamp(min=0)
    highest = above * factor / (above * factor + below)
    return lowest, highest
