"""Tiny models of every family that pass.c knows, in sizes that are no multiples of a register."""

import functools
import itertools
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from speclab.engines.c_pass import CModel
from speclab.engines.eager import decoder_layers, layer_outputs
from speclab.models import setup
from speclab.models.cached import CachedModel
from tests.decoding import poison
from tests.tiny_models import assert_close

IDS, WINDOW, CONTEXT = 53, 8, 512
_SIZES = {"vocab_size": IDS, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 12}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
_SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
_SIZES |= {"attn_implementation": "eager"}  # the library's plain code: its sdpa leaves caps of attention out
_WITHOUT = {  # entries that are not theirs: a head has hidden / heads = 6 numbers, each its own keys
    **dict.fromkeys(("phi3", "olmo2", "qwen2"), ("head_dim",)),
    **dict.fromkeys(("gpt2", "gpt_neox"), ("head_dim", "num_key_value_heads")),
}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_SCALES = {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0}
_BORDER = {"original_max_position_embeddings": 64}


def rope(kind: str, **changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **changes}}


_FACTORS = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [3.0] * 3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one output matrix for both": ("llama", {"tie_word_embeddings": True}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1, "hidden_act": "gelu"}),
    "llama, wide heads": ("llama", {"head_dim": 70, "num_key_value_heads": 4, "hidden_act": "gelu"}),
    "llama, three blocks": ("llama", {"hidden_size": 48, "intermediate_size": 150, "head_dim": 16, "vocab_size": 330}),
    "llama, linear": ("llama", rope("linear", factor=2.0)),
    "llama, yarn": ("llama", rope("yarn", factor=2.0, **_BORDER)),
    "llama, llama3": ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **_BORDER)),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "mistral, no window": ("mistral", {"sliding_window": None, "hidden_act": "gelu_pytorch_tanh"}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, **_KINDS}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "phi3": ("phi3", {"sliding_window": WINDOW}),
    "phi3, some turned": ("phi3", {"sliding_window": None, **rope("default", partial_rotary_factor=0.7)}),
    "phi3, longrope": (
        "phi3",
        {"original_max_position_embeddings": 400} | rope("longrope", original_max_position_embeddings=400, **_FACTORS),
    ),
    "gemma": ("gemma", {"hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": ("gemma2", {**_KINDS, **_SCALES}),
    "gemma3_text": ("gemma3_text", {**_KINDS, "query_pre_attn_scalar": 20}),
    "olmo2": ("olmo2", {}),
    "gpt2": ("gpt2", {"n_positions": CONTEXT, "n_inner": 40}),
    "gpt2, exact gelu": ("gpt2", {"n_positions": CONTEXT, "activation_function": "gelu", "tie_word_embeddings": True}),
    "gpt_neox": ("gpt_neox", rope("default", partial_rotary_factor=0.7)),
    "gpt_neox, in turns": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
}


@functools.cache
def tiny(case: str, seed: int = 0) -> PreTrainedModel:
    kind, changes = CASES[case]
    return made(kind, seed, **changes)


def made(kind: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A float32 model; all that it has is random, biases and norms too."""
    sizes = {name: size for name, size in _SIZES.items() if name not in _WITHOUT.get(kind, ())}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = CONFIG_MAPPING[kind](**sizes | changes)
        model = AutoModelForCausalLM.from_config(config).float().eval()
        for name, weight in model.named_parameters():
            is_gain = weight.ndim == 1 and "bias" not in name and "gemma" not in kind
            torch.nn.init.normal_(weight, mean=float(is_gain), std=0.3)
    return model


def text_of(model: PreTrainedModel, n: int, seed: int = 1) -> Tensor:
    ids = model.get_input_embeddings().weight.shape[0]
    return torch.randint(0, ids, (1, n), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def uncached(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """(1, n) ids -> (1, n, ids) logits, as the library computes them."""
    return model(input_ids=ids, use_cache=False).logits


@functools.cache
def packed(model: PreTrainedModel) -> CModel:
    """The model for the engine `c`."""
    return setup.on_c(model)


def on_c(model: PreTrainedModel, fast: CModel | None = None) -> CachedModel:
    return CachedModel(model, fast=fast or packed(model))


def on_engine(case: str) -> CachedModel:
    """The model of a case, on the engine `c`, or on the eager one where the case begins with that."""
    model = tiny(case.removeprefix("eager "))
    return CachedModel(model) if case.startswith("eager ") else on_c(model)


WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 1)


def check_passes(cached: CachedModel, n_prompt: int, n_tokens: int | None = None) -> None:
    """Logits, and states after all layers, of a prompt and of passes of all widths are the library's uncached ones.
    Between them passes as wide are rejected, and what is left of these is spoiled. n_tokens: of the whole text."""
    model, n_tokens = cached.model, n_tokens or n_prompt + sum(WIDTHS)
    text, cached.hidden_layers = text_of(model, n_tokens), tuple(range(len(decoder_layers(model))))
    with torch.inference_mode(), layer_outputs(model, cached.hidden_layers) as outputs:
        right = model(input_ids=text, use_cache=False).logits
    states = torch.cat([outputs[layer] for layer in cached.hidden_layers], dim=-1)
    assert_close(cached.prefill(text[:, :n_prompt]), right[:, n_prompt - 1 : n_prompt])
    found, at, widths = [cached.hidden(cached.hidden_layers)], n_prompt, itertools.cycle(WIDTHS)
    while at < n_tokens:
        block = text[:, at : at + next(widths)]
        cached.forward((block + 1) % cached.n_ids)
        poison(cached, block.shape[1])
        cached.crop(at)
        assert_close(cached.forward(block), right[:, at : at + block.shape[1]])
        found.append(cached.hidden(cached.hidden_layers))
        at += block.shape[1]
    assert_close(torch.cat(found, dim=1), states)
