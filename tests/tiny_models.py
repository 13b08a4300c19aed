"""Tiny random-weight models of many families, good and bad drafts for them, and a transformer that is cheap to sample.

Everything is built here, from seeds: no network, no files, no global random state left behind.
"""

import copy
import weakref
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from speclab.engines.c_pass import CModel
from speclab.models import setup

VOCAB = 48
WINDOW = 8  # of the sliding-window families: shorter than every prompt plus output
CONTEXT = 512
_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT, "hidden_size": 32}
_IDS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_IDS |= {"tie_word_embeddings": False}  # tied rows make a random model repeat its last token
_SPREAD = 0.3  # much larger than usual, so that the text depends on what was said before
_NEOX = {**_IDS, **_LAYERS, "intermediate_size": 48, "initializer_range": _SPREAD}
_LLAMA_LIKE = {**_NEOX, "num_key_value_heads": 2}
_GPT2 = {"n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "initializer_range": _SPREAD}
_OPT = {**_IDS, **_LAYERS, "word_embed_proj_dim": 32, "ffn_dim": 48, "init_std": _SPREAD}
_GEMMA3 = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW}
_GEMMA3 |= {"layer_types": ["sliding_attention", "full_attention"]}  # two kinds of layers in one cache

FAMILIES = {  # model_type and entries of the config
    "llama": ("llama", _LLAMA_LIKE),
    "gpt2": ("gpt2", {**_IDS, **_GPT2}),
    "gpt_neox": ("gpt_neox", _NEOX),
    "qwen2": ("qwen2", _LLAMA_LIKE),
    "opt": ("opt", _OPT),
    "gemma": ("gemma", {**_LLAMA_LIKE, "head_dim": 8}),
    "mistral_window": ("mistral", {**_LLAMA_LIKE, "sliding_window": WINDOW}),
    "gemma3_window": ("gemma3_text", {**_LLAMA_LIKE, **_GEMMA3}),
}


def tiny(family: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> PreTrainedModel:
    """A two-layer model of `family` with sdpa attention; its weights depend on `seed` alone."""
    model_type, entries = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = AutoConfig.for_model(model_type, **{**entries, **changes})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype).eval()
    assert model.config._attn_implementation == "sdpa"
    return model


def perturbed(model: nn.Module, noise: float, seed: int = 1) -> nn.Module:
    """A copy whose weights are off by `noise` times their spread: a draft that is often, not always, right."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            spread = weight.double().std() if weight.numel() > 1 else torch.tensor(0.0)
            step = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * spread * noise
            weight.add_(step.to(weight.dtype))
    return other.eval()


CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest number: what rounding may change


def assert_close(found: Tensor, right: Tensor) -> None:
    """Within the rounding of the number format of `found`."""
    close = CLOSE[found.dtype] * right.abs().max().item()
    torch.testing.assert_close(found, right.to(found.dtype), rtol=0, atol=max(close, 1e-12))


def on_engine(engine: str, model: PreTrainedModel) -> CModel | None:
    """The model in the form that the engine eager or c runs."""
    return on_c(model) if engine == "c" else None


DTYPE_ON = {"eager": torch.float64, "c": torch.float32}  # what is compared exactly, and what `c` is made for


_ON_C: weakref.WeakKeyDictionary[PreTrainedModel, CModel] = weakref.WeakKeyDictionary()


def on_c(model: PreTrainedModel) -> CModel:
    """The model, in float32, for the engine `c`; packed once."""
    if model not in _ON_C:
        _ON_C[model] = setup.on_c(model)
    return _ON_C[model]


class PlainTransformer(nn.Module):
    """One attention layer over a Hugging Face cache, with nothing around it: a pass costs a fifth of a real model's.

    Statistical tests need ten thousands of decodings. It takes and returns what a Hugging Face model does.
    """

    def __init__(self, vocab_size: int, seed: int, width: int = 16, scale: float = 0.8):
        super().__init__()
        one = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
        self.config = LlamaConfig(**{**_LLAMA_LIKE, **one, "vocab_size": vocab_size, "hidden_size": width})
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int, spread: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64) * spread)

        self.tokens = weight(vocab_size, width, spread=1.0)
        self.positions = weight(64, width, spread=0.5)
        self.qkv = weight(width, 3 * width, spread=width**-0.5)
        self.head = weight(width, vocab_size, spread=scale * width**-0.5)
        self.causal = torch.ones(64, 64, dtype=torch.bool).tril()

    @property
    def device(self) -> torch.device:
        return self.head.device

    def forward(self, input_ids: Tensor, past_key_values=None, use_cache=False, logits_to_keep: int = 0):
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        end = past + input_ids.shape[1]
        hidden = self.tokens[input_ids] + self.positions[past:end]  # (batch, m, width)
        queries, keys, values = (hidden @ self.qkv)[:, None].chunk(3, dim=-1)  # (batch, 1, m, width)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, 0)
        read = nn.functional.scaled_dot_product_attention(queries, keys, values, self.causal[past:end, :end])
        hidden = hidden + read[:, 0]
        return SimpleNamespace(logits=hidden[:, -logits_to_keep:] @ self.head)
