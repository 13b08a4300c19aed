"""The parts of heads whose kernels are the lab's own choice, against PyTorch's and the library's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import rms_norm
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from speclab.drafts.heads.parts import Norm, freeze, rotated, rotations


def norm_of(eps: float, dtype: torch.dtype = torch.float32) -> Norm:
    """Frozen, with random weights."""
    norm = Norm(24, eps).to(dtype)
    nn.init.normal_(norm.weight)
    freeze(nn.Sequential(norm))
    return norm


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("size", [1e-19, 1e-4, 1.0, 1e4, 1e18])
def test_the_norm_of_a_frozen_head_is_pytorchs(eps, size):
    norm = norm_of(eps)
    for x in (torch.randn(2, 5, 24) * size, torch.randn(2, 24, 5).transpose(1, 2) * size):
        assert norm._frozen is not None
        found, right = norm(x), rms_norm(x.double(), (24,), norm.weight.double(), eps)
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), right, rtol=1e-5, atol=0), (found - right).abs().max()


def test_a_row_of_zeros_and_what_is_not_finite():
    norm = norm_of(1e-6)
    x = torch.zeros(4, 24)
    x[1, 3], x[2, 3] = torch.nan, torch.inf
    found = norm(x)
    assert (found[[0, 3]] == 0).all()
    assert not found[1].isfinite().any()
    assert not found[2, 3].isfinite()


@pytest.mark.parametrize(
    ("of_weights", "of_input"), [("float64", "float64"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
def test_other_number_formats_keep_pytorchs_norm(of_weights, of_input):
    """Bit for bit: in a lower precision it computes in float32 inside."""
    norm, x = norm_of(1e-6, getattr(torch, of_weights)), torch.randn(3, 24).to(getattr(torch, of_input))
    assert torch.equal(norm(x), rms_norm(x, (24,), norm.weight.to(x.dtype), 1e-6))


def test_a_norm_that_is_trained_has_the_gradient_of_its_weights():
    norm, x = Norm(24, 1e-6), torch.randn(3, 24)
    norm(x).sum().backward()
    assert norm.weight.grad.abs().min() > 0


ROTARY = [
    {"rope_type": "default"},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
]


@pytest.mark.parametrize("rotary", ROTARY, ids=lambda rotary: rotary["rope_type"])
@pytest.mark.parametrize(("dtype", "gap"), [(torch.float64, 1e-6), (torch.float32, 1e-6), (torch.bfloat16, 0.1)])
def test_rotations_are_the_librarys(rotary, dtype, gap):
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=256,
        rope_parameters={"rope_theta": 1e4, **rotary},
    )  # fmt: skip
    queries, keys = (torch.randn(1, n_heads, 7, 32, dtype=dtype) for n_heads in (2, 1))
    positions = torch.tensor([0, 1, 2, 3, 50, 120, 250])
    cos, sin = LlamaRotaryEmbedding(config)(torch.empty(0, dtype=torch.float64), positions[None])
    right = apply_rotary_pos_emb(queries.double(), keys.double(), cos, sin)
    for part, expected in zip((queries, keys), right, strict=True):
        found = rotated(part, rotations(config, positions))
        assert found.dtype == dtype
        assert torch.allclose(found.double(), expected, atol=gap)
