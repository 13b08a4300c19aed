"""A model whose linear layers have rounded weights: 8 bits a number, with a scale for each row of a matrix.

The products are FBGEMM's, which PyTorch has for x86 processors: 8-bit numbers times 8-bit numbers, added in 32 bits. So
the input of a product is rounded, too, each token by its own largest number. A token's result therefore does not depend
on the other tokens of a pass, and one uncached pass says what the model drafts at every place.

Embeddings and norms stay as they are, and all of them are the target's own tensors: the copy adds one byte for each
number of the matrices.
"""

import copy
import itertools
import warnings
import weakref

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from speclab.system.errors import EnvironmentProblem

OTHER_DRAFT = "use --draft ngram, or --draft FOLDER with a smaller model"
STEPS = 127  # of a weight's rounding, on either side of zero
# Without VNNI the sum of two products of 8-bit numbers does not fit into 16 bits, so inputs get one bit less.
INPUT_STEPS = 127 if torch.cpu._is_vnni_supported() else 63

_PACKED: dict[int, torch.ScriptObject] = {}  # by the number of a layer, since torch.export refuses them in a module
_numbers = itertools.count()
_LIBRARY = torch.library.Library("speclab_int8", "DEF")
_LIBRARY.define("product(Tensor x, int layer, int n_out) -> Tensor")


class Int8Linear(nn.Module):
    """A linear layer with rounded weights, (n_out, n_in). A call of it is one kernel for torch.export."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.number, self.n_out, self.bias = next(_numbers), linear.out_features, linear.bias
        _PACKED[self.number] = packed(linear.weight.detach().float())
        weakref.finalize(self, _PACKED.pop, self.number)

    def __deepcopy__(self, memo: dict) -> "Int8Linear":
        """A copy of a model, as one in higher precision, has the same rounded weights."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_in) -> (..., n_out)"""
        y = torch.ops.speclab_int8.product(x, self.number, self.n_out)
        return y if self.bias is None else y + self.bias


def packed(weight: Tensor) -> torch.ScriptObject:
    """Round a matrix, (n_out, n_in), row by row, and bring it into the order of the kernels."""
    scales = largest_of(weight) / STEPS
    rounded_weight, zeros = (weight / scales).round().to(torch.int8), torch.zeros(len(scales), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch plans another way of making such tensors
        quantized = torch._make_per_channel_quantized_tensor(rounded_weight, scales[:, 0].double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(quantized, None)


def largest_of(rows: Tensor) -> Tensor:
    """Return the largest absolute number of each row, never 0: (n, m) -> (n, 1)"""
    return rows.abs().amax(-1, keepdim=True).clamp(min=1e-30)


def product(x: Tensor, layer: int, n_out: int) -> Tensor:
    """Multiply with the matrix of a layer, each token rounded by its own largest number: (..., n_in) -> (..., n_out)"""
    rows = x.reshape(-1, x.shape[-1]).float()
    largest = largest_of(rows)
    y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        rows / largest, 1 / INPUT_STEPS, INPUT_STEPS + 1, _PACKED[layer]
    )
    return y.mul_(largest).to(x.dtype).reshape(*x.shape[:-1], n_out)


_LIBRARY.impl("product", product, "CPU")


@torch.library.register_fake("speclab_int8::product")
def _shape_of_product(x: Tensor, layer: int, n_out: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], n_out)


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with rounded linear layers; everything else is shared. Raises EnvironmentProblem where there is
    no kernel for them."""
    if model.device.type != "cpu" or "fbgemm" not in torch.backends.quantized.supported_engines:
        raise EnvironmentProblem(f"--draft int8 needs an x86 processor and --device cpu; {OTHER_DRAFT}")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        layers = {id(module): Int8Linear(module) for module in model.modules() if type(module) is nn.Linear}
    finally:
        torch.backends.quantized.engine = before
    return copy.deepcopy(model, {**shared, **layers}).eval()
