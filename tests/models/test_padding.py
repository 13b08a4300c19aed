"""lab:SIZE: a padded model says what its lab model says, is as large as asked, and is refused where it cannot fit."""

import contextlib
import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from speclab.lab.decodings import library_generate
from speclab.models import loading, memory, prompts
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import check_model
from speclab.models.padded import padding, sizes
from speclab.models.padded.sizes import Size
from speclab.records.files import read
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT
from tests.decoding import plain_text
from tests.llamas import tiny_llama

CPU = torch.device("cpu")
D, LAYERS = 64, 2  # of the small model
ENTRIES = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "num_hidden_layers",
)
SHAPES = {  # from 64 wide, 4 heads on 2 key-value heads, 64 units, 2 layers
    "same": (64, 4, 2, 64, 2),
    "wider stream": (192, 4, 2, 64, 2),
    "wider mlp": (64, 4, 2, 192, 2),
    "larger groups": (64, 12, 2, 64, 2),
    "more kv heads": (64, 8, 4, 64, 2),
    "more layers": (64, 4, 2, 64, 5),
    "everything": (320, 20, 5, 448, 4),
}
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}  # RMSNorm computes in float32, whatever the model's dtype


def small_llama(dtype: torch.dtype, tied: bool = True):
    """A tiny Llama as if it were trained: norm weights are not all ones. A large epsilon, so that it matters."""
    model = tiny_llama(0, n_layers=LAYERS, dtype=dtype)
    model.config.tie_word_embeddings = tied
    model.tie_weights()
    model.config.rms_norm_eps = 0.01
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = model.config.rms_norm_eps
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
    return model


def pad(small, shape: str):
    return padding.pad_to(small, dict(zip(ENTRIES, SHAPES[shape], strict=True)), CPU, small.dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "tied"),
    [*((shape, torch.float64, shape == "same") for shape in SHAPES), ("everything", torch.float32, True)],
)
def test_function_is_preserved(prompt, shape, dtype, tied):
    """Logits, cached decoding and text; the small model's logits must be far from exported for this to say anything."""
    small = small_llama(dtype, tied)
    large = pad(small, shape)
    assert (large.lm_head.weight is large.model.embed_tokens.weight) == tied
    with torch.inference_mode():
        expected, logits = small(prompt).logits, large(prompt).logits
    assert expected.std() > 0.5
    assert (logits - expected).abs().max() < TOLERANCE[dtype]
    texts = (plain_text(CachedModel(m), prompt, 16) for m in (small, large))
    assert next(texts) == next(texts)


def test_stream_stays_zero_where_it_was_added(prompt):
    """Exactly, behind every layer; and layer i is the small model's layer i."""
    small = small_llama(torch.float64)
    with torch.inference_mode():
        expected = small(prompt, output_hidden_states=True).hidden_states
        hidden = pad(small, "everything")(prompt, output_hidden_states=True).hidden_states
    assert len(hidden) == SHAPES["everything"][4] + 1
    for i, h in enumerate(hidden):
        assert h.shape[-1] == SHAPES["everything"][0]
        assert not h[..., D:].any()
        if i < LAYERS:
            torch.testing.assert_close(h[..., :D], expected[i], rtol=1e-5, atol=1e-5)
    # The last entry has been through the final norm, in both models.
    torch.testing.assert_close(hidden[-1][..., :D], expected[-1], rtol=1e-5, atol=1e-5)


def test_what_is_added_works(prompt):
    """Added heads, units and layers compute something: zeros of their own would make them idle, not free of effect."""
    large = pad(small_llama(torch.float64), "everything")
    for name, weight in large.named_parameters():
        share = weight.count_nonzero() / weight.numel()
        if "o_proj" in name or "down_proj" in name:
            assert share < 0.1
        elif "embed" not in name:  # tied: the rows of real ids end in zeros
            assert share > 0.99, name
            assert weight.std() > 0.5 * padding.SPREAD or "norm" in name
    added = large.model.layers[-1]
    seen = []
    for module in (added.self_attn.o_proj, added.mlp.down_proj):
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    large(prompt)
    assert all((x.abs().mean(dim=(0, 1)) > 0).all() for x in seen)


