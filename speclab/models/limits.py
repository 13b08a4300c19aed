"""How much a model can take in, and what it keeps of it: found by asking it, since configs name things differently."""

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel


def context_length(model: PreTrainedModel) -> int | None:
    """How many positions can be decoded with a cache; None where the model sets no limit.

    Learned positions after a padding index are fewer than the table has rows.
    """
    limits = [configured_length(model.config)]
    for name, module in model.named_modules():
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return min((n for n in limits if n), default=None)


def configured_length(config: PreTrainedConfig) -> int | None:
    """The same from the config alone, before weights are read: the model's own limit is not above it.

    Families name it differently. Where a config has other rotary factors for long texts ("longrope"), keys that are
    cached before that border are wrong after it, so it is the limit.
    """
    config = config.get_text_config()
    names = ("max_position_embeddings", "max_target_positions", "max_seq_len")
    named = (getattr(config, name, None) for name in names)
    limits = [n for n in named if isinstance(n, int) and n > 0][:1]
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *rope.values()):
        if isinstance(part, dict) and part.get("rope_type") == "longrope":
            border = part.get("original_max_position_embeddings")
            limits += [border or getattr(config, "original_max_position_embeddings", None) or 0]
    return min((n for n in limits if n), default=None)


def embedded_ids(model: PreTrainedModel) -> int:
    """How many ids can be fed: the rows of the input embedding, which may be fewer than the output's."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    except (AttributeError, NotImplementedError):  # no such method, or no single matrix
        return model.config.get_text_config().vocab_size


@torch.inference_mode()
def cached_layers(model: PreTrainedModel) -> list:
    """The layers of a cache that holds two tokens.

    A config does not tell: layers may differ, share a cache, or keep something smaller than keys and values.
    """
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
    return cache.layers
