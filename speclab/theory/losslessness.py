"""Is the output the target's own? Two judgements, whose references are passes without any cache.

Greedy output must equal the baseline's token for token. Where it does not, floating point may be to blame: a pass of
width k + 1 rounds differently from k + 1 passes of width 1. `judge_divergence` looks at the first difference and tells
rounding from a bug.

Sampled output has no baseline to equal. `ZSums` tests each emitted token against the target's distribution at
its place; the sums are martingales, so the tokens need not be independent.
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

FLOOR = 2  # rounding units of error that are always granted
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
    The error is what the run's dtype changes in the uncached logits there, at least FLOOR rounding units
    (speclab/models/rounding.py), and no cache has a part in it: a broken cache cannot widen its own bound.
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
    error = max(rounding.differences(own.double(), right).max().item(), FLOOR * rounding.rounding_unit(own))
    tolerance = 2 * error
    top = right.max().item()
    close = all(top - right[i].item() <= tolerance for i in (expected, token))
    return Divergence(position, expected, token, (right[expected] - right[token]).item(), tolerance, close)


class ZStatistics(NamedTuple):
    """Standard normal when the output follows the target's distribution."""

    residual: float  # z_S: emitted tokens that are more probable for the draft, against the number expected
    surprise: float  # z_L: -ln p of the tokens against the entropy
    n_tokens: int

    @property
    def passed(self) -> bool:
        """Whether both lie within Z_BOUND."""
        return abs(self.residual) < Z_BOUND and abs(self.surprise) < Z_BOUND


class ZSums:
    """Adds up the two martingales over texts."""

    def __init__(self) -> None:
        self._residual = self._residual_variance = 0.0
        self._surprise = self._surprise_variance = 0.0
        self._n = 0

    def add(self, tokens: Tensor, target_probs: Tensor, draft_probs: Tensor) -> None:
        """tokens (n,); target_probs and draft_probs (n, vocab): the distributions at each token's place.

        `draft_probs` may be anything fixed by the text before the token; it only chooses where to look. A token of
        target probability 0 makes z_L infinite, as it should.
        """
        p, q = target_probs.double(), draft_probs.double()
        liked = q > p  # an accept rule that keeps the draft's tokens too often shows here
        here = torch.arange(len(tokens))
        expected = (p * liked).sum(-1)
        self._residual += (liked[here, tokens].double() - expected).sum().item()
        self._residual_variance += (expected * (1 - expected)).clamp(min=0).sum().item()
        log_p = torch.where(p > 0, p, 1.0).log()
        entropy = -(p * log_p).sum(-1)
        variance = (p * log_p**2).sum(-1) - entropy**2
        self._surprise += (-p[here, tokens].log() - entropy).sum().item()
        self._surprise_variance += variance.clamp(min=0).sum().item()
        self._n += len(tokens)

    def result(self) -> ZStatistics:
        """Both statistics; 0 where nothing varied."""

        def z(total: float, variance: float) -> float:
            return total / math.sqrt(variance) if variance > 1e-12 else (math.inf if abs(total) > 1e-6 else 0.0)

        return ZStatistics(
            z(self._residual, self._residual_variance), z(self._surprise, self._surprise_variance), self._n
        )


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
