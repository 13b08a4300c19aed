"""Both loops as the tests call them: settings given one by one, whole decodings given back."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import Decided, DecodeSettings, Draft, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.engines.c_pass import CBackend
from speclab.engines.eager import EagerBackend
from speclab.models.cached import CachedModel
from speclab.models.family import Room


def settings(n_tokens: int, sampling: Sampling = GREEDY, seed: int = 0, eos: Iterable[int] = ()) -> DecodeSettings:
    return DecodeSettings(n_tokens, sampling, frozenset(eos), seed)


def plain_text(target, prompt: Tensor, n_tokens: int, *how, chunk: int = 1, **more) -> list[int]:
    """The baseline's new ids."""
    return tokens_of(autoregressive_decode(target, prompt, settings(n_tokens, *how, **more), chunk))


def speculative_rounds(
    target, drafter, prompt: Tensor, k: int, n_tokens: int, *how, accept=accept_from_logits, **more
) -> Iterator[Round]:
    """The speculative loop's rounds."""
    return speculative_decode(target, drafter, prompt, k, settings(n_tokens, *how, **more), accept)


def reference_probs(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Temperature, then top-k, then top-p, in plain Python: nothing shared with speclab/core/sampling.py."""
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    order = sorted(range(len(logits)), key=lambda i: -weights[i])
    kept = order[:top_k] if top_k else order
    total = sum(weights[i] for i in kept)
    nucleus, mass = [], 0.0
    for i in kept:
        nucleus.append(i)
        mass += weights[i] / total
        if mass >= top_p:
            break
    total = sum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(logits))]


def keys_and_values(cached: CachedModel) -> list[tuple[Tensor, Tensor]]:
    """What a cache holds, layer by layer: (1, kv heads, length, head width) each."""
    backend = cached.backend
    if isinstance(backend, EagerBackend):
        return [(layer.keys, layer.values) for layer in backend._cache.layers]
    if isinstance(backend, CBackend):
        rows = [row_of(backend, i) for i in range(cached.length)]
        keys, values = (torch.stack(parts, dim=2)[:, None] for parts in zip(*rows, strict=True))
        return list(zip(keys, values, strict=True))  # (layers, 1, kv heads, length, head width)
    return list(zip(*backend._buffers.first(cached.length), strict=True))


def row_of(text: CBackend, row: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one token in the pages of the engine `c`: (layers, kv heads, head width), views."""
    model, (page, at) = text._model, divmod(row, text._model.page)
    size, lanes = model.model.head_size, model.lanes
    parts = text.pages[page].view(len(model.layers), model.model.kv_heads, -1)
    keys, values = parts[..., : model.page * size], parts[..., model.page * size :]
    block, lane = divmod(at, lanes)
    return keys.unflatten(-1, (-1, size, lanes))[..., block, :, lane], values.unflatten(-1, (model.page, -1))[
        ..., at, :size
    ]


def poison(cached: CachedModel, n_last: int) -> None:
    """Write NaN over the last rows of a cache, in its storage; a large number where all rows are read and masked."""
    backend, length = cached.backend, cached.length
    with torch.inference_mode():
        if isinstance(backend, CBackend):
            rows = [part for i in range(length - n_last, length) for part in row_of(backend, i)]
        else:
            rows = [part[..., -n_last:, :] for layer in keys_and_values(cached) for part in layer]
        for row in rows:
            row.fill_(torch.nan if isinstance(backend, CBackend | EagerBackend) else 1e4)


def model_accept_probs(accept: Sequence[float]) -> list[Sequence[float]]:
    """Acceptance by where a round begins, of a draft that proposes the same at a place wherever that is."""
    return [accept[t:] for t in range(len(accept))]


class ScriptedTarget:
    """Stands in for a CachedModel, as a target or a draft: row_after gives the distribution after the prompt and some
    new tokens."""

    device, room, can_chain = torch.device("cpu"), Room(None), False

    def __init__(self, row_after: Callable[[tuple[int, ...]], Sequence[Any]], n_prompt: int):
        self.row_after, self.n_prompt = row_after, n_prompt
        self.vocab_size = self.n_ids = len(row_after(()))
        self.tokens: list[int] = []
        self.widths: list[int] = []  # tokens of each feed

    @property
    def length(self) -> int:
        return len(self.tokens)

    def replace_unknown(self, ids: Tensor) -> Tensor:
        return ids

    def prefill(self, prompt: Tensor) -> Tensor:
        self.tokens, self.widths = prompt[0].tolist(), []
        return self._logits(len(self.tokens) - 1)

    def forward(self, tokens: Tensor) -> Tensor:
        first = len(self.tokens)
        self.tokens += tokens[0].tolist()
        self.widths.append(tokens.shape[1])
        return self._logits(first)

    def step(self, token: Tensor) -> Tensor:
        return self.forward(token[:, None])

    def verify(self, last_token: Tensor, draft: Draft) -> Tensor:
        return draft.verified_by(self, last_token)

    def commit(self, decided: Decided) -> None:
        self.crop(self.length - decided.n_drafted + decided.n_accepted)

    def crop(self, length: int) -> None:
        del self.tokens[length:]

    def _logits(self, first: int) -> Tensor:
        """(1, tokens from `first` on, vocab); finite, yet a probability of 0 stays exactly 0"""
        rows = [self.row_after(tuple(self.tokens[self.n_prompt : i + 1])) for i in range(first, len(self.tokens))]
        probs = torch.tensor([[float(weight) for weight in row] for row in rows], dtype=torch.float64)
        return probs.log().clamp(min=-1e5)[None]
