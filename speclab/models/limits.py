"""How much a model can take in, and what it keeps of it: found by asking it, since configs name things differently."""

import inspect
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

N_PROBE = 4  # tokens that fill the states, and as many that are then read in one pass and one by one
PROBE_GAP = 1e-5  # times the largest logit: a pass that does not read its states is off by much more
_reads_several: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


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
    model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=model.device), **pass_options(model, cache, 0, 2))
    return cache.layers


def pass_options(model: PreTrainedModel, cache: Any, length: int, width: int) -> dict[str, Any]:
    """The options of a pass over `width` tokens that goes on from a cache with `length` tokens.

    Some families begin at position 0 where none is given, and those without attention layers know no positions and have
    another name for the cache.
    """
    names = inspect.signature(model.forward).parameters
    options = {"cache_params" if "cache_params" in names else "past_key_values": cache, "use_cache": True}
    if "position_ids" in names:
        options["position_ids"] = torch.arange(length, length + width, device=model.device)[None]
    return options


def shortest_window(model: PreTrainedModel) -> int | None:
    """Tokens that a layer with a sliding window reads, of several the fewest; None where no layer has one."""
    windows = (getattr(layer, "sliding_window", None) for layer in DynamicCache(config=model.config).layers)
    return min((window for window in windows if window), default=None)


def is_recurrent(model: PreTrainedModel) -> bool:
    """Whether a layer keeps a state that a pass replaces, beside or instead of rows for each token.

    Such layers have their states by name in dictionaries. They cannot be cropped.
    """
    layers = DynamicCache(config=model.config).layers
    return any(isinstance(value, dict) for layer in layers for value in vars(layer).values())


@torch.inference_mode()
def reads_several(model: PreTrainedModel) -> bool:
    """Whether a pass over several tokens goes on from the states that are there, as passes over one token do.

    In some families of the library it begins with empty states instead. Found out once for each model.
    """
    if model not in _reads_several:
        n_ids = min(embedded_ids(model), model.config.get_text_config().vocab_size)
        ids = torch.randint(n_ids, (1, 2 * N_PROBE), generator=torch.Generator().manual_seed(0)).to(model.device)

        def logits(width: int) -> Tensor:
            cache, parts = DynamicCache(config=model.config), []
            for start, end in [(0, N_PROBE), *((n, n + width) for n in range(N_PROBE, 2 * N_PROBE, width))]:
                options = pass_options(model, cache, start, end - start)
                parts.append(model(input_ids=ids[:, start:end], **options).logits)
            return torch.cat(parts[1:], dim=1)

        one_by_one = logits(1)
        allowed = max(PROBE_GAP, 8 * torch.finfo(one_by_one.dtype).eps) * one_by_one.abs().max()
        _reads_several[model] = bool((logits(N_PROBE) - one_by_one).abs().max() <= allowed)
    return _reads_several[model]
