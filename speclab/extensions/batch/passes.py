"""Seconds of passes over several texts, and of the loops without their models, between the rounds of a decoding."""

import functools
import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.row_buffers import Programs
from speclab.extensions.batch.pass_costs import PassCosts, costs_of_places
from speclab.models.cached import CachedModel
from speclab.models.memory import cache_bytes, free_memory
from speclab.models.timing import seconds
from speclab.system.terminal import note

SHARE = 0.4  # the share of the free memory that the caches of passes may take
Shape = tuple[int, int, int]  # texts, tokens of each in the pass, tokens of each before it
LoopKey = tuple[str, int, int]  # name of the draft, its length, texts; "" and 0: plain decoding


class PassTimer:
    """Times passes of some models, for each its shapes, and rounds of loops without models: one of them at a time.

    A pass that follows the same pass finds its code, its weights and the processor's threads as that one has left them.
    In a decoding other work comes in between, and a pass takes longer. So `step` is called between the rounds of the
    decodings that are to be predicted. In a turn everything comes once, in another order every time. Caches hold random
    numbers: memory that was never written is read for nothing. Shapes whose caches would not fit into the memory are
    left out, with a note.
    """

    def __init__(
        self,
        models: Mapping[str, CachedModel],
        shapes: Mapping[str, Iterable[Shape]],
        programs: Programs | None = None,
    ):
        self._models = models
        self._batches, self._shapes = _batches(models, shapes, programs)
        self._loops: dict[LoopKey, Callable[[], float]] = {}
        self._timed: dict[tuple, list[float]] = {}  # (model, shape), or a loop's key -> seconds
        self._random = random.Random(0)
        self._left: list[tuple] = []  # what is left of this turn
        for one in self._shapes:  # meets the shapes
            self._seconds(one)

    def add(self, loops: Mapping[LoopKey, Callable[[], float]]) -> None:
        """Time the rounds of these loops, too: a call does one round and returns its seconds."""
        self._loops |= loops
        for loop in loops.values():
            loop()

    @property
    def n_steps(self) -> int:
        """The number of steps in a turn."""
        return len(self._shapes) + len(self._loops)

    def step(self) -> None:
        """Time the next pass or round."""
        if not self._left:
            self._left = [*self._shapes, *self._loops]
            self._random.shuffle(self._left)
        one = self._left.pop()
        self._timed.setdefault(one, []).append(self._loops[one]() if one in self._loops else self._seconds(one))

    def _seconds(self, one: tuple[str, Shape]) -> float:
        name, (n_texts, width, context) = one
        batch, device = self._batches[name, n_texts], self._models[name].device
        batch.lengths = [context] * n_texts
        tokens = torch.zeros(n_texts, width, dtype=torch.long, device=device)
        return seconds(functools.partial(batch.forward, tokens), device)

    @property
    def times(self) -> dict[str, dict[Shape, float]]:
        """The seconds of passes, by model and shape."""
        means = self._means()
        timed = sorted(one for one in self._shapes if one in means)
        return {name: {one[1]: means[one] for one in timed if one[0] == name} for name in self._models}

    @property
    def loops(self) -> dict[LoopKey, float]:
        """The seconds of rounds without models."""
        means = self._means()
        return {key: means[key] for key in self._loops if key in means}

    def _means(self) -> dict[tuple, float]:
        """The mean of the middle half of each series, which a disturbed moment does not move, times what such moments
        add to all series together: the predicted rates are of the whole time, those moments included."""
        middle = {one: middle_mean(timed) for one, timed in self._timed.items()}
        whole = sum(sum(timed) for timed in self._timed.values())
        undisturbed = sum(middle[one] * len(timed) for one, timed in self._timed.items())
        return {one: mean * whole / undisturbed for one, mean in middle.items()}


def middle_mean(values: Sequence[float]) -> float:
    """The mean of the values without the lowest and the highest quarter."""
    drop = len(values) // 4
    return statistics.mean(sorted(values)[drop : len(values) - drop])


def _batches(
    models: Mapping[str, CachedModel], shapes: Mapping[str, Iterable[Shape]], programs: Programs | None
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
                batches[name, n_texts] = BatchedModel(model, n_texts, programs=programs)
                batches[name, n_texts].start(max(width + context for _, width, context in kept))
                batches[name, n_texts].fill(seed=n_texts)
                fitting += [(name, one) for one in kept]
                if room is not None:
                    room -= max(taken[one] for one in kept)
    if n_left_out:
        note(f"{n_left_out} kinds of passes are not timed: their caches do not fit into the memory")
    return batches, fitting


def fitted_costs(times: dict[Shape, float], context: int, long_context: int | None) -> PassCosts:
    """The costs from which passes over several texts are predicted: those of passes over one text, after two
    contexts."""
    short = {width: taken for (n_texts, width, before), taken in times.items() if (n_texts, before) == (1, context)}
    long = {width: taken for (n_texts, width, before), taken in times.items() if (n_texts, before) == (1, long_context)}
    per_place = per_pair = 0.0
    if long_context and len(both := {width: short[width] for width in long if width in short}) > 1:
        per_place, per_pair = costs_of_places(both, long, long_context - context)
    return PassCosts(tuple(sorted(short)), tuple(short[w] for w in sorted(short)), context, per_place, per_pair)
