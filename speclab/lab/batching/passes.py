"""Seconds of passes over several texts, and of the loops without their models."""

import functools
import itertools
import statistics
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from draft_models import as_drawn
from speclab.batch.loops import autoregressive_decode_batch, speculative_decode_batch
from speclab.batch.rows import Request
from speclab.core.rounds import AcceptRule, DecodeSettings, Draft
from speclab.core.sampling import GREEDY, Sampling
from speclab.lab.batching.decodings import BatchDecoding
from speclab.models.batched import BatchedModel
from speclab.models.cached import CachedModel
from speclab.models.memory import cache_bytes, free_memory
from speclab.models.timing import seconds
from speclab.system.terminal import note, progress
from speclab.theory.batching import PassCosts, costs_of_places

REPEATS = 12  # of every pass, after one that meets its shape
SHARE = 0.4  # of the free memory that caches of passes may take
Shape = tuple[int, int, int]  # texts, tokens of each in the pass, tokens of each before it


def time_passes(model: CachedModel, shapes: Iterable[Shape], repeats: int = REPEATS) -> dict[Shape, float]:
    """Median seconds of passes of these shapes, taking turns. The caches hold zeros: what they hold costs nothing.

    Shapes whose caches would not fit into the memory are left out, with a note.
    """
    shapes = sorted(set(shapes))
    models, fitting = _models(model, shapes)
    times: dict[Shape, list[float]] = {shape: [] for shape in fitting}
    with progress(repeats + 1, "turn", "timing passes") as bar:
        for turn in range(repeats + 1):
            for shape in fitting if turn % 2 else fitting[::-1]:  # there and back: steady drift cancels
                n_texts, width, context = shape
                batch = models[n_texts]
                batch.lengths = [context] * n_texts
                tokens = torch.zeros(n_texts, width, dtype=torch.long, device=model.device)
                taken = seconds(functools.partial(batch.forward, tokens), model.device)
                if turn:  # the first one meets new shapes
                    times[shape].append(taken)
            bar.update()
    return {shape: statistics.median(taken) for shape, taken in times.items()}


def _models(model: CachedModel, shapes: Sequence[Shape]) -> tuple[dict[int, BatchedModel], list[Shape]]:
    """A batch for every number of texts, and the shapes whose caches fit."""
    memory = free_memory(model.device)
    room = None if memory is None else SHARE * memory
    models: dict[int, BatchedModel] = {}
    fitting: list[Shape] = []
    for n_texts, group in itertools.groupby(shapes, key=lambda shape: shape[0]):
        of_texts = list(group)
        if room is not None:
            of_texts = [one for one in of_texts if cache_bytes(model.model, n_texts * (one[1] + one[2])) <= room]
        if not of_texts:
            continue
        longest = max(width + context for _, width, context in of_texts)
        models[n_texts] = BatchedModel(model, n_texts)
        models[n_texts].start(longest)
        if room is not None:
            room -= cache_bytes(model.model, n_texts * longest)
        fitting += of_texts
    if left_out := [shape for shape in shapes if shape not in fitting]:
        note(f"{len(left_out)} kinds of passes are not timed: their caches do not fit into the memory")
    return models, fitting


def pass_costs(times: dict[Shape, float], context: int, long_context: int | None) -> PassCosts:
    """What predicts passes over several texts: those over one text, after two contexts."""
    short = {width: taken for (n_texts, width, before), taken in times.items() if (n_texts, before) == (1, context)}
    long = {width: taken for (n_texts, width, before), taken in times.items() if (n_texts, before) == (1, long_context)}
    per_place = per_pair = 0.0
    if long_context and len(both := {width: short[width] for width in long if width in short}) > 1:
        per_place, per_pair = costs_of_places(both, long, long_context - context)
    return PassCosts(tuple(sorted(short)), tuple(short[w] for w in sorted(short)), context, per_place, per_pair)


# --- the loops without their models -----------------------------------------------------------------------------------


class _NoPasses(BatchedModel):
    """A batch whose passes cost nothing and always give the same logits."""

    def __init__(self, model: CachedModel, n_rows: int, widest: int):
        super().__init__(model, n_rows)
        self._logits = torch.randn(n_rows, widest, model.vocab_size, dtype=model.model.dtype, device=model.device)

    def start(self, longest: int) -> None:
        """No buffers."""
        self.lengths, self.n_passes = [0] * self.n_rows, 0

    def prefill(self, row: int, prompt: Tensor) -> Tensor:
        """(1, 1, vocab)"""
        self.lengths = [prompt.shape[1] if i == row else length for i, length in enumerate(self.lengths)]
        return self._logits[:1, :1]

    def forward(self, tokens: Tensor, reads: Tensor | None = None) -> Tensor:
        """(rows, m, vocab)"""
        self.lengths = [length + tokens.shape[1] for length in self.lengths]
        return self._logits[:, : tokens.shape[1]]


class _NoDraft:
    """Always the same tokens, drawn from rows that cost nothing."""

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        """Make what is proposed."""
        token = torch.zeros(target.n_rows, dtype=torch.long, device=target.device)
        law = None if sampling.greedy else torch.full((target.n_rows, target.vocab_size), 1 / target.vocab_size)
        self._drawn = token, None if law is None else law.to(target.device)

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """Nothing."""

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        """The same token again and again."""
        sizes = torch.tensor(k, device=uniforms.device)
        if not any(k):
            return Draft(torch.zeros(len(k), 0, dtype=torch.long, device=uniforms.device), sizes)
        return as_drawn([self._drawn] * max(k))._replace(size=sizes)

    def observe(self, decided: object) -> None:
        """Nothing."""


def loop_seconds(
    target: CachedModel, accept: AcceptRule, n_texts: int, k: int, sampling: Sampling = GREEDY, n_rounds: int = 40
) -> float:
    """Median seconds of a round of the loop itself: accept rule, copying to the host, rolling back. k = 0: the
    baseline's loop."""
    batch = _NoPasses(target, n_texts, k + 1)
    settings = DecodeSettings(n_rounds * (k + 1), sampling)
    room = settings.max_new_tokens if target.max_length is None else target.max_length - 1
    settings = DecodeSettings(min(settings.max_new_tokens, room), sampling)
    requests = [Request(torch.zeros(1, 1, dtype=torch.long, device=target.device), settings)] * n_texts
    if k:
        found = speculative_decode_batch(batch, _NoDraft(), requests, k, accept)
    else:
        found = autoregressive_decode_batch(batch, requests)
    decoding = BatchDecoding(found, n_texts)
    while not decoding.done:
        decoding.advance()
    made = decoding.full(n_texts)
    return statistics.median(one.seconds for one in made[len(made) // 4 :])
