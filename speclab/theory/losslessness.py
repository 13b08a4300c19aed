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
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.core.sampling import Sampling
from speclab.models import rounding
from speclab.models.cached import CachedModel
from speclab.models.rounding import Reference
from speclab.models.uncached import logits_after
from speclab.theory import filters

Z_BOUND = 4.9  # two-sided false-alarm rate 1e-6 for one statistic


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
    """Rounding or a bug? Judges the first difference of two greedy texts. None when they agree.

    Numerical: both candidates lie within twice the rounding error of the reference's top logit on the common prefix.
    The error is what the run's dtype changes in the uncached logits there, at least two rounding units
    (`row_errors` in speclab/models/rounding.py), and no cache has a part in it: a broken cache cannot widen its own
    bound.
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
    """Standard normal when the output follows the target's distribution."""

    residual: float  # z_S: emitted tokens that are more probable for the draft, against the number expected
    surprise: float  # z_L: -ln p of the tokens against the entropy; infinite where an impossible token was emitted
    edge: float  # z_E: tokens at the edge of the filters, against the number expected
    n_tokens: int  # tokens that were looked at
    n_uncertain: int = 0  # of these, tokens of which rounding decides whether a filter keeps them

    @property
    def passed(self) -> bool:
        """Whether all lie within Z_BOUND."""
        return all(abs(z) < Z_BOUND for z in (self.residual, self.surprise, self.edge))


class Places:
    """What is tested at some places of texts; it follows from the text before each place alone.

    target_probs and draft_probs: (n, vocab), the distributions at each place. `draft_probs` may be anything fixed by
    the text before the token; it only chooses where to look. possible: (n, vocab) of bool, the tokens that may be
    emitted; where it is not given, those of a target probability above 0. A possible token of probability 0 is one of
    which rounding decides whether a filter keeps it; `target_probs` is then the distribution given that the token is
    one of the others. edge: (n, 2), bounds of the probability of all those tokens, NaN where they are not known.
    """

    def __init__(
        self, target_probs: Tensor, draft_probs: Tensor, possible: Tensor | None = None, edge: Tensor | None = None
    ):
        p, q = target_probs.double(), draft_probs.double()
        self.probs, self.possible = p, p > 0 if possible is None else possible
        self.liked = q > p  # an accept rule that keeps the draft's tokens too often shows here
        self.liked_mass = (p * self.liked).sum(-1)
        log_p = torch.where(p > 0, p, 1.0).log()
        self.entropy = -(p * log_p).sum(-1)
        self.variance = ((p * log_p**2).sum(-1) - self.entropy**2).clamp(min=0)
        # The edge of a filter: the tokens that may be kept, or the least probable one of several that are.
        chance, least = torch.where(p > 0, p, 2.0).min(-1)
        chance = chance.where((p > 0).sum(-1) > 1, 0.0)
        alone = torch.zeros_like(self.possible).scatter(-1, least[:, None], (chance > 0)[:, None])
        self.edge_chance = chance[:, None].expand(-1, 2) if edge is None else edge.where(~edge.isnan(), chance[:, None])
        known = torch.zeros(len(p), 1, dtype=torch.bool) if edge is None else ~edge[:, :1].isnan()
        self.of_edge = torch.where(known, self.possible & (p == 0), alone)
        self.given_all = known[:, 0]  # whether the edge's chance is that of every token, not given the surely kept ones


