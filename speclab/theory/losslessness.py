"""Is the output the target's own? Two judgements, whose references are passes without any cache.

Greedy output must equal the baseline's token for token. Where it does not, floating point may be to blame: a pass of
width k + 1 rounds differently from k + 1 of width 1. `judge_divergence` tells rounding from a bug.

Sampled output has no baseline to equal. `z_statistics` tests each emitted token against the target's distribution at
its place; the sums are martingales, so the tokens need not be independent. A decoder and its judge compute the same
logits in passes of different widths, so near the edge of top-k and top-p their filters may keep different tokens.
`kept` says which tokens are kept whatever the rounding. The tests are about these alone, and tokens at the edge are
left out of them. Which ones these are depends on the text before the token, never on which token was drawn.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.sampling import Sampling
from speclab.models.checks import Reference

Z_BOUND = 4.9  # two-sided false-alarm rate 1e-6 for one statistic
CHUNK = 32  # places at a time
RESOLVED = 0.25  # standard deviation of ln p by rounding; less moves no statistic of a thousand tokens by 0.5
APART = 8  # the difference of two logits is off by fewer standard deviations of one logit's rounding than this
NEVER = 40.0  # a token that is e^40 times less probable than the most probable one is not drawn
MASS_ERROR = 64 * torch.finfo(torch.float32).eps  # the rounding error of a sum of float32 probabilities

# Of n places: the tokens, (n,), the target's distribution and the draft's, which chooses where to look, and the tokens
# that may be emitted, (n, vocab) each. They follow from the text before each place alone.
Places = tuple[Tensor, Tensor, Tensor, Tensor]


class Divergence(NamedTuple):
    """The first place where greedy output leaves the baseline."""

    position: int  # index of the new token, from 0
    baseline_token: int
    speculative_token: int
    gap: float  # reference logit of the baseline's token minus that of the other
    numerical: bool  # both tokens' logits lie so near the reference's top logit that rounding explains it


def judge_divergence(
    reference: Reference, prompt: list[int], baseline: list[int], speculative: list[int], vocab_size: int
) -> Divergence | None:
    """Judge the first difference of two greedy texts: is it rounding or a bug? None when they agree.

    vocab_size: ids above it are never emitted, so they do not count.
    """
    pairs = enumerate(zip_longest(baseline, speculative, fillvalue=-1))
    if (first := next(((i, *pair) for i, pair in pairs if pair[0] != pair[1]), None)) is None:
        return None
    position, expected, token = first
    if -1 in (expected, token):
        return Divergence(position, -1, -1, math.inf, False)  # one stopped early: never rounding
    right, deviation = (rows[-1] for rows in reference.with_deviations(prompt, baseline[:position], vocab_size))
    off = [right.max().item() - right[i].item() for i in (expected, token)]
    return Divergence(position, expected, token, off[1] - off[0], max(off) <= APART * deviation.item())


class ZStatistics(NamedTuple):
    """Two statistics that are standard normal where the output follows the target's distribution."""

    residual: float  # z_S: emitted tokens that are more probable for the draft, against the number expected
    surprise: float  # z_L: -ln p of the tokens against the entropy; infinite where an impossible token was emitted
    n_tokens: int  # tokens that were looked at
    n_uncertain: int  # of these, tokens whose probability rounding decides

    @property
    def passed(self) -> bool:
        return all(abs(z) < Z_BOUND for z in (self.residual, self.surprise))


def z_statistics(places: Iterable[Places]) -> ZStatistics:
    """Add up two martingales over texts, with the variance and the third central moment that they have by chance.

    A token that is not possible makes z_L infinite. Rounding decides whether a filter keeps a possible token of
    probability 0: it is counted, but not tested.
    """
    sums, n_tokens, n_uncertain = torch.zeros(2, 3, dtype=torch.float64), 0, 0  # (residual and surprise, moments)
    for tokens, target_probs, draft_probs, possible in places:
        probs, at = target_probs.double(), tokens[:, None]
        surprises = torch.where(probs > 0, -probs.log(), 0.0)
        values = torch.stack([(draft_probs > probs).double(), surprises])  # (2, n, vocab)
        mean = (probs * values).sum(-1)  # (2, n)
        above = values - mean[..., None]
        emitted = values.gather(-1, at.expand(2, -1, 1))[..., 0]
        moments = [emitted - mean, (probs * above**2).sum(-1), (probs * above**3).sum(-1)]
        tested, is_possible = probs.gather(-1, at)[:, 0] > 0, possible.gather(-1, at)[:, 0]
        sums += torch.stack(moments, dim=-1)[:, tested].sum(1)  # of (2, n, 3)
        sums[1, 0] += torch.where(is_possible, 0.0, torch.inf).sum()
        n_tokens, n_uncertain = n_tokens + len(tokens), n_uncertain + int((is_possible & ~tested).sum())
    residual, surprise = (z_of(*moments) for moments in sums.tolist())
    return ZStatistics(residual, surprise, n_tokens, n_uncertain)


