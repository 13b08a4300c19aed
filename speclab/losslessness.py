"""Is the output the target's own? Two judgements, whose references are passes without any cache.

Greedy output must equal the baseline's token for token. Where it does not, floating point may be to blame: a pass of
width k + 1 rounds differently from k + 1 passes of width 1. `judge_divergence` looks at the first difference and says
"numerical" or "bug".

Sampled output has no baseline to equal. `z_statistics` tests each emitted token against the target's distribution at
its place; the sums are martingales, so the tokens need not be independent.
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.cached_model import CachedModel
from speclab.sampling import Sampling

Z_BOUND = 4.9  # two-sided false-alarm rate 1e-6 for one statistic


class Divergence(NamedTuple):
    """The first place where greedy output leaves the baseline."""

    position: int  # index of the new token, from 0
    baseline_token: int
    speculative_token: int
    gap: float  # reference logit of the baseline's token minus that of the other
    tolerance: float  # both candidates must lie this close to the reference's top logit
    numerical: bool


@torch.inference_mode()
def judge_divergence(
    target: CachedModel, prompt: list[int], baseline: list[int], speculative: list[int], width: int
) -> Divergence | None:
    """None when the outputs agree. `width` is k + 1, the widest verification pass.

    Reference: a float32 pass of the plain model over the common prefix. Tolerance: twice the larger of the difference
    that pass widths alone make in the engine and dtype of the run, and one unit in the last place of that dtype at the
    top logit.
    """
    model = target.model
    pairs = list(zip(baseline, speculative, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        if len(baseline) == len(speculative):
            return None
        return Divergence(len(pairs), -1, -1, math.inf, 0.0, False)  # one stopped early: never rounding
    ours, theirs = pairs[position]
    prefix = prompt + baseline[:position]
    narrow = _last_logits(target, prefix, len(prompt), 1)
    wide = _last_logits(target, prefix, len(prompt), width)
    reference_model = model if model.dtype in (torch.float32, torch.float64) else copy.deepcopy(model).float()
    reference = (
        reference_model(torch.tensor([prefix], device=model.device), use_cache=False).logits[0, -1].cpu().double()
    )
    top = reference.max().item()
    unit = torch.finfo(model.dtype).eps * 2 ** math.floor(math.log2(max(abs(top), 1e-30)))
    tolerance = 2 * max((wide - narrow).abs().max().item(), unit)
    close = all(top - reference[token].item() <= tolerance for token in (ours, theirs))
    gap = (reference[ours] - reference[theirs]).item()
    return Divergence(position, ours, theirs, gap, tolerance, close)


def _last_logits(target: CachedModel, prefix: list[int], n_prompt: int, width: int) -> Tensor:
    """Logits after `prefix`, its cache built as a decoder with passes of `width` builds it.  -> (vocab,)"""
    cached = copy.deepcopy(target)  # a cache of its own
    ids = torch.tensor([prefix], device=cached.device)
    logits, row = cached.start(ids[:, :n_prompt]), -1
    for start in range(n_prompt, len(prefix), width):
        block = ids[:, start : start + width]
        row = block.shape[1] - 1
        # The last block too is as wide as the pass it stands for; the mask is causal, so the filler is never seen.
        logits = cached.feed(torch.nn.functional.pad(block, (0, width - block.shape[1])))
    return logits[0, row].cpu().double()


class ZStatistics(NamedTuple):
    """Standard normal when the output follows the target's distribution."""

    residual: float  # z_S: tokens the draft likes more than the target does, seen against expected
    surprise: float  # z_L: -ln p of the tokens against the entropy
    n_tokens: int

    @property
    def passed(self) -> bool:
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
        liked = q > p  # where a draft that is too easily believed shows
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
    """Distribution at the place of each of `tokens`, from one uncached pass.  -> (n, vocab), on the CPU"""
    ids = torch.tensor([prompt + tokens[:-1]], device=model.device)
    logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 :, :vocab_size]
    return sampling.probs(logits).cpu()
