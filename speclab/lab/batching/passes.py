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
from speclab.system.terminal import note
from speclab.theory.batching import PassCosts, costs_of_places

SHARE = 0.4  # of the free memory that caches of passes may take
Shape = tuple[int, int, int]  # texts, tokens of each in the pass, tokens of each before it


class PassTimer:
    """Times passes of some models, for each its shapes, a turn at a time between other work on the same machine.

    In a turn every pass comes once, in another order every time: as in a round, a draft's weights are no longer in the
    processor's cache when the target has run. Caches hold random numbers: memory that was never written is read for
    nothing. Shapes whose caches would not fit into the memory are left out, with a note.
    """

    def __init__(self, models: Mapping[str, CachedModel], shapes: Mapping[str, Iterable[Shape]]):
        self._models = models
        self._batches, self._shapes = _batches(models, shapes)
        self._times: dict[str, dict[Shape, list[float]]] = {name: {} for name in models}
        self._random = random.Random(0)
        self._turn(keep=False)  # meets the shapes

    def turn(self) -> None:
        """Time every pass once."""
        self._turn(keep=True)

    def _turn(self, keep: bool) -> None:
        self._random.shuffle(self._shapes)
        for name, shape in self._shapes:
            n_texts, width, context = shape
            batch, device = self._batches[name, n_texts], self._models[name].device
            batch.lengths = [context] * n_texts
            tokens = torch.zeros(n_texts, width, dtype=torch.long, device=device)
            taken = seconds(functools.partial(batch.forward, tokens), device)
            if keep:
                self._times[name].setdefault(shape, []).append(taken)

    @property
    def times(self) -> dict[str, dict[Shape, float]]:
        """Seconds by model and shape: the mean of the middle half, which a disturbed moment does not move."""
        return {name: {one: middle_mean(timed[one]) for one in sorted(timed)} for name, timed in self._times.items()}


def middle_mean(values: Sequence[float]) -> float:
    """Mean of the values without the lowest and the highest quarter."""
    drop = len(values) // 4
    return statistics.mean(sorted(values)[drop : len(values) - drop])


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
    """Seconds of a round of the loop itself: accept rule, copying to the host, rolling back. k = 0: the
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
    return middle_mean([one.seconds for one in made])
