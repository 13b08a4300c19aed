"""How far may two computations of the same logits lie apart by rounding alone?

One rounding unit is eps(dtype) * max|logit|. Passes of other widths add the same numbers in another order, so their
logits differ by some units: in small models by 3 to 10 in float32 and float64, and by 0.5 to 3 in bfloat16, whose sums
are taken in float32. Each layer adds rounding, and a trained model may enlarge it at some places of a text: SmolLM2
(30 layers) differs by 85 units at one token of 24, and by 10 at the others. So `bound` grants a number of units for
each layer in float32 and float64. A model that is wrong is off by a good part of its largest logit.
"""

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from speclab.models.checking.uncached import logits_after
from speclab.models.memory import USABLE, free_memory
from speclab.models.outside.placement import why_eager

UNITS = {torch.float64: 64, torch.float32: 64}  # rounding units that are allowed between two right computations
HALF_WIDTH_UNITS = 16  # the same for bfloat16 and float16, whatever the depth
FLOOR = 2  # units that are always granted to a logit, also where a computation in higher precision found fewer
LIKELY = 64  # the number of a row's most probable tokens whose rounding is looked at
LEAST_DEVIATION = 0.3  # standard deviation of the rounding to the next number of a dtype, in units of that logit
USUAL_DEVIATION = 0.4  # the same for logits in bfloat16 and float16, where no higher precision is known


def rounding_unit(logits: Tensor) -> float:
    """Return the unit eps(dtype) * max|logit|, of logits that do not stand for "never this token"."""
    real = logits.abs()[_real(logits)]
    return torch.finfo(logits.dtype).eps * (real.max().item() if real.numel() else 0.0)


def bound(logits: Tensor, n_layers: int = 1) -> float:
    """Return the largest difference from these logits that rounding explains, in a model with so many layers."""
    return _units(logits.dtype, n_layers) * rounding_unit(logits)


def bound_in_words(dtype: torch.dtype, n_layers: int) -> str:
    """Return the formula with its numbers, for messages."""
    return f"{_units(dtype, n_layers)} * eps({str(dtype).removeprefix('torch.')}) * max|logit|"


def _units(dtype: torch.dtype, n_layers: int) -> int:
    return UNITS[dtype] * n_layers if dtype in UNITS else HALF_WIDTH_UNITS


def row_errors(own: Tensor, right: Tensor) -> Tensor:
    """Return the most that a logit of each row may be off: what higher precision changes there, at least FLOOR units.
    own: logits in the run's dtype, (n, vocab); right: the same in higher precision -> (n,)"""
    floors = torch.tensor([FLOOR * rounding_unit(row) for row in own], dtype=torch.float64)
    return torch.maximum(differences(own.double(), right.double()).where(_real(own), 0.0).amax(-1), floors)


def _deviations(own: Tensor, right: Tensor) -> Tensor:
    """Return the standard deviation of the rounding of each row's most probable logits.  (n, vocab), twice -> (n,). An
    error that is the same in all logits of a row changes no probability, so it does not count."""
    likely = right.masked_fill(~_real(own), -torch.inf).topk(min(LIKELY, right.shape[-1])).indices
    largest = own.double().gather(-1, likely[:, :1]).abs()[:, 0]
    off = (own.double() - right.double()).where(_real(own), 0.0).gather(-1, likely)
    return torch.maximum(off.std(-1, correction=0), LEAST_DEVIATION * torch.finfo(own.dtype).eps * largest)


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
    """A model's uncached logits, in its own dtype and in the next higher precision. The copy in higher precision is
    made when it is first asked for, on the model's device or in main memory. Where neither has room for it the model's
    own logits stand for it."""

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._higher: PreTrainedModel | None = None

    def logits(self, prompt: Tensor, text: Tensor, vocab_size: int, n_last: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits after the prompt and after each token of the text: in the model's dtype, and in higher
        precision. n_last: only those of the last rows.  (1, n) and (1, m) ids -> (m + 1, vocab_size) on the CPU, twice
        """
        if self._higher is None:
            self._higher = _in_higher_precision(self._model) or self._model
        own = _logits_of(self._model, prompt, text, vocab_size, n_last)
        try:
            higher = _logits_of(self._higher, prompt, text, vocab_size, n_last)
        except RuntimeError:  # a kernel of this model has no such precision
            self._higher, higher = self._model, own
        return own, higher.double()

    def with_deviations(self, prompt: Tensor, text: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return the best known logits after the prompt and each token of the text, and the standard deviation of the
        rounding of the run's logits.  (1, n) and (1, m) ids -> (m + 1, vocab_size) and (m + 1,), on the CPU

        In bfloat16 and float16 the copy in higher precision tells both. In float32 and float64 the model's own logits
        are good enough, with a part of the bound of one layer, and no copy is made.
        """
        if self._model.dtype in UNITS:
            own = _logits_of(self._model, prompt, text, vocab_size)
            return own, torch.tensor([bound(row) / 4 for row in own], dtype=torch.float64)
        own, right = self.logits(prompt, text, vocab_size)
        if self._higher is not self._model:
            return right, _deviations(own, right)
        units_of_rows = torch.finfo(own.dtype).eps * own.double().amax(-1).abs()
        return own, USUAL_DEVIATION * units_of_rows


@torch.inference_mode()
def _logits_of(
    model: PreTrainedModel, prompt: Tensor, text: Tensor, vocab_size: int, n_last: int | None = None
) -> Tensor:
    logits = logits_after(model, prompt.to(model.device), text.to(model.device), n_last)[0, :, :vocab_size]
    return logits[-(n_last or 0) :].cpu()


def _in_higher_precision(model: PreTrainedModel) -> PreTrainedModel | None:
    """Return a copy in float64 of a model in float32, in float32 of one in bfloat16 or float16; None where there is no
    such precision, or no room."""
    wider = torch.float64 if model.dtype in UNITS else torch.float32
    n_bytes = wider.itemsize * sum(p.numel() for p in model.parameters())
    places = [place for place in (model.device, torch.device("cpu")) if (place.type, wider) != ("mps", torch.float64)]
    places = [place for place in places if (free := free_memory(place)) is None or n_bytes <= USABLE * free]
    if why_eager(model) or model.dtype == torch.float64 or not places:
        return None

    def copied(tensor: Tensor) -> Tensor:
        return tensor.detach().to(places[0], wider if tensor.is_floating_point() else None, copy=True)

    made: dict[int, Any] = {id(p): nn.Parameter(copied(p), requires_grad=False) for p in model.parameters()}
    higher = copy.deepcopy(model, made | {id(b): copied(b) for b in model.buffers()})
    with contextlib.suppress(AttributeError, ValueError):  # the fast kernels for experts have no float64
        higher.set_experts_implementation("eager")
    return higher
