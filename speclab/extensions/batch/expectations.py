"""The expected speed of a batch, from one text at a time. No batch of several texts is timed for it.

A pass over n texts of w tokens each multiplies every weight with n * w tokens, as a pass over one text of n * w tokens
does. But each text has keys and values of its own to read; one token after n times as many tokens of context reads as
many. So, with C tokens of context,

    t(n, w, C) = t(1, n * w, C) + t(1, 1, n * C) - t(1, 1, C)

A round takes its passes, and what the loop does outside of them, which a batch does once for all of its texts. That is
measured where one text is decoded at a time: the seconds of a round, less those of its passes. A head, or another
network that drafts row by row, works for each text anew: what its rounds take beyond those of plain decoding counts
once for each text. Why a large batch removes the gain of a draft, and a long context restores it: MagicDec, arXiv
2408.11049.
"""

import functools
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from speclab.core.clock import seconds
from speclab.core.rounds import Round
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import shared_model
from speclab.lab.run_config import RunConfig
from speclab.models.cached import CachedModel

TARGET = "target"
Way = tuple[str, int]
"""a draft and its length; PLAIN for plain decoding"""
Pass = tuple[int, int]
"""tokens of a pass over one text, tokens of the text before it"""
PLAIN: Way = ("", 0)


@dataclass(frozen=True)
class OfOne:
    """Rounds of one text at a time, on average. at_least: the share of them that draft 1, 2, ... tokens or more.

    full: the share in which a whole draft was accepted, after which a draft model has two tokens to read.
    """

    tokens: float
    seconds: float
    at_least: tuple[float, ...] = ()
    full: float = 0.0

    def drafted(self, n_texts: int) -> float:
        """The drafted tokens of the text that has most of them, among so many."""
        return sum(1 - (1 - share) ** n_texts for share in self.at_least)


def of_one(rounds: Sequence[Round], taken: float, k: int) -> OfOne:
    """From rounds of one text at a time, which took so many seconds. Of plain decoding a round is a token, k = 0."""
    n = len(rounds)
    if k == 0:
        return OfOne(1, taken / sum(len(one.tokens) for one in rounds))
    at_least = tuple(sum(one.n_drafted >= i for one in rounds) / n for i in range(1, k + 1))
    full = sum(0 < one.n_drafted == one.n_accepted for one in rounds) / n
    return OfOne(sum(len(one.tokens) for one in rounds) / n, taken / n, at_least, full)


@dataclass
class Expectations:
    """Rates of any number of texts at a time.

    context: the tokens before a pass. times: of TARGET and of draft models, the seconds of passes over one text. known:
    of each way to decode. row_by_row: drafts whose network works for one text at a time. pads: whether all rows of a
    pass have as many tokens as the longest one, as on all engines but `c`.
    """

    context: int
    times: dict[str, dict[Pass, float]]
    known: dict[Way, OfOne]
    row_by_row: set[str]
    pads: bool

    def rate(self, draft: str, k: int, n_texts: int) -> float | None:
        """The tokens a second of all texts together; with k = 0, those of plain decoding. None where it is unknown."""
        if not all(self.times.values()) or not {PLAIN, (draft, k)} <= self.known.keys():
            return None
        outside = self.outside((draft, k))
        own = max(0.0, outside - self.outside(PLAIN)) if draft in self.row_by_row else 0.0
        round_ = self._passes((draft, k), n_texts) + outside + (n_texts - 1) * own
        return n_texts * self.known[draft, k].tokens / round_

    def speedup(self, draft: str, k: int, n_texts: int) -> float | None:
        rate, plain = self.rate(draft, k, n_texts), self.rate(*PLAIN, n_texts)
        return rate / plain if rate and plain else None

    def outside(self, way: Way) -> float:
        """The seconds of a round of one text outside of its passes."""
        return self.known[way].seconds - self._passes(way, 1)

    def _passes(self, way: Way, n_texts: int) -> float:
        one, (draft, _) = self.known[way], way
        longest = n_texts if self.pads else 1
        taken = self._of(TARGET, n_texts, 1 + one.drafted(longest))
        if draft not in self.times or not one.at_least:
            return taken
        two = 1 - (1 - one.full) ** longest  # how likely the first pass of the draft reads two tokens of a text
        steps, first = one.drafted(n_texts), 1 - (1 - one.at_least[0]) ** n_texts  # some rounds draft nothing
        return taken + first * self._of(draft, n_texts, 1 + two) + (steps - first) * self._of(draft, n_texts, 1)

    def _of(self, model: str, n_texts: int, width: float) -> float:
        """The seconds of a pass over so many texts, with so many tokens of each on average."""
        times, one = self.times[model], self.context
        of_width = {tokens: taken for (tokens, context), taken in sorted(times.items()) if context == one}
        multiplied = float(np.interp(n_texts * width, list(of_width), list(of_width.values())))
        return multiplied + times[1, n_texts * one] - times[1, one]


