"""A drafter for one text with a clock on it: the clock measures its cost, and its longest proposal is kept."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from speclab.core.rounds import Decided, Draft
from speclab.core.sampling import Sampling
from speclab.extensions.batch.batched_model import BatchedModel
from speclab.extensions.batch.drafters import BatchDrafter
from speclab.lab.instruments import PhaseClock

DRAFT = "draft"  # the phase


class WatchedDrafter:
    """A drafter for a batch of one text; it is started before anything else.

    seen: its longest draft so far, None before there is one.
    """

    def __init__(self, drafter: BatchDrafter):
        self._drafter = drafter
        self.seen: Draft | None = None

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        """Drop all texts, and what the clock has counted."""
        self._clock, self._n_rounds = PhaseClock(target.device), 0
        self._drafter.start(target, sampling, longest)

    def prepare(self, longest: int) -> None:
        """Prepare the drafter inside."""
        self._drafter.prepare(longest)

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """The row starts a text."""
        self._drafter.prefill(row, prompt, committed)

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        """Let the drafter inside propose, with the clock running."""
        draft = self._clock.timed(DRAFT, self._drafter.propose)(k, uniforms)
        self._n_rounds += 1
        if draft.tokens.shape[1] and (self.seen is None or draft.tokens.shape[1] > self.seen.tokens.shape[1]):
            self.seen = draft
        return draft

    def observe(self, decided: Mapping[int, Decided]) -> None:
        """Let the drafter inside take in the decisions, with the clock running."""
        self._clock.timed(DRAFT, self._drafter.observe)(decided)

    def take(self) -> float:
        """The mean seconds of a round, for proposing and for following the text. The count begins anew."""
        seconds, n = self._clock.take().get(DRAFT, 0.0), self._n_rounds
        self._n_rounds = 0
        return seconds / max(1, n)
