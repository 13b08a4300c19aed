"""How far two computations of the same logits may lie apart by rounding alone.

One rounding unit is eps(dtype) * max|logit|. Passes of other widths add the same numbers in another order, so their
logits differ by some units. Measured: 3 to 10 in float32 and float64, 0.5 to 3 in bfloat16, whose sums are taken in
float32. A model that is wrong is off by a good part of its largest logit.
"""

import contextlib
import copy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.models.memory import USABLE, free_memory
from speclab.models.placement import why_eager
from speclab.models.uncached import logits_after

UNITS = {torch.float64: 64, torch.float32: 64}  # allowed between two right computations
HALF_WIDTH_UNITS = 8  # the same for bfloat16 and float16
FLOOR = 2  # units that are always granted, also where a computation in higher precision found fewer


def units(dtype: torch.dtype) -> int:
    """The factor c of the bound c * eps(dtype) * max|logit|."""
    return UNITS.get(dtype, HALF_WIDTH_UNITS)


def rounding_unit(logits: Tensor) -> float:
    """eps(dtype) * max|logit|. What stands for "never this token" (the dtype's lowest, -infinity) does not count."""
    size = logits.abs()
    real = size[size < torch.finfo(logits.dtype).max / 2]
    return torch.finfo(logits.dtype).eps * (real.max().item() if real.numel() else 0.0)


def row_errors(own: Tensor, right: Tensor) -> Tensor:
    """The most that a logit of each row may be off: what higher precision changes there, at least FLOOR units.

    own: logits in the run's dtype, (n, vocab); right: the same in higher precision -> (n,)
    """
    floors = [FLOOR * rounding_unit(row) for row in own]
    return torch.maximum(differences(own.double(), right.double()).amax(-1), torch.tensor(floors, dtype=torch.float64))


def spread(logits: Tensor) -> float:
    """Largest minus smallest logit, without what stands for "never this token"; of (..., n, vocab) the median row."""
    real = logits.abs() < torch.finfo(logits.dtype).max / 2
    highest = logits.masked_fill(~real, -torch.inf).amax(-1)
    lowest = logits.masked_fill(~real, torch.inf).amin(-1)
    return (highest - lowest).flatten().median().item()


def bound(logits: Tensor) -> float:
    """The largest difference from these logits that rounding explains."""
    return units(logits.dtype) * rounding_unit(logits)


def bound_in_words(dtype: torch.dtype) -> str:
    """The formula with its numbers, for messages."""
    return f"{units(dtype)} * eps({str(dtype).removeprefix('torch.')}) * max|logit|"


def differences(logits: Tensor, right: Tensor) -> Tensor:
    """Absolute differences, 0 where both are equal, also where both are -infinity; same shape."""
    return torch.where(logits == right, 0.0, (logits - right).abs())


class Reference:
    """A model's uncached logits, in its own dtype and in the next higher precision.

    The copy in higher precision is made once, when it is first asked for, and kept. Where the device has no float64, or
    memory no room, the model's own logits stand for it.
    """

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._higher: PreTrainedModel | None = None

    def logits(self, prompt: Tensor, text: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """After the prompt and each token of the text: in the model's dtype, and in higher precision.

        (1, n) and (1, m) ids -> (m + 1, vocab_size) on the CPU, twice
        """
        if self._higher is None:
            self._higher = _in_higher_precision(self._model)
        own = self._own(prompt, text, vocab_size)
        try:
            higher = _logits_of(self._higher, prompt, text, vocab_size)
        except RuntimeError:  # a kernel of this model has no such precision
            self._higher, higher = self._model, own
        return own, higher.double()

    def _own(self, prompt: Tensor, text: Tensor, vocab_size: int) -> Tensor:
        return _logits_of(self._model, prompt, text, vocab_size)

    def with_errors(self, prompt: Tensor, text: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """The best known logits after the prompt and each token of the text, and how far the run's may be from them.

        (1, n) and (1, m) ids -> (m + 1, vocab_size) and (m + 1,), on the CPU

        In bfloat16 and float16 the copy in higher precision tells both. In float32 and float64 the model's own logits
        are good enough, with the bound that rounding explains, and no copy is made.
        """
        if self._model.dtype not in UNITS:
            own, right = self.logits(prompt, text, vocab_size)
            if self._higher is not self._model:
                return right, row_errors(own, right)
        else:
            own = self._own(prompt, text, vocab_size)
        return own, torch.tensor([bound(row) for row in own], dtype=torch.float64)


@torch.inference_mode()
def _logits_of(model: PreTrainedModel, prompt: Tensor, text: Tensor, vocab_size: int) -> Tensor:
    return logits_after(model, prompt.to(model.device), text.to(model.device))[0, :, :vocab_size].cpu()


def _in_higher_precision(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in the next wider float type, or the model itself where there is none or no room for it."""
    wider = torch.float64 if model.dtype in (torch.float32, torch.float64) else torch.float32
    n_bytes = sum(p.numel() for p in model.parameters()) * wider.itemsize
    free = free_memory(model.device)
    if why_eager(model) or model.dtype == torch.float64 or (wider == torch.float64 and model.device.type == "mps"):
        return model
    if free is not None and n_bytes > USABLE * free:
        return model
    copied = copy.deepcopy(model).to(dtype=wider)  # type: ignore[call-arg]
    with contextlib.suppress(AttributeError, ValueError):  # the fast kernels for experts have no float64
        copied.set_experts_implementation("eager")
    return copied
