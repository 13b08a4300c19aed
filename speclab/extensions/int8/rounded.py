"""A model whose linear layers have rounded weights: 8 bits a number, with a scale for each row of a matrix.

The rounded numbers times their scale stand in the copy in the model's own format, so the library computes with them as
with any other's, and as slowly. The engine `c` (float32) finds whole numbers with a scale, and reads a byte for each.

Embeddings and norms stay as they are, and all of them are the target's own tensors.
"""

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from speclab.system.errors import EnvironmentProblem

STEPS = 127  # of a weight's rounding, on either side of zero
LEAST = 0.9  # of the numbers in matrices: with less, the copy reads hardly fewer bytes than the target


def rounded_rows(weight: Tensor) -> Tensor:
    """Round each row of (n_out, n_in) to whole multiples of its largest number / 127."""
    scales = weight.abs().amax(-1, keepdim=True).clamp(min=1e-30) / STEPS
    return (weight / scales).round() * scales


def rounded_layer(layer: Any) -> nn.Module:
    """Return a linear layer with a rounded matrix. The library's Conv1D has its matrix turned."""
    weight = layer.weight.T if type(layer) is Conv1D else layer.weight
    made = rounded_rows(weight.detach().float()).to(weight.dtype)
    twin = copy.copy(layer)
    matrix = nn.Parameter(made.T if type(layer) is Conv1D else made, requires_grad=False)
    twin._parameters = {**layer._parameters, "weight": matrix}
    return twin


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with rounded linear layers; everything else is shared. Raises EnvironmentProblem where these
    hold less than nine tenths of the numbers in the model's matrices."""
    if (share := share_rounded(model)) < LEAST:
        raise EnvironmentProblem(
            f"--draft int8 rounds linear layers, and they hold {share:.0%} of the numbers in this model's matrices "
            "(the others are experts, for example); use --draft ngram, or --draft FOLDER with a smaller model"
        )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, {**shared, **{id(layer): rounded_layer(layer) for layer in layers_of(model)}}).eval()


def layers_of(model: nn.Module) -> list[Any]:
    """Return the layers that are rounded."""
    return [module for module in model.modules() if type(module) in (nn.Linear, Conv1D)]


def share_rounded(model: nn.Module) -> float:
    """Return which part of the numbers in matrices is rounded. Tables that are only looked up are no matrices here."""
    found = {module.weight for module in layers_of(model)}
    tables: set[Any] = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    n_left = sum(w.numel() for w in {*model.parameters()} - found - tables if w.ndim > 1)
    n_rounded = sum(weight.numel() for weight in found)
    return n_rounded / max(n_rounded + n_left, 1)
