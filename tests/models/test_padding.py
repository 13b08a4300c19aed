"""lab:SIZE: a padded model says what its lab model says, is as large as asked, and is refused where it cannot fit."""

import contextlib
import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from speclab.lab.instruments import library_generate
from speclab.models import loading, memory, padding, prompts
from speclab.models.cached import CachedModel
from speclab.models.checks import check_model
from speclab.models.padding import Shape
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.decoding import plain_text
from tests.llamas import VOCAB, tiny_llama

CPU = torch.device("cpu")
D, LAYERS = 64, 2  # of the small model, with 4 heads of 16 on 2 key-value heads and 64 units
SHAPES = {
    "same": Shape(64, 2, 64, 2),
    "wider mlp": Shape(64, 2, 192, 2),
    "larger groups": Shape(192, 2, 64, 2),
    "more kv heads": Shape(128, 4, 64, 2),
    "more layers": Shape(64, 2, 64, 5),
    "everything": Shape(320, 5, 448, 4),
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


def pad(small, shape: str, n_rows: int = VOCAB):
    return padding.pad_to(small, SHAPES[shape], CPU, small.dtype, n_rows)


@pytest.mark.parametrize(
    ("shape", "dtype", "tied"),
    [*((shape, torch.float64, shape == "same") for shape in SHAPES), ("everything", torch.float32, True)],
)
def test_function_is_preserved(prompt, shape, dtype, tied):
    """Logits, cached decoding and text; the small model's logits must be far from even for this to say anything."""
    small = small_llama(dtype, tied)
    large = pad(small, shape)
    assert (large.lm_head.weight is large.model.embed_tokens.weight) == tied
    with torch.inference_mode():
        expected, logits = small(prompt).logits, large(prompt).logits
    assert expected.std() > 0.5
    assert (logits - expected).abs().max() < TOLERANCE[dtype]
    assert plain_text(CachedModel(small), prompt, 16) == plain_text(CachedModel(large), prompt, 16)


def test_stream_stays_zero_where_it_was_added(prompt):
    """Exactly, behind every layer; and layer i is the small model's layer i."""
    small = small_llama(torch.float64)
    with torch.inference_mode():
        expected = small(prompt, output_hidden_states=True).hidden_states
        hidden = pad(small, "everything")(prompt, output_hidden_states=True).hidden_states
    assert len(hidden) == SHAPES["everything"].layers + 1
    for h in hidden:
        assert h.shape[-1] == SHAPES["everything"].width
        assert not h[..., D:].any()
    # The last entry has been through the final norm, in both models.
    for one, other in zip((*hidden[:LAYERS], hidden[-1]), expected, strict=True):
        torch.testing.assert_close(one[..., :D], other, rtol=1e-5, atol=1e-5)


def test_what_is_added_works_and_is_the_same_every_time(prompt):
    """Added heads, units and layers compute something: zeros of their own would make them idle, not free of effect."""
    large, twin = (pad(small_llama(torch.float64), "everything") for _ in range(2))
    for name, weight in large.named_parameters():
        share = weight.count_nonzero() / weight.numel()
        if "o_proj" in name or "down_proj" in name:
            assert share < 0.1
        elif "embed" not in name:  # tied: the rows of real ids end in zeros
            assert share > 0.99, name
            assert weight.std() > 0.5 * padding.SPREAD or "norm" in name
    assert all(map(torch.equal, large.parameters(), twin.parameters()))
    seen = []
    for module in (large.model.layers[-1].self_attn.o_proj, large.model.layers[-1].mlp.down_proj):
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    large(prompt)
    assert all((x.abs().mean(dim=(0, 1)) > 0).all() for x in seen)


def test_the_real_lab_target():
    """The committed one, on real text: same logits, same greedy text, ready for the scripts."""
    small, large = (loading.load_model(name, CPU, torch.float32) for name in (loading.LAB_TARGET, "lab:20m"))
    check_model(large)
    assert not large.training
    assert large.generation_config.eos_token_id == small.generation_config.eos_token_id == 0
    assert {p.dtype for p in large.parameters()} == {torch.float32} == {large.config.dtype}
    assert re.search(r"20\.\d M parameters", loading.describe_model("x", large))
    tokenizer = loading.load_tokenizer("lab:20m")
    ids = [torch.tensor([tokenizer(text).input_ids[-120:]]) for _, text in prompts.standard()[::5]]
    assert sum(i.shape[1] for i in ids) > 200
    with torch.inference_mode():
        assert max((small(i).logits - large(i).logits).abs().max() for i in ids) < 1e-4
    assert plain_text(CachedModel(small), ids[0], 24) == plain_text(CachedModel(large), ids[0], 24)


def test_bfloat16_keeps_the_rotary_frequencies():
    """In bfloat16 position 300 would be another one."""
    small = loading.load_model(loading.LAB_DRAFT, CPU, torch.bfloat16)
    large = padding.padded(small, "lab:5m", CPU, torch.bfloat16, role="draft")
    assert {p.dtype for p in large.parameters()} == {torch.bfloat16} == {large.config.dtype}
    assert large.model.rotary_emb.inv_freq.dtype == torch.float32
    assert large.model.rotary_emb.inv_freq.equal(small.model.rotary_emb.inv_freq)


@pytest.mark.parametrize("role", loading.LAB)
@pytest.mark.parametrize("name", padding.SIZES)
def test_a_size_has_a_shape_or_is_too_small(name, role):
    """Within 5 % of the size, never smaller than the lab's in any entry, and one a Llama can have."""
    if role == "target" and name in ("5m", "10m"):
        with pytest.raises(UsageProblem, match=f"lab:{name} is too small for the lab's target"):
            padding.shape_of(f"lab:{name}", role)
        return
    lab, rows = AutoConfig.from_pretrained(loading.LAB[role]), padding.rows_of(name)
    with torch.device("meta"):
        config = padding.config_of(lab, padding.shape_of(name, role), torch.bfloat16, rows or lab.vocab_size)
        large = LlamaForCausalLM(config)
    entries = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "num_hidden_layers")
    assert abs(sum(p.numel() for p in large.parameters()) / padding.millions_of(name) / 1e6 - 1) < 0.05
    assert all(getattr(large.config, key) >= getattr(lab, key) for key in entries)
    assert rows == (128256 if "v" in name else 0)
    assert large.config.hidden_size % 64 == large.config.intermediate_size % 64 == 0
    assert large.config.num_attention_heads % large.config.num_key_value_heads == 0


