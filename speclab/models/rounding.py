"""How far two computations of the same logits may lie apart by rounding alone.

One rounding unit is eps(dtype) * max|logit|. Passes of other widths add the same numbers in another order, so their
logits differ by some units. Measured: 3 to 10 in float32 and float64, 0.5 to 3 in bfloat16, whose sums are taken in
float32. A model that is wrong is off by a good part of its largest logit.
"""

import torch
from torch import Tensor

UNITS = {torch.float64: 64, torch.float32: 64}  # allowed between two right computations
HALF_WIDTH_UNITS = 8  # the same for bfloat16 and float16


def units(dtype: torch.dtype) -> int:
    """The factor c of the bound c * eps(dtype) * max|logit|."""
    return UNITS.get(dtype, HALF_WIDTH_UNITS)


def rounding_unit(logits: Tensor) -> float:
    """eps(dtype) * max|logit|. What stands for "never this token" (the dtype's lowest, -infinity) does not count."""
    size = logits.abs()
    real = size[size < torch.finfo(logits.dtype).max / 2]
    return torch.finfo(logits.dtype).eps * (real.max().item() if real.numel() else 0.0)


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


def differences(found: Tensor, right: Tensor) -> Tensor:
    """Absolute differences, 0 where both are equal, also where both are -infinity; same shape."""
    return torch.where(found == right, 0.0, (found - right).abs())