def z_of(total: float, variance: float, third: float) -> float:
    """Return a nearly standard normal number, also where rare events make a sum skewed; 0 where nothing varied.

    It solves z = w + skewness * (w^2 - 1) / 6, the Cornish-Fisher expansion, for w (Hall 1992). Of a Poisson variable
    it lies beyond 4.9 with a probability of at most 5e-7 on either side, whether 0.01 or 1,000 events are expected.
    """
    if variance <= 1e-12 or math.isinf(total):
        return math.copysign(math.inf, total) if abs(total) > 1e-6 else 0.0
    z, skewness = total / math.sqrt(variance), third / variance**1.5
    if abs(skewness) < 1e-6:
        return z
    return 3 / skewness * (math.sqrt(max(1 + 2 * skewness / 3 * (z + skewness / 6), 0.0)) - 1)


def known_law(
    reference: Reference, prompt: list[int], tokens: list[int], sampling: Sampling, vocab_size: int, draft_probs: Tensor
) -> Iterator[Places]:
    """Return a few places of a text at a time, from uncached passes. The temperature must be above 0. The target's
    distribution is that among the tokens that the filters keep whatever the rounding."""
    whole = torch.tensor(tokens), *reference.with_deviations(prompt, tokens[:-1], vocab_size), draft_probs
    for ids, logits, deviations, drafted in zip(*(one.split(CHUNK) for one in whole), strict=True):
        sure, possible = kept(logits, deviations, sampling)
        scaled = logits.double() / sampling.temperature
        yield ids, scaled.masked_fill(~sure, -torch.inf).softmax(-1).nan_to_num(0.0), drafted, possible


def kept(logits: Tensor, deviation: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the tokens that top-k and top-p keep whatever the rounding, and those that they may keep, (n, vocab) of
    bool each. Where rounding is too coarse at this temperature (`RESOLVED`), no token is surely kept.

    logits (n, vocab); deviation (n,), the standard deviation of a logit's rounding. The temperature must be above 0.
    """
    ordered, order = (logits.double() / sampling.temperature).sort(-1, descending=True)
    ordered = ordered - ordered[:, :1]
    deviation = deviation.double()[:, None] / sampling.temperature
    slack = APART * deviation  # the most by which the difference of two logits may be off
    n = min(sampling.top_k or ordered.shape[-1], ordered.shape[-1])
    next_one = torch.nn.functional.pad(ordered, (0, 1), value=-torch.inf)[:, n : n + 1]
    possible = (ordered >= -slack - NEVER) & (ordered >= ordered[:, n - 1 : n] - slack)
    sure = possible & (deviation <= RESOLVED) & (ordered - slack > next_one)
    if sampling.top_p < 1:
        # The share of the tokens before each one, after top-k, with all logits off at their worst.
        weights, worst = ordered.exp().where(torch.arange(ordered.shape[-1]) < n, 0.0), slack.exp()
        up_to = torch.nn.functional.pad((weights / weights.sum(-1, keepdim=True)).cumsum(-1), (1, 0))  # (n, vocab + 1)
        surely = up_to.gather(-1, torch.searchsorted(-ordered, -ordered - slack))  # of those above by any rounding
        perhaps = up_to.gather(-1, torch.searchsorted(-ordered, -ordered + slack, right=True)) - up_to.diff(dim=-1)
        sure = sure & (perhaps / (perhaps + (1 - perhaps) / worst) < sampling.top_p - MASS_ERROR)
        possible = possible & (surely / (surely + (1 - surely) * worst) < sampling.top_p + MASS_ERROR)
    back = torch.zeros(order.shape, dtype=torch.bool)
    return back.scatter(-1, order, sure), back.scatter(-1, order, possible)
