"""Both loops as the tests call them: settings given one by one, whole decodings given back."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
import torch
from speclab.models.backends import rewrites
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.engines.eager import EagerBackend
from speclab.models.cached import CachedModel

_used: dict[int, tuple[torch.Generator, int]] = {}  # by id; the generator is held, so that no other one gets its id


def settings(
    n_tokens: int,
    sampling: Sampling = GREEDY,
    generator: torch.Generator | None = None,
    eos: Iterable[int] = (),
) -> DecodeSettings:
    """With the generator's own seed at its first use, and another one at each further use."""
    seed = 0
    if generator is not None:
        n_before = _used[id(generator)][1] if id(generator) in _used else 0
        _used[id(generator)] = (generator, n_before + 1)
        seed = generator.initial_seed() + 1_000_003 * n_before
    return DecodeSettings(n_tokens, sampling, frozenset(eos), seed)


def plain_text(target, prompt: Tensor, n_tokens: int, *how, chunk: int = 1, **more) -> list[int]:
    """The baseline's new ids."""
    return tokens_of(autoregressive_decode(target, prompt, settings(n_tokens, *how, **more), chunk))


def speculative_rounds(
    target, drafter, prompt: Tensor, k: int, n_tokens: int, *how, accept=accept_from_logits, **more
) -> Iterator[Round]:
    """The speculative loop's rounds."""
    return speculative_decode(target, drafter, prompt, k, settings(n_tokens, *how, **more), accept)


def keys_and_values(cached: CachedModel) -> list[tuple[Tensor, Tensor]]:
    """What a cache holds, layer by layer: (1, kv heads, length, head width) each, views of the storage itself."""
    backend = cached._backend
    if isinstance(backend, EagerBackend):
        return [(layer.keys, layer.values) for layer in backend._cache.layers]
    return list(zip(*backend._buffers.first(cached.length), strict=True))


@contextlib.contextmanager
def counted_kernels() -> Iterator[list[Counter[str]]]:
    """Count what a model calls that is exported inside; there is a count for each of its lists of kernels."""
    lists: list[Counter[str]] = []
    right = rewrites.lift_constants

    def lift_constants(graph) -> list[Tensor]:
        lists.append(Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function"))
        return right(graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrites, "lift_constants", lift_constants)
        yield lists