# --- passes over one text ---------------------------------------------------------------------------------------------


class PassTimer:
    """Times passes over one text, of each model its own.

    In a decoding other work comes between two passes, and a pass takes longer than one that follows its like. So `step`
    is called between the rounds of the decodings that are to be predicted. In a turn every pass comes once, in another
    order every time. Caches hold random numbers: memory that was never written is read for nothing.
    """

    def __init__(self, models: Mapping[str, CachedModel], passes: Mapping[str, set[Pass]]):
        self._batches = {name: BatchedModel(model, 1) for name, model in models.items()}
        self._timed: dict[tuple[str, Pass], list[float]] = {
            (name, one): [] for name in models for one in sorted(passes[name])
        }
        self.n_steps = len(self._timed)  # of a turn
        self._random = random.Random(0)
        self._left: list[tuple[str, Pass]] = []  # what is left of this turn
        for name, batch in self._batches.items():
            batch.start(max(map(sum, passes[name])))
            batch.fill(seed=0)
        for one in self._timed:  # meets the shapes
            self._seconds(one)

    def step(self) -> None:
        if not self._left:
            self._left = self._random.sample(list(self._timed), self.n_steps)
        one = self._left.pop()
        self._timed[one].append(self._seconds(one))

    def _seconds(self, one: tuple[str, Pass]) -> float:
        name, (width, context) = one
        batch = self._batches[name]
        batch.lengths = [context]
        tokens = torch.zeros(1, width, dtype=torch.long, device=batch.device)
        return seconds(functools.partial(batch.forward, tokens), batch.device)

    @property
    def times(self) -> dict[str, dict[Pass, float]]:
        """The seconds of passes, by model: the mean of the middle half of each series, which no disturbed moment moves,
        times what such moments add to all series together, since they are in the predicted rates, too."""
        series = {one: timed for one, timed in self._timed.items() if timed}
        middle = {one: middle_mean(timed) for one, timed in series.items()}
        undisturbed = sum(middle[one] * len(timed) for one, timed in series.items())
        more = sum(map(sum, series.values())) / undisturbed if series else 1.0
        return {name: {one: more * mean for (of, one), mean in middle.items() if of == name} for name in self._batches}


def middle_mean(values: Sequence[float]) -> float:
    drop = len(values) // 4
    return statistics.mean(sorted(values)[drop : len(values) - drop])


def make_timer(config: RunConfig, context: int, sizes: Sequence[int]) -> PassTimer:
    """A timer for passes over one text that multiply as much as those over so many texts, and for those that read as
    much."""
    lengths = {k for drafter in config.drafters.values() for k in drafter.lengths(config.draft_lengths)}
    models, widths = {TARGET: config.setup.target}, {TARGET: {1, *(k + 1 for k in lengths)}}
    for name, drafter in config.drafters.items():
        if model := shared_model(drafter):
            models[name], widths[name] = model, {1, 2}
    passes = {
        name: {one for n in sizes for one in ((1, n * context), *((n * width, context) for width in widths[name]))}
        for name in models
    }
    return PassTimer(models, passes)