def test_the_random_part_is_the_same_every_time_and_only_a_plain_llama_is_padded():
    small = small_llama(torch.float32)
    one, other = (pad(small, "everything").model.layers[-1].mlp.gate_proj.weight for _ in range(2))
    assert one.equal(other)
    small.config.attention_bias = True
    with pytest.raises(ValueError, match="without biases"):
        pad(small, "same")


def test_the_real_lab_target():
    """The committed one, on real text: same logits, same greedy text, the size asked for, ready for the scripts."""
    folder, size = loading.LAB_TARGET, Size("20m")
    tokenizer = loading.load_tokenizer(folder)
    small = loading.load_model(folder, CPU, torch.float32)
    large = padding.padded(small, size, CPU, torch.float32)
    check_model(large)
    assert not large.training
    assert large.generation_config.eos_token_id == small.generation_config.eos_token_id == 0
    assert {p.dtype for p in large.parameters()} == {torch.float32} == {large.config.dtype}
    n = sum(p.numel() for p in large.parameters())
    assert abs(n / size.n_parameters - 1) < 0.05
    assert f"{n / 1e6:.1f} M parameters" in loading.describe_model("x", large)
    ids = [torch.tensor([tokenizer(text).input_ids[-120:]]) for _, text in prompts.standard()[::5]]
    assert sum(i.shape[1] for i in ids) > 200
    with torch.inference_mode():
        assert max((small(i).logits - large(i).logits).abs().max() for i in ids) < 1e-4
    texts = (plain_text(CachedModel(m), ids[0], 24) for m in (small, large))
    assert next(texts) == next(texts)


def test_bfloat16_keeps_the_rotary_frequencies():
    """In bfloat16 position 300 would be another one."""
    small = loading.load_model(loading.LAB_DRAFT, CPU, torch.bfloat16)
    large = padding.padded(small, Size("5m"), CPU, torch.bfloat16, role="draft")
    assert {p.dtype for p in large.parameters()} == {torch.bfloat16} == {large.config.dtype}
    assert large.model.rotary_emb.inv_freq.dtype == torch.float32
    assert large.model.rotary_emb.inv_freq.equal(small.model.rotary_emb.inv_freq)


# The smallest size of a target and of a draft, by the rows of its output layer.
LEAST = {("target", 2048): 2e7, ("target", 128256): 8e8, ("draft", 2048): 5e6, ("draft", 128256): 2e8}


@pytest.mark.parametrize(("role", "rows"), LEAST)
@pytest.mark.parametrize("name", sizes.SIZES)
def test_a_size_has_a_shape_or_is_too_small(name, rows, role):
    """Within 5 % of the size, never smaller than the lab's in any entry, and one a Llama can have."""
    lab, size = AutoConfig.from_pretrained(loading.LAB[role]), Size(name, rows)
    if size.n_parameters < LEAST[role, rows]:
        with pytest.raises(UsageProblem, match=f"lab:{name} with {rows} rows is too small for the lab's {role}"):
            padding.shape_for(size, lab, role)
        return
    shape = padding.shape_for(size, lab, role)
    assert set(shape) == {*ENTRIES, "vocab_size"}
    assert abs(padding.count_parameters(lab, **shape) / size.n_parameters - 1) < 0.05
    assert all(shape[key] >= getattr(lab, key) for key in ENTRIES)
    assert shape["vocab_size"] == rows
    assert shape["hidden_size"] % 64 == shape["intermediate_size"] % 64 == 0
    assert shape["num_attention_heads"] * 64 == shape["hidden_size"]
    assert shape["num_attention_heads"] % shape["num_key_value_heads"] == 0


FIELD = [("200m", 1024, 14), ("8b", 4096, 36), ("8b:v128256", 4096, 34), ("800m:v128256", 1792, 14)]


@pytest.mark.parametrize(("size", "width", "layers"), FIELD)
def test_shapes_are_those_of_the_field(size, width, layers):
    lab = AutoConfig.from_pretrained(loading.LAB_TARGET)
    shape = padding.shape_for(sizes.parse_name(f"lab:{size}"), lab, "target")
    assert (shape["hidden_size"], shape["num_hidden_layers"]) == (width, layers)
    assert shape["num_attention_heads"] == 4 * shape["num_key_value_heads"]
    assert 3.25 < shape["intermediate_size"] / width < 3.75


