"""The logits of a text without any cache, and how far two computations of them may lie apart by rounding alone.

One rounding unit is eps(dtype) * max|logit|. Passes of other widths add the same numbers in another order, so their
logits differ by some units: in small models by 3 to 10 in float32 and float64, and by 0.5 to 3 in bfloat16, whose sums
are taken in float32. Each layer adds rounding: SmolLM2 (30 layers) differs by 85 units at one token of 24. So `bound`
grants units for each layer in float32 and float64. A model that is wrong is off by a good part of its largest logit.

In bfloat16 that bound is too wide to tell whether two tokens are nearly tied: there a copy of the model in float32
tells what rounding has changed. No cache has a part in it: a broken one cannot widen its own bound.
"""

import copy
import functools

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.models.family import family_of
from speclab.models.memory import USABLE, free_memory, why_eager

UNITS = {torch.float64: 64, torch.float32: 64}  # rounding units for each layer, between two right computations
HALF_WIDTH_UNITS = 16  # the same for bfloat16 and float16, whatever the depth
LIKELY = 64  # most probable tokens of a row, whose rounding is looked at
LEAST_DEVIATION = 0.3  # standard deviation of the rounding to the next number of a dtype, in units of that logit
USUAL_DEVIATION = 0.5  # the same for logits in bfloat16 and float16, where no float32 copy tells


def bound(logits: Tensor, n_layers: int = 1) -> float:
    """Return the largest difference from these logits that rounding explains, in a model with so many layers. Logits
    that stand for "never this token" have no part in it."""
    real = logits.abs()[_real(logits)]
    unit = torch.finfo(logits.dtype).eps * (real.max().item() if real.numel() else 0.0)
    return unit * (UNITS[logits.dtype] * n_layers if logits.dtype in UNITS else HALF_WIDTH_UNITS)


def _real(logits: Tensor) -> Tensor:
    """Return a mask of the logits that do not stand for "never this token" (the dtype's lowest number, -infinity)."""
    return logits.abs() < torch.finfo(logits.dtype).max / 2


def spread(logits: Tensor) -> float:
    """Return the largest real logit minus the smallest one, of (..., n, vocab) in the median row."""
    real = _real(logits)
    highest = logits.masked_fill(~real, -torch.inf).amax(-1)
    lowest = logits.masked_fill(~real, torch.inf).amin(-1)
    return (highest - lowest).flatten().median().item()


def differences(logits: Tensor, right: Tensor) -> Tensor:
    """Return the absolute differences of two logits. They are 0 where both are equal, also where both are -infinity."""
    return torch.where(logits == right, 0.0, (logits - right).abs())


class Reference:
    """A model's uncached logits, and for bfloat16 and float16 the same in float32: from `higher`, or from a copy of the
    model, made when it is first asked for. Where memory has no room for it the model's own logits stand for it."""

    def __init__(self, model: PreTrainedModel, higher: PreTrainedModel | None = None):
        self._model = model
        if higher is not None:
            self._higher = higher

    @functools.cached_property
    def _higher(self) -> PreTrainedModel:
        n_bytes = 6 * sum(p.numel() for p in self._model.parameters())  # in both dtypes, while it is made
        free = free_memory(self._model.device)
        if self._model.dtype in UNITS or why_eager(self._model) or (free is not None and n_bytes > USABLE * free):
            return self._model
        return copy.deepcopy(self._model).float()

    def with_deviations(self, prompt: list[int], text: list[int], vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return the best known logits after the prompt and after each token of the text, and the standard deviation of
        the run's rounding: in float32 and float64 a part of the bound of one layer, and where no copy tells a constant
        number of units.  n and m ids -> (m + 1, vocab_size) and (m + 1,), on the CPU"""
        before, after = (torch.tensor([ids], dtype=torch.long, device=self._model.device) for ids in (prompt, text))

        @torch.inference_mode()
        def logits(model: PreTrainedModel) -> Tensor:
            return family_of(model).logits_after(model, before, after)[0, :, :vocab_size].cpu()

        own = logits(self._model)
        if own.dtype in UNITS:
            return own, torch.tensor([bound(row) / 4 for row in own], dtype=torch.float64)
        if self._higher is self._model:
            right = own.double()
            return right, USUAL_DEVIATION * torch.finfo(own.dtype).eps * right.amax(-1).abs()
        right = logits(self._higher).double()
        return right, deviations(own, right)


def deviations(own: Tensor, right: Tensor) -> Tensor:
    """Return the standard deviation of the rounding of each row's most probable logits.  (n, vocab), twice -> (n,). An
    error that is the same in all logits of a row changes no probability, so it does not count."""
    likely = right.masked_fill(~_real(own), -torch.inf).topk(min(LIKELY, right.shape[-1])).indices
    largest = own.double().gather(-1, likely[:, :1]).abs()[:, 0]
    off = (own.double() - right.double()).where(_real(own), 0.0).gather(-1, likely)
    return torch.maximum(off.std(-1, correction=0), LEAST_DEVIATION * torch.finfo(own.dtype).eps * largest)
