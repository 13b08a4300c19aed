"""Is the output the target's own? Two judgements, whose references are passes without any cache.

Greedy output must equal the baseline's token for token. Where it does not, floating point may be to blame: a pass of
width k + 1 rounds differently from k + 1 passes of width 1. `judge_divergence` looks at the first difference and tells
rounding from a bug.

Sampled output has no baseline to equal. `ZSums` tests each emitted token against the target's distribution at its
place; the sums are martingales, so the tokens need not be independent. A decoder and its judge compute the same logits
in passes of different widths, so near the edge of top-k and top-p their filters may keep different tokens; in bfloat16
logits are often equal, and the k-th token is then a matter of chance. `kept` says which tokens are kept whatever the
rounding. The tests are about these alone, and tokens at the edge are left out of them. Which ones these are depends on
the text before the token, never on which token was drawn.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.sampling import Sampling
from speclab.models.checking.rounding import Reference

Z_BOUND = 4.9  # two-sided false-alarm rate 1e-6 for one statistic
CHUNK = 32  # places at a time
NOISE_THAT_COUNTS = 1e-6  # variance of ln p by rounding
RESOLVED = 0.5  # the largest standard deviation of ln p by rounding that the statistics allow for
APART = 8  # the difference of two logits is off by fewer standard deviations of one logit's rounding than this
NEVER = 40.0  # a token that is e^40 times less probable than the most probable one is not drawn
MASS_ERROR = 64 * torch.finfo(torch.float32).eps  # the rounding error of a sum of float32 probabilities


class Divergence(NamedTuple):
    """The first place where greedy output leaves the baseline."""

    position: int  # index of the new token, from 0
    baseline_token: int
    speculative_token: int
    gap: float  # reference logit of the baseline's token minus that of the other
    tolerance: float  # both candidates must lie this close to the reference's top logit
    numerical: bool


def judge_divergence(
    reference: Reference, prompt: list[int], baseline: list[int], speculative: list[int], vocab_size: int
) -> Divergence | None:
    """Judge the first difference of two greedy texts: is it rounding or a bug? None when they agree.

    Numerical: both candidates lie so near the reference's top logit on the common prefix that rounding explains it
    (`Reference` in speclab/models/checking/rounding.py).
    `vocab_size`: ids above it are never emitted, so they do not count.
    """
    pairs = list(zip(baseline, speculative, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        if len(baseline) == len(speculative):
            return None
        return Divergence(len(pairs), -1, -1, math.inf, 0.0, False)  # one stopped early: never rounding
    expected, token = pairs[position]
    before, text = (torch.tensor([ids], dtype=torch.long) for ids in (prompt, baseline[:position]))
    right, deviation = (rows[-1] for rows in reference.with_deviations(before, text, vocab_size))
    tolerance = APART * deviation.item()
    top = right.max().item()
    close = all(top - right[i].item() <= tolerance for i in (expected, token))
    return Divergence(position, expected, token, (right[expected] - right[token]).item(), tolerance, close)


class ZStatistics(NamedTuple):
    """Two statistics that are standard normal where the output follows the target's distribution."""

    residual: float  # z_S: emitted tokens that are more probable for the draft, against the number expected
    surprise: float  # z_L: -ln p of the tokens against the entropy; infinite where an impossible token was emitted
    n_tokens: int  # tokens that were looked at
    n_uncertain: int = 0  # of these, tokens whose probability rounding decides

    @property
    def passed(self) -> bool:
        """Tell whether both lie within Z_BOUND."""
        return all(abs(z) < Z_BOUND for z in (self.residual, self.surprise))


class Moments(NamedTuple):
    """The mean, variance and third central moment of a number that each token has, at each of n places; (n,) each."""

    mean: Tensor
    variance: Tensor
    third: Tensor