@pytest.mark.parametrize("tied", [True, False])
def test_added_rows_of_the_output_layer_are_computed_and_never_win(prompt, tied):
    """The lab's logits stay; the mean of them, which all added rows give, is below their largest in every position."""
    small, n_ids, rows = small_llama(torch.float64, tied), 64, 300
    entries = dict(zip(ENTRIES, SHAPES["everything"], strict=True)) | {"vocab_size": rows}
    large = padding.pad_to(small, entries, CPU, small.dtype)
    assert large.lm_head.weight.shape[0] == large.config.vocab_size == rows
    assert padding.count_parameters(large.config) == sum(p.numel() for p in large.parameters())
    added = large.lm_head.weight[n_ids:]
    assert added[:, D:].std() > 0.5 * padding.SPREAD, "numbers that are read and multiplied"
    with torch.inference_mode():
        before, after = small(prompt).logits, large(prompt).logits
    assert after.shape[-1] == rows
    assert (after[..., :n_ids] - before).abs().max() < TOLERANCE[torch.float64]
    means = before.mean(-1, keepdim=True).expand_as(after[..., n_ids:])
    assert (after[..., n_ids:] - means).abs().max() < TOLERANCE[torch.float64]
    assert after.argmax(-1).max() < n_ids
    cut = CachedModel(large, n_ids)
    assert cut.prefill(prompt).shape[-1] == n_ids
    assert plain_text(cut, prompt, 12) == plain_text(CachedModel(small), prompt, 12)
    assert library_generate(large, prompt, 12)[1] == plain_text(cut, prompt, 12), "it chooses among all rows"


def test_a_name_with_rows_loads():
    model = loading.load_model("lab:20m:v4096", CPU, torch.float32)
    assert model.lm_head.weight.shape[0] == 4096
    assert sizes.parse_name("LAB:8B") == Size("8b")
    assert sizes.parse_name("lab:200m:v128256") == Size("200m", 128256)
    assert not sizes.is_lab_size("models/lab-pair/target")


@pytest.mark.parametrize("text", ["", "big", "200", "m", "173m", "8 b", "8b:v", "8b:128256", "8b:v1k", "200m:e8k2"])
def test_what_is_no_size(text):
    with pytest.raises(UsageProblem, match=r"is not a size; .* lab:200m$"):
        sizes.parse_name(f"lab:{text}")


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_padded_model_is_told_with_the_size_of_the_model_whose_text_it_writes(role):
    n = read(ROOT / "models" / "lab-pair" / "training.json", dict)[role]["parameters"]
    said = sizes.describe_padding("lab:8b", role)
    assert re.search(rf"{role} of ({n / 1e6:.0f}|{n / 1e6:.1f}) M parameters .* 8B$", said), said


REFUSALS = [  # free memory, dtype, copies of the weights, and what is said
    (24e9, torch.float32, 1, "lab:8b needs 32.0 GB in float32 .*, and of the 24.0 GB free"),
    (24e9, torch.bfloat16, 2, r"32.0 GB in bfloat16 \(2 x the weights"),
    (34e9, torch.float32, 1, "a tenth stays free"),
    *((free, torch.bfloat16 if free == 24e9 else torch.float32, 1, "") for free in (24e9, 40e9, None)),
]


@pytest.mark.parametrize(("free", "dtype", "copies", "said"), REFUSALS)
def test_memory_is_checked_before_anything_is_built(monkeypatch, free, dtype, copies, said):
    """Where the system does not say how much there is, nothing is refused."""
    monkeypatch.setattr(padding, "free_memory", lambda device: free and int(free))
    monkeypatch.setattr(padding, "pad_to", lambda *args: "built")
    small = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(loading.LAB_DRAFT))
    with pytest.raises(EnvironmentProblem, match=said) if said else contextlib.nullcontext():
        assert padding.padded(small, Size("8b"), CPU, dtype, copies, "draft") == "built"


def test_free_memory():
    """In bytes, not kilobytes."""
    free = memory.free_memory(CPU)
    assert free is None or 50e6 < free < 50e12
