"""Logits to probabilities, and probabilities to tokens. Pure functions, tensors in and tensors out, batch first.

Temperature, top-k and top-p are applied once, in `Sampling.probs`. Temperature 0 is the one-hot limit, so one rule
serves greedy decoding and sampling. Randomness comes in as uniforms and tokens are drawn by inverse CDF: the accept
rule is then a piecewise-constant function of its uniforms, and the tests enumerate it exactly (tests/test_exact.py).

Logits that are not finite become the token `NOT_FINITE`, which the decoders notice on the host with the tokens that
they fetch anyway (`Draft.faults` marks a draft's).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from speclab.system.errors import EnvironmentProblem

Function = TypeVar("Function", bound=Callable)
ON_GRAPHS: dict[str, Callable] = {}  # by the type of a device: what makes a pure function run there as graphs
NOT_FINITE = -1  # in place of a token: the distribution it should come from has NaN or infinite entries


@dataclass(frozen=True)
class Sampling:
    """How logits become probabilities. Temperature 0 is greedy; top_k 0 and top_p 1 keep everything."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < float("inf")):
            raise ValueError(f"temperature must be a finite number, 0 or more, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top-k must be 0 (off) or more, got {self.top_k}")
        if not (0 < self.top_p <= 1):
            raise ValueError(f"top-p must be above 0 and at most 1, got {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probs(self, logits: Tensor) -> Tensor:
        """Turn logits (..., vocab) into probabilities (..., vocab), float32 or float64.

        Filters follow the usual order: temperature, top-k, top-p. Top-p keeps the smallest set of most probable tokens
        whose mass reaches top_p, the crossing token included (Holtzman et al., arXiv 1904.09751).
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.greedy:
            highest, token = logits.max(-1, keepdim=True)
            # highest - highest is 0, or NaN where a logit is NaN or +inf: it carries bad logits through the one-hot.
            return torch.zeros_like(logits).scatter_(-1, token, 1.0) + (highest - highest)
        # The largest logit moves to 0 first: a tiny temperature then underflows to the greedy limit, not to NaN.
        # One below the dtype's smallest normal number would itself become 0.
        temperature = max(self.temperature, torch.finfo(logits.dtype).tiny)
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature
        if 0 < self.top_k < logits.shape[-1]:
            kept = logits.topk(self.top_k, dim=-1).indices
            logits = torch.full_like(logits, -torch.inf).scatter(-1, kept, logits.gather(-1, kept))
        probs = logits.softmax(-1)
        if self.top_p < 1:
            ordered, order = probs.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered  # mass of all more probable tokens
            beyond = before >= self.top_p
            beyond[..., 0] = False  # a top_p too small for the dtype still keeps the most probable token
            ordered = ordered.masked_fill(beyond, 0.0)
            probs = torch.zeros_like(probs).scatter(-1, order, ordered)
            probs = probs / probs.sum(-1, keepdim=True)
        return probs


GREEDY = Sampling()


def wide_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs have not


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw from unnormalised weights by inverse CDF.  (batch, vocab), (batch,) in [0, 1) -> (batch,) ids

    None has weight zero. A row whose mass is zero or not finite gives NOT_FINITE.
    """
    wide = wide_dtype(weights.device)
    cdf = weights.cumsum(-1, dtype=wide)  # (batch, vocab)
    total = cdf[:, -1:].contiguous()
    token = torch.searchsorted(cdf, uniforms.to(wide)[:, None] * total, right=True)
    # u * total may round up to total: the first id that reaches the whole mass is the last one with weight.
    token = torch.minimum(token, torch.searchsorted(cdf, total))
    return token.masked_fill((total <= 0) | ~total.isfinite(), NOT_FINITE)[:, 0]


def graphed(function: Function) -> Function:
    """Let a pure function whose first argument is a tensor run as CUDA graphs on a GPU (engines/cuda/graphs.py)."""

    @functools.wraps(function)
    def call(first: Tensor, *args: Any) -> Any:
        on_graphs = ON_GRAPHS.get(first.device.type)
        return (on_graphs(function) if on_graphs else function)(first, *args)

    return call  # type: ignore[return-value]


@graphed
def draw_next(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    """Draw as `sampling` says: (batch, vocab) logits, (batch,) uniforms -> (batch,) ids. Greedy tokens, which `draw`
    would take from the one-hot row, are taken straight from the logits."""
    return most_probable(logits) if sampling.greedy else draw(sampling.probs(logits), uniforms)


class Drawn(NamedTuple):
    """A drafted token of each row."""

    token: Tensor  # (batch,) ids, NOT_FINITE where the logits of a row are not finite: none may go into a pass
    probs: Tensor | None  # (batch, vocab) what each was drawn from; None: greedy


@graphed
def draw_draft(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Drawn:
    """Draw a drafted token of each row: (batch, vocab) logits, (batch,) uniforms."""
    if sampling.greedy:
        return Drawn(most_probable(logits), None)
    probs = sampling.probs(logits)
    return Drawn(draw(probs, uniforms), probs)


def probability(logits: Tensor, drawn: Drawn) -> float:
    """Return the draft's probability of what `draw_draft` gave for (1, vocab) logits; temperature 1 for a greedy id."""
    row = logits.float().softmax(-1) if drawn.probs is None else drawn.probs
    return row[0, drawn.token[0]].item()


def most_probable(logits: Tensor) -> Tensor:
    """Return the ids (...) of the largest of (..., vocab) logits, NOT_FINITE where that is infinite or no number."""
    highest, token = logits.max(-1)
    return token.masked_fill(~highest.isfinite(), NOT_FINITE)


def uniforms(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw numbers in [0, 1) on `device`, float64 where the device has it. The generator may live on the host."""
    drawn = torch.rand(shape, generator=generator, device=generator.device, dtype=wide_dtype(device))
    return drawn.to(device, non_blocking=True)


def to_device(ids: list[int], device: torch.device) -> Tensor:
    """Bring (n,) ids to `device`, without waiting for what is queued there."""
    tokens = torch.tensor(ids, dtype=torch.long)
    return tokens.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tokens.to(device)


def to_host(tokens: Tensor) -> list[int]:
    """Turn (n,) ids into a list. A NOT_FINITE is noticed here."""
    ids = tokens.tolist()
    if NOT_FINITE in ids:
        raise EnvironmentProblem(
            "the target or its draft returned logits that are not finite (NaN or infinity); try "
            "--dtype float32, and if that does not help the weights are damaged"
        )
    return ids