class Places:
    """The distributions that are tested at some places of texts. They follow from the text before each place alone.

    target_probs and draft_probs: (n, vocab), the distributions at each place. `draft_probs` may be anything fixed by
    the text before the token; it only chooses where to look. possible: (n, vocab) of bool, the tokens that may be
    emitted; where it is not given, those of a target probability above 0. A possible token of probability 0 is one of
    which rounding decides whether a filter keeps it; `target_probs` is then the distribution given that the token is
    one of the others. noise: (n,), the variance of ln p by rounding; None where it is next to nothing.
    """

    def __init__(
        self, target_probs: Tensor, draft_probs: Tensor, possible: Tensor | None = None, noise: Tensor | None = None
    ):
        p, q = target_probs.double(), draft_probs.double()
        self.probs, self.possible = p, p > 0 if possible is None else possible
        self.liked = q > p  # an accept rule that keeps the draft's tokens too often shows here
        surprise = torch.where(p > 0, -p.log(), 0.0)
        self.liked_moments = _moments(p, self.liked.double(), noise)
        self.surprise_moments = _moments(p, surprise, noise)


def _moments(p: Tensor, values: Tensor, noise: Tensor | None) -> Moments:
    """Return the moments of a number that each token has, (n, vocab), under the distributions `p`.

    Where the run's ln p have independent errors of variance `noise` (n,) around those of `p`, this is to the second
    order.
    """
    mean = (p * values).sum(-1)
    above = values - mean[:, None]
    variance, third = (p * above**2).sum(-1), (p * above**3).sum(-1)
    if noise is not None:
        mean, variance = mean - noise * (p**2 * above).sum(-1), variance + noise * (p**2 * above**2).sum(-1)
    return Moments(mean, variance, third)


class ZSum:
    """The sum of a number over tokens, less its mean, together with the moments that it has by chance."""

    def __init__(self) -> None:
        self.total = self.variance = self.third = 0.0

    def add(self, values: Tensor, moments: Moments, counted: Tensor) -> None:
        """Add values (n,). counted, (n,) of bool, tells which of them are added."""
        self.total += (values - moments.mean)[counted].sum().item()
        self.variance += moments.variance[counted].sum().item()
        self.third += moments.third[counted].sum().item()

    @property
    def z(self) -> float:
        """Return a nearly standard normal number, also where rare events make the sum skewed; 0 where nothing varied.

        It solves z = w + skewness * (w^2 - 1) / 6, the Cornish-Fisher expansion, for w (Hall 1992). Of a Poisson
        variable it lies beyond 4.9 with a probability of at most 5e-7 on either side, whether 0.01 or 1,000 events are
        expected (tests/theory/test_z_statistics.py).
        """
        if self.variance <= 1e-12 or math.isinf(self.total):
            return math.copysign(math.inf, self.total) if abs(self.total) > 1e-6 else 0.0
        z, skewness = self.total / math.sqrt(self.variance), self.third / self.variance**1.5
        if abs(skewness) < 1e-6:
            return z
        return 3 / skewness * (math.sqrt(max(1 + 2 * skewness / 3 * (z + skewness / 6), 0.0)) - 1)


class ZSums:
    """Adds up two martingales over texts."""

    def __init__(self) -> None:
        self._residual, self._surprise = ZSum(), ZSum()
        self._n = self._n_uncertain = 0

    def add(self, tokens: Tensor, places: Places) -> None:
        """Count (n,) tokens, one at each of the places.

        A token whose probability rounding decides is counted, but not tested. A token that is not possible makes z_L
        infinite, as it should.
        """
        here = torch.arange(len(tokens))
        prob = places.probs[here, tokens]
        tested = (prob > 0) | ~places.possible[here, tokens]
        self._n += len(tokens)
        self._n_uncertain += len(tokens) - int(tested.sum())
        self._residual.add(places.liked[here, tokens].double(), places.liked_moments, tested)
        self._surprise.add(-prob.log(), places.surprise_moments, tested)

    def result(self) -> ZStatistics:
        """Return the statistics; each is 0 where nothing varied."""
        return ZStatistics(self._residual.z, self._surprise.z, self._n, self._n_uncertain)


