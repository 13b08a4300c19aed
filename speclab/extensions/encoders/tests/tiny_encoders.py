"""Tiny encoder-decoder models with random weights, and drafts for them. Built here, from seeds."""

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    EncoderDecoderConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from tests import tiny_families

VOCAB = 48
# All different: a decoder that begins with another one, or with the prompt's last token, makes another text.
PAD, EOS, START, BOS = 0, 1, 2, 3
_IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": START, "bos_token_id": BOS}
_COMMON = {**_IDS, "vocab_size": VOCAB, "d_model": 32, "tie_word_embeddings": False}  # tied: it repeats its last token
_T5 = {**_COMMON, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
_T5["feed_forward_proj"] = "gated-gelu"
_BART = {**_COMMON, "forced_eos_token_id": None, "max_position_embeddings": 64}
_BART |= {"encoder_layers": 3, "decoder_layers": 2}
_BART |= {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in {"attention_heads": 4, "ffn_dim": 48}.items()
}
_BERT = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
_BERT |= {"num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": PAD}
FAMILIES = {
    "t5": (T5ForConditionalGeneration, T5Config, _T5),
    "bart": (BartForConditionalGeneration, BartConfig, _BART),
}
SPREADS = {"t5": 0.2, "bart": 0.12}  # of the weights, so that a text is varied and depends on its prompt


def tiny_of(family: str, seed: int = 0) -> PreTrainedModel:
    """A float64 model of any family that AutoModelForSeq2SeqLM knows, or of two BERTs ("encoder-decoder")."""
    if family == "encoder-decoder":
        parts = BertConfig(**_BERT), BertConfig(**_BERT, is_decoder=True, add_cross_attention=True)
        config = EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
        config.decoder_start_token_id, config.pad_token_id = START, PAD
    else:
        config = tiny_families.tiny_config(CONFIG_MAPPING[family])
        for name, token in _IDS.items():
            setattr(config, name, token)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return tiny_families.drawn(AutoModelForSeq2SeqLM.from_config(config), tiny_families.SPREAD).double()


def tiny(family: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> PreTrainedModel:
    """A model of `family`; its weights depend on `seed` alone."""
    model_class, config_class, sizes = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return tiny_families.drawn(model_class(config_class(**{**sizes, **changes})), SPREADS[family]).to(dtype)
