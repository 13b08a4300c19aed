"""A tiny random Llama, for tests that ask nothing of a family."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 64


def tiny_llama(seed: int, n_layers: int = 2, vocab_size: int = VOCAB, dtype: torch.dtype = torch.float64):
    """A random Llama whose weights depend on `seed` alone."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.15,  # larger than usual, so that distributions are not flat
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype).eval()