def judge_text(
    sums: ZSums,
    reference: Reference,
    prompt: list[int],
    tokens: list[int],
    sampling: Sampling,
    vocab_size: int,
    draft_probs: Tensor,
) -> None:
    """Add the tokens of a text to the sums. draft_probs: (n, vocab_size), see `Places`. Temperature above 0."""
    for part, places in known_law(reference, prompt, tokens, sampling, vocab_size, draft_probs):
        sums.add(torch.tensor(tokens[part], dtype=torch.long), places)


def known_law(
    reference: Reference,
    prompt: list[int],
    tokens: list[int],
    sampling: Sampling,
    vocab_size: int,
    draft_probs: Tensor,
) -> Iterator[tuple[slice, Places]]:
    """Return the target's distribution at the places of `tokens`, as far as rounding lets it be known. It comes from
    uncached passes, a few places at a time.

    It is the distribution among the tokens that the filters keep whatever the rounding.
    """
    before, text = (torch.tensor([ids], dtype=torch.long) for ids in (prompt, tokens[:-1]))
    logits, deviations = reference.with_deviations(before, text, vocab_size)
    for start in range(0, len(tokens), CHUNK):
        part = slice(start, start + CHUNK)
        sure, possible = kept(logits[part], deviations[part], sampling)
        scaled = logits[part].double() / sampling.temperature
        probs = scaled.masked_fill(~sure, -torch.inf).softmax(-1).nan_to_num(0.0)
        noise = (deviations[part] / sampling.temperature) ** 2
        yield part, Places(probs, draft_probs[part], possible, noise if noise.max() > NOISE_THAT_COUNTS else None)


def kept(logits: Tensor, deviation: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the tokens that top-k and top-p keep whatever the rounding, and those that they may keep, (n, vocab) of
    bool each.

    logits (n, vocab); deviation (n,), the standard deviation of a logit's rounding. The temperature must be above 0.
    Where rounding is too coarse at this temperature (`RESOLVED`), no token is surely kept.
    """
    ordered, order = (logits.double() / sampling.temperature).sort(-1, descending=True)
    ordered = ordered - ordered[:, :1]
    deviation = deviation.double()[:, None] / sampling.temperature
    slack = APART * deviation  # the most by which the difference of two logits may be off
    possible = -ordered <= slack + NEVER
    sure = possible & (deviation <= RESOLVED)
    if sampling.top_k or sampling.top_p < 1:
        above_surely = torch.searchsorted(-ordered, -ordered - slack)  # tokens that are more probable by any rounding
        above_perhaps = torch.searchsorted(-ordered, -ordered + slack, right=True) - 1  # all others that may be
        top_k = sampling.top_k or ordered.shape[-1]
        within, perhaps_within = above_perhaps < top_k, above_surely < top_k  # top-k keeps them surely, or perhaps
        sure, possible = sure & within, possible & perhaps_within
        # The mass of the tokens before each one in the order of top-p, after top-k, with all logits off at their worst.
        weights, worst = ordered.exp(), slack.exp()
        up_to = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))  # (n, vocab + 1), the mass of the first i tokens
        most, least = (up_to.gather(-1, mask.sum(-1, keepdim=True)) for mask in (perhaps_within, within))
        above, through = up_to.gather(-1, above_surely), up_to.gather(-1, above_perhaps + 1)
        lowest = above / (above + (most - above).clamp(min=0) * worst)
        others = weights + (least - through).clamp(min=0)  # the token itself is among those of `through`
        highest = (through - weights) * worst / ((through - weights) * worst + others)
        if sampling.top_p < 1:
            sure = sure & (highest < sampling.top_p - MASS_ERROR)
            possible = possible & (lowest < sampling.top_p + MASS_ERROR)
    back = torch.zeros(order.shape, dtype=torch.bool)
    return back.scatter(-1, order, sure), back.scatter(-1, order, possible)
