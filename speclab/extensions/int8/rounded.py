"""A model whose linear layers have rounded weights: 8 bits a number, with a scale for each row of a matrix.

The rounded numbers times their scale stand in the copy as float32, so the library computes with them like with any
other model's. The engine `c` finds that they are whole numbers with a scale, and reads a byte for each.

Embeddings and norms stay as they are, and all of them are the target's own tensors.
"""

import copy

from torch import Tensor, nn
from transformers import Conv1D, PreTrainedModel

from speclab.models.family import family_of
from speclab.system.errors import EnvironmentProblem

STEPS = 127  # of a weight's rounding, on either side of zero
MOST_LEFT = 0.1  # of the weights of matrices, which stay as they are


def rounded_rows(weight: Tensor) -> Tensor:
    """Round each row of (n_out, n_in) to whole multiples of its largest number / 127."""
    scales = weight.abs().amax(-1, keepdim=True).clamp(min=1e-30) / STEPS
    return (weight / scales).round() * scales


def rounded_layer(layer: nn.Module) -> nn.Module:
    """Return a linear layer with a rounded matrix. The library's Conv1D has its matrix turned."""
    weight = layer.weight.T if type(layer) is Conv1D else layer.weight
    made = rounded_rows(weight.detach().float()).to(weight.dtype)
    twin = copy.copy(layer)
    matrix = nn.Parameter(made.T if type(layer) is Conv1D else made, requires_grad=False)
    twin._parameters = {**layer._parameters, "weight": matrix}
    return twin


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with rounded linear layers; everything else is shared. Raises EnvironmentProblem where less than
    nine tenths of the weights of its matrices lie in such layers."""
    layers = {id(layer): layer for layer in model.modules() if type(layer) in (nn.Linear, Conv1D)}
    n_rounded = sum(layer.weight.numel() for layer in layers.values())
    output = model.get_output_embeddings()
    tied = output.weight.numel() if output is not None and output.weight is model.get_input_embeddings().weight else 0
    n_read = (
        sum(p.numel() for p in family_of(model).weights(model) if p.ndim > 1)
        - model.get_input_embeddings().weight.numel()
        + tied
    )
    if n_rounded < (1 - MOST_LEFT) * n_read:
        raise EnvironmentProblem(
            f"--draft int8 rounds linear layers, and only {n_rounded / n_read:.0%} of the weights of "
            f"{model.config.model_type} lie in such layers; use --draft ngram, or --draft FOLDER with a smaller model"
        )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, {**shared, **{number: rounded_layer(layer) for number, layer in layers.items()}}).eval()
