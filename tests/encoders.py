"""Tiny encoder-decoder models with random weights, and drafts for them. Built here, from seeds."""

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCAB = 48
# All different: a decoder that begins with another one, or with the prompt's last token, makes another text.
PAD, EOS, START, BOS = 0, 1, 2, 3
_IDS = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": START,
    "bos_token_id": BOS,
}
_T5 = {
    **_IDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,  # tied rows make a random model repeat its last token
}
_BART = {
    **_IDS,
    "forced_eos_token_id": None,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "t5": (T5ForConditionalGeneration, T5Config, _T5),
    "bart": (BartForConditionalGeneration, BartConfig, _BART),
}
SPREADS = {"t5": 0.2, "bart": 0.12}  # of the weights, so that a text is varied and depends on its prompt


def tiny(family: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> PreTrainedModel:
    """A model of `family`; its weights depend on `seed` alone."""
    model_class, config_class, sizes = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config_class(**{**sizes, **changes}))
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                torch.nn.init.normal_(module.weight)
            elif isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=SPREADS[family])
    return model.to(dtype).eval()
