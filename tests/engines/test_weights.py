"""Every kind of weights on every instruction set: short numbers are found, and the logits stay the library's."""

import copy
import functools
import platform

import gguf
import pytest
import torch
from torch import Tensor

from speclab.engines import c_pass
from speclab.engines.c_pass import BFLOAT16, FLOAT32, INT4, INT8, CModel, stored
from speclab.engines.library import library
from speclab.engines.parts import parts_of
from tests.engines.families import check_passes, made, on_c

ALL_KINDS = 15
INSTRUCTIONS = {"native": (), "256 bits": ("-mno-avx512f",), "128 bits": ("-mno-avx2", "-mno-avx", "-mno-avx512f")}
LANES = {"256 bits": 8, "128 bits": 4}


def of_file(kind: str):
    """Round (rows, columns) weights as GGUF files do; one group is all zeros, another one all alike."""
    type_ = getattr(gguf.GGMLQuantizationType, kind)

    def rounded(weight: Tensor) -> Tensor:
        groups = weight.unflatten(1, (-1, 32)).clone()
        groups[0, 0], groups[1, -1] = 0.0, groups[1, -1, 0].item()
        return torch.tensor(gguf.dequantize(gguf.quantize(groups.flatten(1).numpy(), type_), type_))

    return rounded


def rows_of_8_bits(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    return (weight / scale).round() * scale


KINDS = {
    "float32": (lambda weight: weight, FLOAT32),
    "bfloat16": (lambda weight: weight.bfloat16().float(), BFLOAT16),
    "rows of 8 bits": (rows_of_8_bits, INT8),
    "Q8_0": (of_file("Q8_0"), INT8),
    "Q4_0": (of_file("Q4_0"), INT4),
    "Q4_1": (of_file("Q4_1"), INT4),
}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 1, "attention_bias": True}


@functools.cache
def model_with(kind: str):
    """A model whose matrices are all of this kind."""
    model = copy.deepcopy(made("llama", **SIZES))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(KINDS[kind][0](module.weight))
    return model


@functools.cache
def compiled(name: str):
    if INSTRUCTIONS[name] and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("these flags are for another processor")
    return library(ALL_KINDS, ("-Og", *INSTRUCTIONS[name]))  # to optimise all kinds takes half a minute


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_logits_are_the_librarys_with_the_same_weights(kind, instructions, monkeypatch):
    found = compiled(instructions)
    assert found.lanes() == LANES.get(instructions, found.lanes())
    monkeypatch.setattr(c_pass, "library", lambda kinds: found)
    model = model_with(kind)
    fast = CModel(parts_of(model))
    packed = [getattr(fast.layers[0], name) for name in ("qkv", "out", "gate", "up", "down")]
    assert {one.kind for one in [*packed, fast.model.head]} == {KINDS[kind][1]}, "more bytes than they need"
    check_passes(on_c(model, fast), 60)
    of_floats = sum(weight.nbytes for weight in model.parameters() if weight.ndim == 2) - 64 * 53 * 4  # embeddings
    shares = {FLOAT32: 0, BFLOAT16: 1 / 2, INT8: 3 / 4, INT4: 7 / 8}
    scales = {"rows of 8 bits": 1, "Q8_0": 1 / 32, "Q4_0": 2 / 32, "Q4_1": 2 / 32}
    assert fast.bytes_spared <= shares[KINDS[kind][1]] * of_floats
    assert fast.bytes_spared >= (shares[KINDS[kind][1]] - scales.get(kind, 0)) * of_floats


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "float32"])
def test_one_weight_between_the_steps_makes_floats_of_all(kind):
    """Nothing is rounded: a matrix that only almost has a shorter form keeps its own numbers."""
    weight = KINDS[kind][0](made("llama", **SIZES).lm_head.weight.detach()).clone()
    assert stored(weight)[0] == KINDS[kind][1]
    for row, column in ((3, 5), (52, 63)):  # the first group, and the last one
        other = weight.clone()
        other[row, column] += 3e-3 * other[row].abs().max()
        assert stored(other)[0] == FLOAT32
    other = weight.clone()
    other[7, 7] = torch.nan
    assert stored(other)[0] == FLOAT32


def test_kinds_can_be_mixed_and_sizes_can_be_odd(monkeypatch):
    """A row of an odd number of columns, or one that is no multiple of a group, and matrices of all kinds."""
    monkeypatch.setattr(c_pass, "library", lambda kinds: compiled("native"))
    model = copy.deepcopy(made("llama", **SIZES | {"intermediate_size": 75, "head_dim": 18}))
    layer = model.model.layers[0]
    as_kind = {layer.mlp.down_proj: "bfloat16", layer.mlp.gate_proj: "Q8_0", layer.mlp.up_proj: "Q8_0"}
    as_kind |= {layer.self_attn.o_proj: "rows of 8 bits", model.lm_head: "Q4_0"}
    with torch.no_grad():
        for module, kind in as_kind.items():
            module.weight.copy_(KINDS[kind][0](module.weight))
    parts = parts_of(model)
    [of_layer] = parts["layer"]
    fast = CModel(parts)
    assert not {"qkv", "out", "up", "down"} & set(of_layer), "what is packed is held once more, not twice"
    packed = fast.layers[0]
    assert [packed.qkv.kind, packed.out.kind, packed.up.kind, packed.down.kind] == [FLOAT32, INT8, INT8, FLOAT32]
    assert fast.model.head.kind == INT4
    check_passes(on_c(model, fast), 20)
