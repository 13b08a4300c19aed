"""A model whose matrices have rounded weights: rows of 8-bit numbers, each row with a scale.

A product is PyTorch's, of 8-bit weights with inputs as they are, summed in float32. It rests on no instruction that
only some processors have, so a draft proposes the same on all of them, up to the order of a sum. And a token's result
does not depend on the other tokens of a pass: one uncached pass says what the model drafts at every place.

Embeddings and norms stay as they are, and all of them are the target's own tensors: the copy adds one byte for each
number of the matrices.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from speclab.system.errors import EnvironmentProblem

OTHER_DRAFT = "use --draft ngram, or --draft FOLDER with a smaller model"
STEPS = 127  # of a weight's rounding, on either side of zero
LEAST = 0.9  # of the numbers in matrices: with less, the copy reads hardly fewer bytes than the target


class Int8Linear(nn.Module):
    """A linear layer with rounded weights, made of (n_out, n_in) ones."""

    rows: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None):
        super().__init__()
        rows, scales = rounded_rows(weight.detach().float())
        self.register_buffer("rows", rows)
        self.register_buffer("scales", scales)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_in) -> (..., n_out)"""
        y = product(x.reshape(-1, x.shape[-1]).float(), self.rows, self.scales.float()).to(x.dtype)
        y = y.reshape(*x.shape[:-1], len(self.rows))
        return y if self.bias is None else y + self.bias


def rounded_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix row by row: (n_out, n_in) -> 8-bit numbers of that shape, and the step of each row, (n_out,)"""
    scales = largest_of(weight) / STEPS
    return (weight / scales).round().to(torch.int8).contiguous(), scales[:, 0]


def largest_of(rows: Tensor) -> Tensor:
    """Return the largest absolute number of each row, never 0: (n, m) -> (n, 1)"""
    return rows.abs().amax(-1, keepdim=True).clamp(min=1e-30)


def product(x: Tensor, rows: Tensor, scales: Tensor) -> Tensor:
    """Multiply float32 inputs with a rounded matrix, (m, n_in) and (n_out, n_in) -> (m, n_out)"""
    return torch._weight_int8pack_mm(x, rows, scales)


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with rounded matrices; everything else is shared. Raises EnvironmentProblem where that is not
    what the model or this machine gives."""
    if model.device.type != "cpu":
        raise EnvironmentProblem(f"--draft int8 needs --device cpu; {OTHER_DRAFT}")
    check_product()
    if (share := share_rounded(model)) < LEAST:
        raise EnvironmentProblem(
            f"--draft int8 rounds linear layers, and they hold {share:.0%} of the numbers in this model's matrices "
            f"(the others are experts, for example); {OTHER_DRAFT}"
        )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    layers = {id(module): Int8Linear(weight, module.bias) for module, weight in matrices(model)}
    return copy.deepcopy(model, {**shared, **layers}).eval()


def matrices(model: nn.Module) -> list[tuple[Any, Tensor]]:
    """Return the layers that are rounded, with their weights, (n_out, n_in)."""
    found: list[Any] = [module for module in model.modules() if type(module) in (nn.Linear, Conv1D)]
    return [(module, module.weight if isinstance(module, nn.Linear) else module.weight.T) for module in found]


def share_rounded(model: nn.Module) -> float:
    """Return which part of the numbers in matrices is rounded. Tables that are only looked up are no matrices here."""
    found = {module.weight for module, _ in matrices(model)}
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    n_left = sum(weight.numel() for weight in {*model.parameters()} - found - tables if weight.ndim > 1)
    n_rounded = sum(weight.numel() for weight in found)
    return n_rounded / max(n_rounded + n_left, 1)


def check_product() -> None:
    """Raise EnvironmentProblem where this machine's product is not the sum of its terms, as with sums in 16 bits."""
    x = torch.linspace(-1, 1, 3 * 70).reshape(3, 70)
    rows = (127 - torch.arange(33 * 70).reshape(33, 70) % 31).to(torch.int8)
    scales = torch.linspace(1, 2, 33)
    right = x.double() @ (rows.double() * scales.double()[:, None]).T
    if not torch.allclose(product(x, rows, scales).double(), right, rtol=1e-5, atol=1e-2):
        raise EnvironmentProblem(f"products of 8-bit weights are wrong on this processor; {OTHER_DRAFT}")