class ZSums:
    """Adds up three martingales over texts."""

    def __init__(self) -> None:
        self._residual = self._residual_variance = 0.0
        self._surprise = self._surprise_variance = 0.0
        self._n_at_edge, self._least_at_edge, self._most_at_edge = 0.0, 0.0, 0.0
        self._n = self._n_uncertain = 0

    def add(self, tokens: Tensor, places: Places) -> None:
        """Count (n,) tokens, one at each of the places.

        For tokens of which rounding decides whether a filter keeps them, only their number is tested. One that is not
        possible makes z_L infinite, as it should.
        """
        here = torch.arange(len(tokens))
        prob = places.probs[here, tokens]
        tested = (prob > 0) | ~places.possible[here, tokens]

        def total(values: Tensor) -> float:
            return values[tested].sum().item()

        self._n += len(tokens)
        self._n_uncertain += len(tokens) - int(tested.sum())
        self._residual += total(places.liked[here, tokens].double() - places.liked_mass)
        self._residual_variance += total((places.liked_mass * (1 - places.liked_mass)).clamp(min=0))
        self._surprise += total(-prob.log() - places.entropy)
        self._surprise_variance += total(places.variance)
        looked_at = tested | places.given_all
        self._n_at_edge += int(places.of_edge[here, tokens][looked_at].sum())
        least, most = places.edge_chance[looked_at].sum(0).tolist()
        self._least_at_edge += least
        self._most_at_edge += most

    def result(self) -> ZStatistics:
        """All statistics; 0 where nothing varied."""

        def z(total: float, variance: float) -> float:
            return total / math.sqrt(variance) if variance > 1e-12 else (math.inf if abs(total) > 1e-6 else 0.0)

        residual, surprise = z(self._residual, self._residual_variance), z(self._surprise, self._surprise_variance)
        expected = min(max(self._n_at_edge, self._least_at_edge), self._most_at_edge)
        return ZStatistics(residual, surprise, _rare(self._n_at_edge, expected), self._n, self._n_uncertain)


def _rare(n: float, expected: float) -> float:
    """How surprising it is to see a rare event `n` times: the signed root of a Poisson variable's deviance.

    Near a standard normal variable also where few are expected, for which (n - expected) / sqrt(expected) is not. A sum
    of independent rare events varies a little less than a Poisson variable, so the false alarms are fewer than stated.
    """
    if expected <= 0:
        return 0.0
    deviance = 2 * ((n * math.log(n / expected) if n else 0.0) - (n - expected))
    return math.copysign(math.sqrt(max(deviance, 0.0)), n - expected)


def known_law(
    reference: Reference,
    prompt: list[int],
    tokens: list[int],
    sampling: Sampling,
    vocab_size: int,
    draft_probs: Tensor,
) -> Places:
    """What is known of the target's distribution at the place of each of `tokens`, from uncached passes.

    It is the distribution among the tokens that the filters keep whatever the rounding, and the tokens that may be
    kept. draft_probs: (n, vocab_size), see `Places`. Temperature above 0.
    """
    before, text = (torch.tensor([ids], dtype=torch.long) for ids in (prompt, tokens[:-1]))
    logits, errors = reference.with_errors(before, text, vocab_size)
    sure, possible, edge = filters.kept(logits, errors, sampling)
    scaled = logits.double() / sampling.temperature
    probs = scaled.masked_fill(~sure, -torch.inf).softmax(-1).nan_to_num(0.0)
    return Places(probs, draft_probs, possible, edge)


@torch.inference_mode()
def distributions(
    model: PreTrainedModel, prompt: list[int], tokens: list[int], sampling: Sampling, vocab_size: int
) -> Tensor:
    """Distribution at the place of each of `tokens`, from one uncached pass.  -> (n, vocab_size), on the CPU

    A draft model may lack some ids and positions. Ids that it lacks have probability 0, and so has everything after
    its context; what it is fed instead of an id that it lacks is what CachedModel feeds it.
    """
    cached = CachedModel(model, vocab_size)
    n_before = cached.room.length_after(len(prompt))
    n = len(tokens) if cached.max_length is None else min(len(tokens), cached.max_length - n_before + 1)
    parts = (torch.tensor([ids], dtype=torch.long, device=model.device) for ids in (prompt, tokens[: n - 1]))
    before, text = map(cached.replace_unknown, parts)
    logits = logits_after(model, before, text)[0, :, : cached.vocab_size]
    probs = sampling.probs(logits).cpu()  # (n, ids that the model has)
    return torch.nn.functional.pad(probs, (0, vocab_size - probs.shape[1], 0, len(tokens) - n))
