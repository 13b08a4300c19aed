"""Every entry of a head that changes the numbers reaches the model, or the file is refused by the entry's name."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from speclab.extensions.gguf.tests.gguf_files import random_model
from speclab.models import loading

pytest.importorskip("gguf")
convert = pytest.importorskip("speclab.extensions.gguf.convert")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "pad_token_id": 0}


class Case(NamedTuple):
    """kind: the family as the format calls it. by_hand: what the library's config says, and entries and tensors say
    the same. family: the library's name where it is another."""

    kind: str
    by_hand: dict[str, Any]
    entries: dict[str, Any]
    family: str = ""
    tensors: Mapping[str, Any] = MappingProxyType({})


def rope(kind: str = "default", base: float = 1e4, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, **more}}


def scaling(**entries: Any) -> dict[str, Any]:
    return {f"rope.scaling.{name}": value for name, value in entries.items()}


RMS, PLAIN = {"attention.layer_norm_rms_epsilon": 0.01}, {"attention.layer_norm_epsilon": 0.01}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}
MEAN = 0.1 * math.log(4) + 1  # what yarn multiplies queries and keys by, if a file says nothing else
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 3, "rms_norm_eps": 0.01}
GEMMA_ENTRIES = {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 3, **RMS}
CAPS = {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}
PER_LAYER = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES = {
    "linear": Case("llama", rope("linear", factor=4.0), scaling(type="linear", factor=4.0)),
    "linear, no type": Case(
        "llama", rope("linear", 500.0, factor=3.0), {**scaling(factor=3.0), "rope.freq_base": 500.0}
    ),
    "linear, the old name": Case("llama", rope("linear", factor=3.0), {"rope.scale_linear": 3.0}),
    "a factor that is off": Case("llama", {}, scaling(type="none", factor=4.0)),
    "yarn": Case(
        "llama",
        rope("yarn", attention_factor=MEAN, **YARN),
        scaling(type="yarn", factor=4.0, original_context_length=16),
    ),
    "yarn with all entries": Case(
        "qwen2",
        rope("yarn", attention_factor=1.5 * MEAN, beta_fast=4.0, beta_slow=0.5, **YARN),
        scaling(
            type="yarn", factor=4.0, original_context_length=16, yarn_beta_fast=4.0, yarn_beta_slow=0.5, attn_factor=1.5
        ),
    ),
    "llama 3": Case("llama", rope("llama3", 500.0, **LLAMA3), {"rope.freq_base": 500.0}),
    "mistral": Case("llama", {}, {"general.name": "mistral"}),
    "another size of heads": Case("llama", {"head_dim": 12}, {"attention.key_length": 12, "rope.dimension_count": 12}),
    "qwen3": Case("qwen3", {"head_dim": 16, "rms_norm_eps": 0.01}, {"attention.key_length": 16, **RMS}),
    "another base": Case("starcoder2", {**rope(base=1e6), "norm_epsilon": 0.01}, {"rope.freq_base": 1e6, **PLAIN}),
    "a window": Case(
        "starcoder2", {"sliding_window": 3, "norm_epsilon": 0.01}, {"attention.sliding_window": 3, **PLAIN}
    ),
    "gemma2": Case("gemma2", {**GEMMA, **CAPS, "tie_word_embeddings": True}, {**GEMMA_ENTRIES, **CAPS}),
    "gemma3": Case(
        "gemma3",
        {**GEMMA, "rope_parameters": PER_LAYER, "num_hidden_layers": 6},
        {**GEMMA_ENTRIES, "rope.freq_base": 1e6, "rope.freq_base_swa": 100.0, **scaling(type="linear", factor=8.0)},
        "gemma3_text",
    ),
    "entries that change nothing": Case(
        "llama",
        {},
        {"general.sampling.temp": 0.5, "tokenizer.chat_template": "{{ messages }}", "expert_count": 0}
        | {"attention.causal": True, **scaling(finetuned=True, attn_factor=1.0)},
    ),
}


def model_of(case: Case) -> Any:
    """A random model whose logits feel its settings."""
    torch.manual_seed(3)
    settings = {"tie_word_embeddings": False, "initializer_range": 0.3, **SIZES, **case.by_hand}
    config = AutoConfig.for_model(case.family or case.kind, **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def written(case: Case, path: Any, **entries: Any) -> Any:
    """The model by hand, and the one that is read from its file."""
    right = model_of(case)
    tensors = case.tensors
    if case.by_hand.get("rope_parameters", {}).get("rope_type") == "llama3":  # files hold what it divides by
        plain = 1 / case.entries["rope.freq_base"] ** (torch.arange(0, 8, 2) / 8)
        tensors = {"rope_freqs.weight": plain / ROPE_INIT_FUNCTIONS["llama3"](right.config, "cpu")[0]}
    usual = {} if {*RMS, *PLAIN} & {*case.entries} else {"attention.layer_norm_rms_epsilon": 1e-6}
    random_model(path, right, case.kind, {**usual, **case.entries, **entries}, tensors)
    return right, convert.read_model(str(path.parent), path.name).eval()


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_a_config_written_by_hand(case, tmp_path):
    right, found = written(CASES[case], tmp_path / "x.gguf")
    ids = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(0))
    for n in (6, 24):  # before and behind the borders of windows and of long texts
        logits = right(ids[:, :n]).logits
        assert (found(ids[:, :n]).logits - logits).abs().max() < 1e-5 * logits.abs().max()


UNKNOWN: dict[str, dict[str, Any]] = {
    "llama": dict.fromkeys(("expert_used_count", "expert_gating_func", "attention.value_length"), 2)
    | {"rope.scaling.type": "dynamic", "rope.scaling.attn_factor": 1.5, "rope.scaling.yarn_log_multiplier": 0.1}
    | {"rope.dimension_count": 4, "attention.causal": False, "final_logit_softcapping": 30.0},
    "qwen2": dict.fromkeys(("attention.sliding_window", "attention.sliding_window_pattern"), 2)
    | {"attention.scale": 0.5, "logit_scale": 0.5},
    "starcoder2": {"residual_scale": 2.0, "something.new": [1, 2], "something.newer": ["a"]},
}


@pytest.mark.parametrize(
    ("kind", "entry", "value"), [(kind, *pair) for kind in UNKNOWN for pair in UNKNOWN[kind].items()]
)
def test_an_entry_that_the_library_cannot_follow_is_refused_by_its_name(kind, entry, value, tmp_path):
    with pytest.raises(ValueError, match=rf"{kind}\.{entry} = "):
        written(Case(kind, {}, {}), tmp_path / "x.gguf", **{entry: value})


def test_another_family_and_a_tensor_without_a_place_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"its entries are known for llama, .*, and it is phi3"):
        written(Case("phi3", {}, {}), tmp_path / "x.gguf")
    with pytest.raises(ValueError, match="7 numbers of its tensors have no place"):
        written(Case("llama", {}, {}, tensors={"blk.0.attn_v.bias": [1.0] * 7}), tmp_path / "y.gguf")


@pytest.mark.parametrize(
    "ends", [{}, {"eos": 4}, {"eos": 4, "eot": 4}, {"eos": 4, "eot": 9, "eom": 7}, {"eot": 9}], ids=str
)
def test_a_text_ends_at_every_end_that_the_file_names(ends, tmp_path):
    entries = {f"tokenizer.ggml.{name}_token_id": value for name, value in ends.items()}
    _, found = written(CASES["gemma2"], tmp_path / "x.gguf", **entries)
    assert loading.eos_ids(found.generation_config) == set(ends.values())