@pytest.mark.parametrize("tied", [True, False])
def test_added_rows_of_the_output_layer_are_computed_and_never_win(prompt, tied):
    """The lab's logits stay; the mean of them, which all added rows give, is below their largest in every position."""
    small, n_ids, rows = small_llama(torch.float64, tied), VOCAB, 300
    large = pad(small, "everything", rows)
    assert large.lm_head.weight.shape[0] == large.config.vocab_size == rows
    assert large.lm_head.weight[n_ids:, D:].std() > 0.5 * padding.SPREAD, "numbers that are read and multiplied"
    with torch.inference_mode():
        before, after = small(prompt).logits, large(prompt).logits
    assert (after[..., :n_ids] - before).abs().max() < TOLERANCE[torch.float64]
    means = before.mean(-1, keepdim=True).expand_as(after[..., n_ids:])
    assert (after[..., n_ids:] - means).abs().max() < TOLERANCE[torch.float64]
    assert after.argmax(-1).max() < n_ids
    cut = CachedModel(large, n_ids)
    assert cut.prefill(prompt).shape[-1] == n_ids
    assert plain_text(cut, prompt, 12) == plain_text(CachedModel(small), prompt, 12)
    assert library_generate(large, prompt, 12)[1] == plain_text(cut, prompt, 12), "it chooses among all rows"


@pytest.mark.parametrize("text", ["", "big", "200", "173m", "8 b", "8b:v", "8b:v1k", "200m:e8k2"])
def test_what_is_no_size(text):
    with pytest.raises(UsageProblem, match=r"is not a size; .* lab:200m$"):
        padding.millions_of(f"lab:{text}")


REFUSALS = [  # free memory, dtype, and what is said
    (32e9, torch.float32, "lab:8b needs 32.0 GB, and of the 32.0 GB free on cpu a tenth stays free"),
    (17e9, torch.bfloat16, "lab:8b needs 16.0 GB, .* a tenth stays free"),
    *((free, torch.bfloat16 if free == 24e9 else torch.float32, "") for free in (24e9, 36e9, None)),
]


@pytest.mark.parametrize(("free", "dtype", "said"), REFUSALS)
def test_memory_is_checked_before_anything_is_built(monkeypatch, free, dtype, said):
    """Where the system does not say how much there is, nothing is refused."""
    monkeypatch.setattr(padding, "free_memory", lambda device: free and int(free))
    monkeypatch.setattr(padding, "pad_to", lambda *args: "built")
    small = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(loading.LAB_DRAFT))
    with pytest.raises(EnvironmentProblem, match=said) if said else contextlib.nullcontext():
        assert padding.padded(small, "lab:8b", CPU, dtype, "draft") == "built"
    free = memory.free_memory(CPU)
    assert free is None or 50e6 < free < 50e12, "in bytes, not kilobytes"
