"""What a pass must read and compute, and what a run holds: bytes and operations counted from the model, not timed."""

import sys

import torch
from transformers import PreTrainedModel


def weights_read(model: PreTrainedModel) -> tuple[int, int]:
    """Weights that every pass reads.  -> how many, bytes

    Shared weights count once. An embedding of its own is left out: a pass reads a row for each token.
    """
    unique = {id(p): p for p in model.parameters()}
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    if outputs is None or inputs.weight is not outputs.weight:
        unique.pop(id(inputs.weight), None)
    return sum(p.numel() for p in unique.values()), sum(p.numel() * p.element_size() for p in unique.values())


def attention_shape(model: PreTrainedModel) -> tuple[int, int, int, int]:
    """-> layers, heads, heads of the cache, numbers in a head"""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, heads, getattr(config, "num_key_value_heads", None) or heads, size


def cache_bytes(model: PreTrainedModel, n_tokens: int) -> int:
    """Keys and values of `n_tokens`."""
    layers, _, cached_heads, size = attention_shape(model)
    return 2 * layers * cached_heads * size * n_tokens * model.dtype.itemsize


def operations(model: PreTrainedModel, width: int, context: int) -> int:
    """Of a pass over `width` tokens behind `context`: a product and a sum for each weight; attention's two products."""
    layers, heads, _, size = attention_shape(model)
    attended = sum(context + i + 1 for i in range(width))
    return 2 * weights_read(model)[0] * width + 4 * layers * heads * size * attended


def round_bytes(target: PreTrainedModel, draft: PreTrainedModel | None, k: int, context: int) -> tuple[int, int]:
    """Bytes that one round reads behind `context` tokens: (k draft passes, one verification)."""

    def one_pass(model: PreTrainedModel, n_tokens: int) -> int:
        return weights_read(model)[1] + cache_bytes(model, n_tokens)

    drafting = sum(one_pass(draft, context + i) for i in range(1, k + 1)) if draft is not None else 0
    return drafting, one_pass(target, context + k + 1)


def peak_memory(device: torch.device) -> int | None:
    """Bytes held at most so far: on the GPU, or by this process; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024  # Linux counts in KiB


def describe(target: PreTrainedModel, draft: PreTrainedModel | None, k: int, context: int) -> str:
    """What `--verbose` says: bytes of a decode step and of a round, and the peak of memory."""
    drafting, verifying = round_bytes(target, draft, k, context)
    step = round_bytes(target, None, 0, context)[1]
    words = [f"a decode step reads {_bytes(step)} (weights and cache behind {context} tokens)"]
    if k:
        words.append(f"a round at k = {k} reads {_bytes(drafting)} to draft and {_bytes(verifying)} to verify")
    peak = peak_memory(target.device)
    if peak is not None:
        words.append(f"memory at its peak: {_bytes(peak)}")
    return "\n".join(words)


def _bytes(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"
