"""A model that is a little off: Gaussian noise in its weights makes a draft worse at the same cost of a pass."""

import copy

import torch
from transformers import PreTrainedModel


def noisy(model: PreTrainedModel, amount: float, seed: int) -> PreTrainedModel:
    """Return a copy whose matrices are off by Gaussian noise of `amount` times each matrix's own standard deviation.

    One seed is one direction in weight space: a larger amount goes further the same way. amount 0 is the model itself.
    Norms and biases stay. Raises ValueError for a negative amount.
    """
    if not amount >= 0:
        raise ValueError(f"the amount of noise must not be negative, got {amount}")
    generator = torch.Generator().manual_seed(seed)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            if weight.ndim < 2 or not weight.is_floating_point():
                continue
            # On the CPU in double precision: the same noise on every device and in every number format.
            exact = weight.detach().cpu().double()
            noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
            weight.copy_(exact + amount * exact.std() * noise)
    return copied.eval()
