"""A tiny random Llama, for tests that ask nothing of a family."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 64
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def tiny_llama(seed: int, n_layers: int = 2, vocab_size: int = VOCAB, dtype: torch.dtype = torch.float64):
    """A random Llama whose weights depend on `seed` alone; larger ones than usual, so that no distribution is flat."""
    config = LlamaConfig(vocab_size=vocab_size, num_hidden_layers=n_layers, initializer_range=0.15, **SIZES)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype).eval()
