"""Is the output the target's own? Two judgements, whose references are passes without any cache.

Greedy output must equal the baseline's token for token. Where it does not, floating point may be to blame: a pass of
width k + 1 rounds differently from k + 1 passes of width 1. `judge_divergence` looks at the first difference and tells
rounding from a bug.

Sampled output has no baseline to equal. `ZSums` tests each emitted token against the target's distribution at
its place; the sums are martingales, so the tokens need not be independent. Near the edge of top-k and top-p the filters
of the decoder and of the judge may differ by rounding (speclab/theory/filters.py): `known_law` says which tokens are
kept whatever the rounding, and the tests are about these tokens alone, among which rounding changes next to nothing.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.sampling import Sampling
from speclab.models.checking import rounding
from speclab.models.checking.rounding import Reference
from speclab.theory import filters

Z_BOUND = 4.9  # two-sided false-alarm rate 1e-6 for one statistic
NOISE_THAT_COUNTS = 1e-6  # variance of ln p by rounding


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

    Numerical: both candidates lie within twice the rounding error of the reference's top logit on the common prefix.
    The error is what the run's dtype changes in the uncached logits there, at least two rounding units
    (`row_errors` in speclab/models/checking/rounding.py), and no cache has a part in it: a broken cache cannot widen
    its own bound.
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
    own, right = (rows[-1] for rows in reference.logits(before, text, vocab_size))
    tolerance = 2 * rounding.row_errors(own[None], right[None]).item()
    top = right.max().item()
    close = all(top - right[i].item() <= tolerance for i in (expected, token))
    return Divergence(position, expected, token, (right[expected] - right[token]).item(), tolerance, close)


class ZStatistics(NamedTuple):
    """Three statistics that are standard normal where the output follows the target's distribution."""

    residual: float  # z_S: emitted tokens that are more probable for the draft, against the number expected
    surprise: float  # z_L: -ln p of the tokens against the entropy; infinite where an impossible token was emitted
    edge: float  # z_E: tokens at the edge of the filters, against the number expected
    n_tokens: int  # tokens that were looked at
    n_uncertain: int = 0  # of these, tokens whose probability rounding decides

    @property
    def passed(self) -> bool:
        """Tell whether all of them lie within Z_BOUND."""
        return all(abs(z) < Z_BOUND for z in (self.residual, self.surprise, self.edge))


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
    one of the others. edge: (n, 2), bounds of the probability of all those tokens, NaN where they are not known.
    noise: (n,), the variance of ln p by rounding; None where it is next to nothing.
    """

    def __init__(
        self,
        target_probs: Tensor,
        draft_probs: Tensor,
        possible: Tensor | None = None,
        edge: Tensor | None = None,
        noise: Tensor | None = None,
    ):
        p, q = target_probs.double(), draft_probs.double()
        self.probs, self.possible = p, p > 0 if possible is None else possible
        liked = q > p  # an accept rule that keeps the draft's tokens too often shows here
        self.liked = liked
        self.liked_moments = _event_moments((p * liked).sum(-1))
        surprise = torch.where(p > 0, -p.log(), 0.0)
        entropy = (p * surprise).sum(-1)
        above = surprise - entropy[:, None]
        self.surprise_moments = Moments(entropy, (p * above**2).sum(-1), (p * above**3).sum(-1))
        if noise is not None:
            self.liked_moments = _with_noise(
                self.liked_moments, p, liked.double() - self.liked_moments.mean[:, None], noise
            )
            self.surprise_moments = _with_noise(self.surprise_moments, p, above, noise)
        # The edge of a filter: the tokens that may be kept, or the least probable one of several that are.
        chance, least = torch.where(p > 0, p, 2.0).min(-1)
        chance = chance.where((p > 0).sum(-1) > 1, 0.0)
        alone = torch.zeros_like(self.possible).scatter(-1, least[:, None], (chance > 0)[:, None])
        edge = torch.full((len(p), 2), torch.nan, dtype=p.dtype) if edge is None else edge
        known = ~edge[:, 0].isnan()
        self.edge_moments = [
            _event_moments(end.where(known, chance)) for end in edge.unbind(-1)
        ]  # if as few, or as many
        self.at_edge = torch.where(known[:, None], self.possible & (p == 0), alone)
        self.edge_known = known  # the chance of the edge is that of any token, not given that it is surely kept


def _event_moments(chance: Tensor) -> Moments:
    """Return the moments of an event with this probability, counted as 1 where it happens and 0 where not."""
    variance = (chance * (1 - chance)).clamp(min=0)
    return Moments(chance, variance, variance * (1 - 2 * chance))


def _with_noise(moments: Moments, p: Tensor, above: Tensor, noise: Tensor) -> Moments:
    """Return the moments where the run's ln p have independent errors of this variance around those of `p`, to the
    second order.

    above: (n, vocab), the number that each token has, less its mean.
    """
    squares = p * p
    return Moments(
        moments.mean - noise * (squares * above).sum(-1),
        moments.variance + noise * (squares * above**2).sum(-1),
        moments.third,
    )


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
    """Adds up three martingales over texts."""

    def __init__(self) -> None:
        self._residual, self._surprise = ZSum(), ZSum()
        self._edge = [ZSum(), ZSum()]  # if as few tokens of the edge are kept as may be, and as many
        self._n = self._n_uncertain = 0

    def add(self, tokens: Tensor, places: Places) -> None:
        """Count (n,) tokens, one at each of the places.

        Where rounding decides the probability of tokens, only the number of such tokens is tested, and only where its
        bounds are known. A token that is not possible makes z_L infinite, as it should.
        """
        here = torch.arange(len(tokens))
        prob, at_edge = places.probs[here, tokens], places.at_edge[here, tokens].double()
        tested = (prob > 0) | ~places.possible[here, tokens]
        self._n += len(tokens)
        self._n_uncertain += len(tokens) - int(tested.sum())
        self._residual.add(places.liked[here, tokens].double(), places.liked_moments, tested)
        self._surprise.add(-prob.log(), places.surprise_moments, tested)
        for z_sum, moments in zip(self._edge, places.edge_moments, strict=True):
            z_sum.add(at_edge, moments, tested | places.edge_known)

    def result(self) -> ZStatistics:
        """Return all statistics; each is 0 where nothing varied."""
        few, many = self._edge
        edge = few.z if few.total < 0 else many.z if many.total > 0 else 0.0
        return ZStatistics(self._residual.z, self._surprise.z, edge, self._n, self._n_uncertain)


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

    It is the distribution among the tokens that the filters keep whatever the rounding, and the tokens that may be
    kept.
    """
    before, text = (torch.tensor([ids], dtype=torch.long) for ids in (prompt, tokens[:-1]))
    logits, deviations = reference.with_deviations(before, text, vocab_size)
    for start in range(0, len(tokens), filters.CHUNK):
        part = slice(start, start + filters.CHUNK)
        sure, possible, edge = filters.kept(logits[part], deviations[part], sampling)
        scaled = logits[part].double() / sampling.temperature
        probs = scaled.masked_fill(~sure, -torch.inf).softmax(-1).nan_to_num(0.0)
        noise = (deviations[part] / sampling.temperature) ** 2
        coarse = noise if noise.max() > NOISE_THAT_COUNTS else None
        yield part, Places(probs, draft_probs[part], possible, edge, coarse)
