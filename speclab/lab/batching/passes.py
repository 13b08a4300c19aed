"""Seconds of passes over several texts, and of the loops without their models."""

import functools
import itertools
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence

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

REPEATS = 20  # of every pass, after one that meets its shape
SHARE = 0.4  # of the free memory that caches of passes may take
Shape = tuple[int, int, int]  # texts, tokens of each in the pass, tokens of each before it


def time_passes(
    models: Mapping[str, CachedModel], shapes: Mapping[str, Iterable[Shape]], repeats: int = REPEATS
) -> dict[str, dict[Shape, float]]:
    """Mean seconds of passes of these models, for each its shapes.

    They take turns in another order every time, as in a round, where a draft's weights are no longer in the processor's
    cache when the target has run. Caches hold random numbers: memory that was never written is read for nothing. Shapes
    whose caches would not fit into the memory are left out, with a note.
    """
    batches, fitting = _batches(models, shapes)
    times: dict[str, dict[Shape, list[float]]] = {name: {} for name in models}
    shuffled = random.Random(0)
    with progress(repeats + 1, "turn", "timing passes") as bar:
        for turn in range(repeats + 1):
            shuffled.shuffle(fitting)
            for name, shape in fitting:
                n_texts, width, context = shape
                batch, device = batches[name, n_texts], models[name].device
                batch.lengths = [context] * n_texts
                tokens = torch.zeros(n_texts, width, dtype=torch.long, device=device)
                taken = seconds(functools.partial(batch.forward, tokens), device)
                if turn:  # the first one meets new shapes
                    times[name].setdefault(shape, []).append(taken)
            bar.update()
    return {name: {one: statistics.mean(of_model[one]) for one in sorted(of_model)} for name, of_model in times.items()}


def _batches(
    models: Mapping[str, CachedModel], shapes: Mapping[str, Iterable[Shape]]
) -> tuple[dict[tuple[str, int], BatchedModel], list[tuple[str, Shape]]]:
    """A batch of every model for every number of texts, and the shapes whose caches fit."""
    memory = free_memory(next(iter(models.values())).device)
    room = None if memory is None else SHARE * memory
    batches: dict[tuple[str, int], BatchedModel] = {}
    fitting: list[tuple[str, Shape]] = []
    n_left_out = 0
    for name, model in models.items():
        for n_texts, group in itertools.groupby(sorted(set(shapes[name])), key=lambda shape: shape[0]):
            of_texts = list(group)
            taken = {one: cache_bytes(model.model, n_texts * (one[1] + one[2])) for one in of_texts}
            kept = [one for one in of_texts if room is None or taken[one] <= room]
            n_left_out += len(of_texts) - len(kept)
            if kept:
                batches[name, n_texts] = BatchedModel(model, n_texts)
                batches[name, n_texts].start(max(width + context for _, width, context in kept))
                batches[name, n_texts].fill(seed=n_texts)
                fitting += [(name, one) for one in kept]
                if room is not None:
                    room -= max(taken[one] for one in kept)
    if n_left_out:
        note(f"{n_left_out} kinds of passes are not timed: their caches do not fit into the memory")
    return batches, fitting


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
    """Mean seconds of a round of the loop itself: accept rule, copying to the host, rolling back. k = 0: the
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
    return statistics.mean(one.seconds for one in made[len(made) // 4 :])
