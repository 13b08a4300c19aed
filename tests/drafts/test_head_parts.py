"""The parts of heads, against PyTorch's and the library's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import rms_norm
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from speclab.drafts.heads.parts import Norm, rotated, rotations

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")])
def test_a_norm_takes_input_of_a_lower_precision(dtypes):
    of_weights, of_input = (getattr(torch, dtype) for dtype in dtypes)
    norm, x = Norm(24, 1e-6).to(of_weights), torch.randn(3, 24).to(of_input)
    nn.init.normal_(norm.weight)
    assert torch.equal(norm(x), rms_norm(x, (24,), norm.weight.to(x.dtype), 1e-6))


@pytest.mark.parametrize("rotary", [{"rope_type": "default"}, YARN])
@pytest.mark.parametrize(("dtype", "gap"), [(torch.float64, 1e-6), (torch.float32, 1e-6), (torch.bfloat16, 0.1)])
def test_rotations_are_the_librarys(rotary, dtype, gap):
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "head_dim": 32, "max_position_embeddings": 256}
    config = LlamaConfig(**sizes, rope_parameters={"rope_theta": 1e4, **rotary})
    queries, keys = (torch.randn(1, n_heads, 7, 32, dtype=dtype) for n_heads in (2, 1))
    positions = torch.tensor([0, 1, 2, 3, 50, 120, 250])
    cos, sin = LlamaRotaryEmbedding(config)(torch.empty(0, dtype=torch.float64), positions[None])
    right = apply_rotary_pos_emb(queries.double(), keys.double(), cos, sin)
    for part, expected in zip((queries, keys), right, strict=True):
        found = rotated(part, rotations(config, positions))
        assert found.dtype == dtype
        assert torch.allclose(found.double(), expected, atol=gap)
